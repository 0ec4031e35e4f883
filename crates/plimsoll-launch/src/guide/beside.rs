//! Guide 000's table of servers and settings, and beside each of its figures what is computed for the same settings.
//!
//! The guide's figures come from its own cost model ([`host_ram`](super::host_ram)), labelled `guide`; the computed ones from
//! [`estimate`](crate::estimate), made by the caller. Neither is mixed with the other: the guide's GB stay GB.

use std::fmt;

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::book::{GuideCommand, PIPER};
use super::effective_batch;
use super::figure::Gb;
use super::host_ram::{Breakdown, HostPlan, PiperRun, host_plan};
use super::profile::{Profile, Server};
use crate::estimate::Table;
use crate::knob::{Knob, Value};

/// What is computed for a profile's settings on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Computed {
    /// The estimate.
    Needs {
        /// RAM, most likely.
        expected: Bytes,
        /// RAM at most.
        safe: Bytes,
        /// Of one card, most likely.
        vram: Option<Bytes>,
        /// Whether the machine has it.
        fits: bool,
    },
    /// The trainer does not start with it.
    Refused {
        /// Why.
        why: String,
    },
    /// Nothing can be said.
    Unknown {
        /// Why.
        why: String,
    },
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The profile.
    pub profile: &'static str,
    /// Its settings in words.
    pub settings: String,
    /// RAM by the guide.
    pub guide: Gb,
    /// The server's RAM by the guide.
    pub server: Gb,
    /// Whether that fits, by the guide.
    pub guide_fits: bool,
    /// Samples per update.
    pub effective_batch: u64,
    /// Speed by the guide, in per cent of four workers.
    pub speed_percent: f64,
    /// The computed one.
    pub computed: Computed,
}

/// One part of the sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parted {
    /// Which, in the guide's order.
    pub name: &'static str,
    /// By the guide.
    pub guide: Gb,
    /// Computed; none for what is not the run's.
    pub computed: Option<Bytes>,
}

/// Both tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// The profile whose parts are shown.
    pub profile: &'static str,
    /// Its server.
    pub server: Server,
    /// What the machine can give a run, where one was named.
    pub there: Option<Bytes>,
    /// The sum, part by part.
    pub parts: Vec<Parted>,
    /// By the guide, in all.
    pub guide: Gb,
    /// Computed, in all: expected and at most.
    pub computed: Option<(Bytes, Bytes)>,
    /// Every row of the guide's table.
    pub rows: Vec<Row>,
}

/// The profiles of the guide's table, in its order.
pub fn rows() -> impl Iterator<Item = &'static Profile> {
    PIPER.table.iter().filter_map(|name| PIPER.profile.iter().find(|profile| profile.name == *name))
}

/// What the guide's compose files run on so many cards.
pub fn command(cards: u64) -> (Vec<String>, &'static GuideCommand) {
    let command = &PIPER.command;
    let more = if cards > 1 { &command.several[..] } else { &[] };
    (command.words.iter().chain(more).cloned().collect(), command)
}

/// The profile that the guide means for a machine: of those that fit its server, by its own figures, the first of the server with as many
/// cards and the nearest RAM.
pub fn meant_for(cards: u64, ram: Bytes) -> Option<&'static Profile> {
    let gb = ram.0 as f64 / 1e9;
    let far = |profile: &&Profile| profile.server.map_or(f64::INFINITY, |server| (server.ram.0 - gb).abs());
    let fits = |profile: &&'static Profile| {
        profile.server.is_some_and(|server| server.cards == cards) && guided(profile).is_some_and(|plan| plan.fits())
    };
    rows().filter(fits).min_by(|a, b| far(a).total_cmp(&far(b)))
}

/// What the guide's cost model says of a profile on its server.
fn guided(profile: &Profile) -> Option<HostPlan> {
    host_plan(&run_of(profile)?, profile.server?.ram).ok()
}

fn run_of(profile: &Profile) -> Option<PiperRun> {
    let count = |knob| profile.settings.get(&knob).and_then(Value::count);
    let or_one = |knob| count(knob).unwrap_or(1);
    let (gpus, workers) = (or_one(Knob::Processes), or_one(Knob::Workers));
    Some(PiperRun { gpus, batch: count(Knob::Batch)?, workers, accumulation: or_one(Knob::Accumulation) })
}

