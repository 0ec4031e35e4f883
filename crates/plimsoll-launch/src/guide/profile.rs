//! A guide's preset under a name, and how it is shown: settings, the guide's figures, what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::book::Book;
use super::correction::{Correction, correction};
use super::figure::{Gb, Span};
use crate::knob::Settings;

/// Columns of a page.
const WIDTH: usize = 110;

/// One preset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What people type.
    pub name: String,
    /// The guide's number.
    #[serde(default)]
    pub guide: String,
    /// What the guide is about.
    #[serde(skip_deserializing)]
    pub title: String,
    /// The machine it is for.
    pub machine: String,
    /// The same as numbers, where the guide has a table for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// The trainer it is for.
    pub trainer: String,
    /// What is set, in our names.
    pub settings: Settings,
    /// What is set, in the guide's own words.
    #[serde(default)]
    pub own: BTreeMap<String, String>,
    /// What the guide expects of it, as text.
    #[serde(default)]
    pub figures: Vec<(String, String)>,
    /// What the guide expects of it, as numbers.
    #[serde(default)]
    pub claims: BTreeMap<String, Span>,
    /// Flags that the guide's command has.
    #[serde(default)]
    pub flags: Vec<String>,
    /// The version of the trainer whose rules it is a case of, see [`super::policy::version`].
    #[serde(default)]
    pub version: Option<String>,
    /// Remarks.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Ids of the corrections that touch it.
    #[serde(default)]
    pub corrections: Vec<String>,
}

/// A rented server, as a guide names it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its cards.
    pub cards: u64,
    /// Its RAM.
    pub ram: Gb,
}

impl Profile {
    /// The corrections that touch it.
    pub fn corrections(&self) -> impl Iterator<Item = &'static Correction> {
        self.corrections.iter().filter_map(|id| correction(id))
    }
}

/// There is no such profile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no profile `{name}`{}", nearest_are(.nearest))]
pub struct UnknownProfile {
    /// What was asked for.
    pub name: String,
    /// Those that were perhaps meant, most likely first.
    pub nearest: Vec<String>,
}

fn nearest_are(nearest: &[String]) -> String {
    let quoted: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { String::new() } else { format!("; perhaps {} was meant", quoted.join(" or ")) }
}

/// All profiles, guide by guide.
pub fn all() -> impl Iterator<Item = &'static Profile> {
    Book::ALL.into_iter().flat_map(|book| book.profiles())
}

/// The profile of this name; `_` and capitals are taken as they are meant.
pub fn profile(name: &str) -> Result<&'static Profile, UnknownProfile> {
    let wanted = name.to_ascii_lowercase().replace('_', "-");
    let unknown = || {
        let nearest = nearest(&wanted, all().map(|profile| profile.name.as_str()));
        UnknownProfile { name: name.to_string(), nearest }
    };
    all().find(|profile| profile.name == wanted).ok_or_else(unknown)
}

/// Up to three of `known` that are like `name`, most alike first.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut alike: Vec<(f64, &str)> =
        known.into_iter().map(|known| (strsim::jaro_winkler(name, known), known)).collect();
    alike.retain(|(likeness, _)| *likeness > 0.8);
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    alike.into_iter().take(3).map(|(_, known)| known.to_string()).collect()
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        wrapped(f, "  guide    ", &format!("{}, {}", self.guide, self.title))?;
        wrapped(f, "  machine  ", &self.machine)?;
        wrapped(f, "  trainer  ", &self.trainer)?;
        writeln!(f, "\nsettings (guide)")?;
        for (knob, value) in &self.settings {
            wrapped(f, &format!("  {:<20} ", knob.name()), &value.to_string())?;
        }
        if !self.own.is_empty() {
            writeln!(f, "\nin the guide's words")?;
        }
        for (key, value) in &self.own {
            wrapped(f, &format!("  {key:<28} "), value)?;
        }
        if !self.figures.is_empty() || !self.claims.is_empty() {
            writeln!(f, "\nfigures (guide: neither computed nor measured)")?;
        }
        for (what, value) in &self.figures {
            wrapped(f, &format!("  {what:<20} "), value)?;
        }
        for (what, span) in &self.claims {
            wrapped(f, &format!("  {what:<20} "), &span.to_string())?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "\nnotes")?;
        }
        for note in &self.notes {
            wrapped(f, "  ", note)?;
        }
        if !self.corrections.is_empty() {
            writeln!(f, "\ncorrections (A: it fails or misleads, B: a wrong number or reason, C: ambiguous)")?;
        }
        for correction in self.corrections() {
            let head = format!("  {:<9} {}  ", correction.id, correction.severity);
            wrapped(f, &format!("{head}guide: "), &correction.claim)?;
            wrapped(f, &format!("{}true:  ", " ".repeat(head.len())), &correction.truth)?;
        }
        Ok(())
    }
}

/// Writes text after a head, further lines below the text.
fn wrapped(f: &mut fmt::Formatter<'_>, head: &str, text: &str) -> fmt::Result {
    let indent = head.chars().count();
    let mut line = head.to_string();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(f, "{}", line.trim_end())?;
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(f, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_shows_what_is_wrong_with_it_beside_its_settings() {
        let page = profile("immers-4gpu-aggressive").unwrap().to_string();
        assert!(page.contains("  accumulation         2\n"), "{page}");
        assert!(page.contains("figures (guide"), "{page}");
        assert!(page.contains("C-000-6   A  guide: ACCUM=2 is the best option for Piper\n"), "{page}");
        assert!(page.contains("true:  Piper optimises by hand"), "{page}");
    }

    #[test]
    fn no_line_of_a_page_is_too_wide() {
        for profile in all() {
            let page = profile.to_string();
            assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
        }
    }

    #[test]
    fn an_unknown_name_gives_the_nearest() {
        let unknown = profile("rtx3060-prodution").unwrap_err();
        assert_eq!(unknown.nearest[0], "rtx3060-production");
        assert!(
            unknown.to_string().starts_with("there is no profile `rtx3060-prodution`; perhaps `rtx3060-production`")
        );
        assert!(profile("zzz").unwrap_err().nearest.is_empty());
        assert_eq!(profile("QWEN_stage3").unwrap().name, "qwen-stage3");
    }

    #[test]
    fn names_are_unique_and_typeable() {
        let mut names: Vec<&str> = all().map(|profile| profile.name.as_str()).collect();
        let typeable = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        assert!(names.iter().all(typeable), "{names:?}");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn profiles_of_a_version_are_what_its_rules_decide() {
        use crate::guide::policy::{Snapshot, version};
        use crate::knob::{Knob, Value};
        let mut compared = 0;
        for profile in all() {
            let Some(version) = profile.version.as_deref().map(|name| version(name).expect(name)) else { continue };
            let count = |knob| profile.settings.get(&knob).and_then(Value::count);
            let available = version.borders().last().unwrap_or(13.0) - 0.1;
            let decided = version.decide(Snapshot { available, gpus: 3, accumulation: 2, batch: 32 });
            assert_eq!(count(Knob::Workers), Some(decided.workers), "{}", profile.name);
            assert_eq!(profile.settings[&Knob::PinMemory].on(), Some(decided.pin_memory), "{}", profile.name);
            for (knob, decided) in [
                (Knob::Batch, Some(decided.batch)),
                (Knob::EvalBatch, Some(decided.eval_batch)),
                (Knob::Accumulation, decided.accumulation),
            ] {
                if let Some(set) = count(knob) {
                    assert_eq!(Some(set), decided, "{} {knob}", profile.name);
                    compared += 1;
                }
            }
        }
        assert!(compared >= 12);
    }
}
