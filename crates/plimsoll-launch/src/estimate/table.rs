//! The table of an estimate: phases, their named parts, the peak, and two figures.
//!
//! `expected` is what we think is most likely. `safe` is the sum of each part's own upper bound at its worst phase,
//! plus [`MARGIN_PER_CENT`] of that sum: shapes are exact, defaults and allocators are not. A measured peak must never be
//! above it. Phases that are outside of the limit (compilation) are listed and not counted.

use std::fmt;

use plimsoll_machine::Bytes;
use serde::Serialize;

/// What `safe` adds to the sum of the parts' bounds: how far two runs of one setting were apart (8109 and 7782 MiB).
pub const MARGIN_PER_CENT: u64 = 4;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// From shapes and settings.
    Computed,
    /// Seen on this machine.
    Measured,
    /// A figure of ours for software or hardware that was not measured here.
    Default,
    /// What a guide says.
    Guide,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Source::Computed => "computed",
            Source::Measured => "measured",
            Source::Default => "default",
            Source::Guide => "guide",
        })
    }
}

/// A number of bytes and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// How much.
    pub bytes: Bytes,
    /// By whose word.
    pub source: Source,
}

impl Figure {
    /// A default of ours.
    pub const fn default_of(bytes: Bytes) -> Figure {
        Figure { bytes, source: Source::Default }
    }

    /// A measured fact.
    pub const fn measured(bytes: Bytes) -> Figure {
        Figure { bytes, source: Source::Measured }
    }

    /// So many times.
    pub fn times(self, n: u64) -> Figure {
        Figure { bytes: Bytes(self.bytes.0.saturating_mul(n)), ..self }
    }
}

/// One line of a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// How much, most likely.
    pub bytes: Bytes,
    /// How much at most.
    pub most: Bytes,
    /// By whose word.
    pub source: Source,
}

impl Part {
    /// A part that follows from shapes.
    pub fn computed(name: impl Into<String>, bytes: Bytes) -> Part {
        Part { name: name.into(), bytes, most: bytes, source: Source::Computed }
    }

    /// A part whose bound is not its expectation.
    pub fn bounded(name: impl Into<String>, bytes: Bytes, most: Bytes, source: Source) -> Part {
        Part { name: name.into(), bytes, most: most.max(bytes), source }
    }

    /// A figure from elsewhere: a default may be a seventh more, a measurement is taken as it is.
    pub fn figure(name: impl Into<String>, figure: Figure) -> Part {
        let most = match figure.source {
            Source::Default | Source::Guide => figure.bytes.saturating_add(Bytes(figure.bytes.0 / 7)),
            Source::Computed | Source::Measured => figure.bytes,
        };
        Part { name: name.into(), bytes: figure.bytes, most, source: figure.source }
    }
}

/// A part of a run that has a peak of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// Making the model.
    Load,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// The weight update.
    Step,
    /// Validation.
    Eval,
    /// Writing a checkpoint.
    Save,
    /// Going on from a checkpoint.
    Resume,
}

impl fmt::Display for PhaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PhaseName::Load => "load",
            PhaseName::Forward => "forward",
            PhaseName::Backward => "backward",
            PhaseName::Step => "step",
            PhaseName::Eval => "eval",
            PhaseName::Save => "save",
            PhaseName::Resume => "resume",
        })
    }
}

/// A phase and what is alive in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Which.
    pub name: PhaseName,
    /// What is alive; parts of no bytes are left out.
    pub parts: Vec<Part>,
}

impl Phase {
    /// A phase of these parts.
    pub fn new(name: PhaseName, parts: impl IntoIterator<Item = Part>) -> Phase {
        Phase { name, parts: parts.into_iter().filter(|part| part.most > Bytes::ZERO).collect() }
    }

    /// All that is alive.
    pub fn total(&self) -> Bytes {
        self.parts.iter().fold(Bytes::ZERO, |sum, part| sum.saturating_add(part.bytes))
    }

    /// All that may be alive at most.
    pub fn most(&self) -> Bytes {
        self.parts.iter().fold(Bytes::ZERO, |sum, part| sum.saturating_add(part.most))
    }
}

/// Which memory a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// RAM, all processes of the run together (PSS).
    Host,
    /// The memory of one card.
    Card,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Memory::Host => "host memory",
            Memory::Card => "card memory",
        })
    }
}

/// What earlier runs did to the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Correction {
    /// Runs that it comes from.
    pub runs: usize,
    /// Bytes added to what was computed (or taken off).
    pub delta: i64,
}