/// The tables; `computed` is asked for every row, `parts` is the estimate of `profile` itself. None for a profile that is not of this guide's
/// servers.
pub fn beside(
    profile: &'static Profile,
    there: Option<Bytes>,
    parts: Option<&Table>,
    mut computed: impl FnMut(&'static Profile) -> Computed,
) -> Option<Beside> {
    let guided_here = guided(profile)?;
    let rows = rows().filter_map(|profile| row(profile, computed(profile))).collect();
    Some(Beside {
        profile: &profile.name,
        server: profile.server?,
        there,
        parts: parted(&guided_here.parts, parts),
        guide: guided_here.parts.total(),
        computed: parts.map(|table| (table.expected, table.safe)),
        rows,
    })
}

fn row(profile: &'static Profile, computed: Computed) -> Option<Row> {
    let (run, server, plan) = (run_of(profile)?, profile.server?, guided(profile)?);
    let s = |n: u64| if n == 1 { "" } else { "s" };
    let accumulated = if run.accumulation > 1 { format!(", accumulation {}", run.accumulation) } else { String::new() };
    let PiperRun { gpus, batch, workers, .. } = run;
    Some(Row {
        profile: &profile.name,
        settings: format!("{gpus} card{}, batch {batch}, {workers} worker{}{accumulated}", s(gpus), s(workers)),
        guide: plan.parts.total(),
        server: server.ram,
        guide_fits: plan.fits(),
        effective_batch: effective_batch(batch, gpus, run.accumulation),
        speed_percent: plan.speed_percent,
        computed,
    })
}

/// Which of the guide's parts an estimate's part belongs to.
fn group(part: &str) -> usize {
    let begins = |words: &[&str]| words.iter().any(|word| part.starts_with(word));
    if begins(&["Python and libraries", "library pages", "launcher", "CUDA in host memory", "first steps"]) {
        1
    } else if part.contains("workers") {
        2
    } else if begins(&["batches"]) {
        3
    } else {
        4
    }
}

fn parted(guide: &Breakdown, table: Option<&Table>) -> Vec<Parted> {
    let mut sums = [Bytes::ZERO; 5];
    let peak = table.and_then(|table| table.phase(table.peak));
    for part in peak.iter().flat_map(|phase| &phase.parts) {
        sums[group(&part.name)] += part.bytes;
    }
    let names = [
        ("system", guide.system),
        ("PyTorch", guide.runtime),
        ("loader processes", guide.loader),
        ("batches", guide.batch),
        ("everything else", guide.buffers),
    ];
    let of = |n: usize| peak.is_some().then_some(sums[n]).filter(|_| n > 0);
    names.into_iter().enumerate().map(|(n, (name, guide))| Parted { name, guide, computed: of(n) }).collect()
}

impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Computed::Needs { expected, safe, vram, fits } => {
                let fits = if *fits { "fits" } else { "does not fit" };
                let vram = vram.map_or(String::new(), |vram| format!("; {vram} of a card"));
                write!(f, "{expected}, at most {safe}{vram}; {fits}")
            }
            Computed::Refused { why } => write!(f, "does not start: {why}"),
            Computed::Unknown { why } => write!(f, "unknown: {why}"),
        }
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = if self.server.cards == 1 { "card" } else { "cards" };
        writeln!(
            f,
            "{}: guide 000 for {} {cards} and {}, beside what is computed",
            self.profile, self.server.cards, self.server.ram
        )?;
        writeln!(f, "  {:<20} {:>8}  {:>13}", "host RAM", "guide", "computed")?;
        for part in &self.parts {
            let computed = part.computed.map_or("not the run's".to_string(), |bytes| bytes.to_string());
            writeln!(f, "  {:<20} {:>8}  {computed:>13}", part.name, part.guide.to_string())?;
        }
        let (expected, safe) = match self.computed {
            Some((expected, safe)) => (expected.to_string(), format!(", at most {safe}")),
            None => ("unknown".to_string(), String::new()),
        };
        writeln!(f, "  {:<20} {:>8}  {expected:>13}{safe}", "in all", self.guide.to_string())?;
        let there = self.there.map_or("unknown".to_string(), |there| there.to_string());
        writeln!(f, "  {:<20} {:>8}  {there:>13}", "there", self.server.ram.to_string())?;
        writeln!(f, "the guide's table, beside what is computed for this machine")?;
        for row in &self.rows {
            let fits = if row.guide_fits { "fits" } else { "does not fit" };
            writeln!(f, "  {}{}", row.settings, if row.profile == self.profile { "  <- this one" } else { "" })?;
            writeln!(
                f,
                "    guide     {} of {}, effective batch {}, speed {} %; {fits}",
                row.guide, row.server, row.effective_batch, row.speed_percent
            )?;
            writeln!(f, "    computed  {}", row.computed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Memory, Part, Phase, PhaseName};
    use crate::guide::profile;

    fn unknown(_: &'static Profile) -> Computed {
        Computed::Unknown { why: "nobody asked".into() }
    }

    #[test]
    fn the_guides_table_is_reproduced_row_by_row() {
        let beside = beside(profile("immers-4gpu").unwrap(), None, None, unknown).unwrap();
        let rows: Vec<(f64, u64, f64, bool)> = beside
            .rows
            .iter()
            .map(|row| (row.guide.0, row.effective_batch, row.speed_percent, row.guide_fits))
            .collect();
        // RAM, effective batch, speed and verdict as the guide prints them.
        let printed = [
            (35.0, 32, 100.0, false),
            (29.0, 24, 95.0, true),
            (52.0, 64, 100.0, false),
            (42.0, 64, 95.0, true),
            (38.0, 96, 95.0, true),
        ];
        assert_eq!(rows, printed);
        let parts: Vec<f64> = beside.parts.iter().map(|part| part.guide.0).collect();
        assert_eq!((parts, beside.guide), (vec![6.0, 8.0, 8.0, 16.0, 4.0], Gb(42.0)));
    }

    #[test]
    fn a_machine_gets_the_profile_of_its_server_and_one_without_any_none() {
        let of = |cards, gb: u64| meant_for(cards, Bytes(gb * 1_000_000_000)).map(|profile| profile.name.as_str());
        assert_eq!(of(4, 44), Some("immers-4gpu"));
        assert_eq!(of(4, 47), Some("immers-4gpu"));
        assert_eq!(of(1, 31), Some("immers-1gpu"));
        assert_eq!(of(2, 44), None);
    }

    #[test]
    fn the_computed_parts_add_up_to_what_is_computed() {
        let of = |name: &str, mib| Part::computed(name, Bytes::mib(mib));
        let parts = [
            of("Python and libraries (ranks: 4)", 5),
            of("loader workers (1 x 4)", 7),
            of("batches, pinned", 11),
            of("x", 13),
        ];
        let table = Table::new(Memory::Host, vec![Phase::new(PhaseName::Save, parts)], vec![]);
        let beside = beside(profile("immers-1gpu").unwrap(), Some(Bytes::gib(30)), Some(&table), unknown).unwrap();
        let computed: Vec<Option<Bytes>> = beside.parts.iter().map(|part| part.computed).collect();
        assert_eq!(
            computed,
            [None, Some(Bytes::mib(5)), Some(Bytes::mib(7)), Some(Bytes::mib(11)), Some(Bytes::mib(13))]
        );
        assert_eq!(computed.into_iter().flatten().sum::<Bytes>(), table.expected);
        let page = beside.to_string();
        assert!(page.contains("  in all                  29 GB       36.0 MiB, at most"), "{page}");
    }

    #[test]
    fn several_cards_get_a_strategy_and_every_knob_stands_once() {
        assert!(!command(1).0.contains(&"--trainer.strategy".to_string()));
        let words = command(4).0;
        assert_eq!(words.iter().filter(|word| *word == "--trainer.strategy").count(), 1);
        assert!(!words.iter().any(|word| word == "--trainer.devices"));
    }
}