/// An estimate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Which memory.
    pub memory: Memory,
    /// What is alive when.
    pub phases: Vec<Phase>,
    /// Happens before or beside the run, outside of its limit.
    pub outside: Vec<Part>,
    /// The peak, most likely.
    pub expected: Bytes,
    /// What the peak will not exceed.
    pub safe: Bytes,
    /// The phase of the peak.
    pub peak: PhaseName,
    /// `computed`, or `measured` where a run with the same settings has been seen.
    pub source: Source,
    /// What earlier runs with other settings changed.
    pub correction: Option<Correction>,
}

impl Table {
    /// The table of these phases. There must be one.
    pub fn new(memory: Memory, phases: Vec<Phase>, outside: Vec<Part>) -> Table {
        let peak = phases.iter().max_by_key(|phase| phase.total());
        let expected = peak.map_or(Bytes::ZERO, Phase::total);
        let most = phases.iter().map(Phase::most).max().unwrap_or(Bytes::ZERO);
        let peak = peak.map_or(PhaseName::Load, |phase| phase.name);
        let safe = most.saturating_add(Bytes(most.0 / 100 * MARGIN_PER_CENT));
        Table { memory, phases, outside, expected, safe, peak, source: Source::Computed, correction: None }
    }

    /// A phase by its name.
    pub fn phase(&self, name: PhaseName) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// A part of the phase of the peak, by its name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.phase(self.peak)?.parts.iter().find(|part| part.name == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.phase(self.peak).map_or(&[][..], |phase| &phase.parts);
        let lines = parts.iter().chain(&self.outside).map(|part| part.name.chars().count());
        let width = lines.max().unwrap_or(0).max(24);
        writeln!(f, "{}, peak in {}", self.memory, self.peak)?;
        for part in parts {
            writeln!(f, "  {:<width$}  {:>10}  {}", part.name, part.bytes, part.source)?;
        }
        if let Some(correction) = self.correction {
            let sign = if correction.delta < 0 { "-" } else { "+" };
            let size = format!("{sign}{}", Bytes(correction.delta.unsigned_abs()));
            let runs = if correction.runs == 1 { "run" } else { "runs" };
            writeln!(f, "  {:<width$}  {size:>10}  {} of {} {runs}", "correction", Source::Measured, correction.runs)?;
        }
        writeln!(f, "  {:<width$}  {:>10}  {}", "expected", self.expected, self.source)?;
        writeln!(f, "  {:<width$}  {:>10}", "safe", self.safe)?;
        let phases: Vec<String> = self.phases.iter().map(|phase| format!("{} {}", phase.name, phase.total())).collect();
        writeln!(f, "  by phase: {}", phases.join(", "))?;
        for part in &self.outside {
            writeln!(f, "  outside of the limit: {} {} {}", part.name, part.bytes, part.source)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let load = Phase::new(PhaseName::Load, [Part::computed("weights", Bytes::mib(300))]);
        let spiky = Part::bounded("activations", Bytes::mib(100), Bytes::mib(400), Source::Computed);
        let forward = Phase::new(PhaseName::Forward, [Part::computed("weights", Bytes::mib(100)), spiky]);
        Table::new(Memory::Card, vec![load, forward], vec![])
    }

    #[test]
    fn safe_is_the_worst_bound_of_any_phase_not_of_the_expected_peak() {
        let table = table();
        assert_eq!((table.peak, table.expected), (PhaseName::Load, Bytes::mib(300)));
        assert!(table.safe >= Bytes::mib(500) && table.safe < Bytes::mib(525), "{}", table.safe);
    }

    #[test]
    fn a_default_is_bounded_above_itself_and_a_measurement_is_not() {
        assert!(Part::figure("a", Figure::default_of(Bytes::mib(70))).most == Bytes::mib(80));
        assert!(Part::figure("a", Figure::measured(Bytes::mib(70))).most == Bytes::mib(70));
    }

    #[test]
    fn the_table_is_aligned_and_names_each_source() {
        let mut table = table();
        table.correction = Some(Correction { runs: 1, delta: -(20 << 20) });
        let text = table.to_string();
        assert!(text.contains("weights                      300 MiB  computed\n"), "{text}");
        assert!(text.contains("correction                 -20.0 MiB  measured of 1 run\n"), "{text}");
        assert!(text.contains("by phase: load 300 MiB, forward 200 MiB"), "{text}");
    }
}
