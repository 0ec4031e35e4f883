//! Plans with a guide's profile, for this machine or a recorded one: its settings laid below those that were given, and its figures
//! beside the computed ones.

use std::path::PathBuf;

use plimsoll_launch::Knob;
use plimsoll_launch::guide::beside::{self, Beside, Computed};
use plimsoll_launch::guide::{self, Profile};
use plimsoll_machine::Bytes;

use crate::launch::{Charge, Fitted, Recorded, fit, longest_of};
use crate::render::{Fail, OrFail};

/// The profile of this name; `guide` is the one that the guide means for the machine.
pub fn profile_for(name: &str, machine: Option<&Recorded>) -> Result<&'static Profile, Fail> {
    if name != "guide" {
        return guide::profile(name).or_usage().map_err(|fail| fail.hint("all names: plimsoll plan --profile list"));
    }
    let Some(machine) = machine else {
        return Err(Fail::usage(
            "`--profile guide` is the guide's profile for a machine; expected `--machine FILE` with it",
        ));
    };
    let cards = machine.cards.len() as u64;
    beside::meant_for(cards, machine.ram).ok_or_else(|| {
        let fact = format!("the guide has no profile for {cards} cards and {} of RAM", machine.ram);
        Fail::usage(fact).hint("it has some for 1 card and for 4; name one: plimsoll plan --profile list")
    })
}

/// Plans for a recorded machine, or for the server that a profile is for: what there is, unless it was said. Without a command it is the
/// guide's own.
pub fn elsewhere(charge: &mut Charge, machine: Option<&Recorded>, profile: Option<&Profile>) {
    let server = profile.and_then(|profile| profile.server);
    match (machine, server) {
        (Some(machine), _) => {
            charge.ram = charge.ram.or(Some(machine.budget()));
            charge.vram = charge.vram.or(machine.vram());
            charge.elsewhere = Some(!machine.cards.is_empty());
        }
        (None, Some(server)) => {
            // A guide's GB are the smaller ones, and a tenth of them is the system's.
            charge.ram = charge.ram.or(Some(Bytes((server.ram.0 * 0.9e9) as u64)));
            charge.elsewhere = Some(server.cards > 0);
        }
        (None, None) => {}
    }
    if let Some(server) = server.filter(|_| charge.words.is_empty() && charge.trainer.is_none()) {
        let (words, command) = beside::command(server.cards);
        charge.words = words;
        charge.folder = PathBuf::from(&command.folder);
    }
}

/// Lays a profile's settings below those that were given, without what the trainer refuses; what is worth saying of it.
pub fn adopt(charge: &mut Charge, profile: &Profile) -> Result<Vec<String>, Fail> {
    let command = charge.command()?;
    let all: Vec<String> = profile.settings.iter().map(|(knob, value)| format!("{knob} {value}")).collect();
    let mut notes = vec![
        format!("Profile {} of guide {}: {}.", profile.name, profile.guide, profile.machine),
        format!("Its settings: {}. What is the trainer's own default needs no flag.", all.join(", ")),
    ];
    for (knob, value) in &profile.settings {
        if charge.set.contains_key(knob) {
            continue;
        }
        if command.can_set(*knob, &charge.folder) {
            charge.set.insert(*knob, value.clone());
        } else if value.count() != Some(1) {
            notes.push(format!("The guide's {knob} {value} is left out: {} does not take it.", command.trainer.name));
        }
    }
    if charge.length.is_none() && profile.server.is_some() && longest_of(&command, &charge.folder).is_none() {
        let length = beside::command(1).1.length;
        charge.length = Some(length);
        notes.push(format!("Samples of {length} s are assumed; `--length N` says otherwise."));
    }
    Ok(notes)
}

/// The guide's table for its servers beside what is computed; none for a profile of another guide. `base` is the charge before the profile was
/// adopted, `fitted` what came of it after.
pub fn beside_of(base: &Charge, profile: &'static Profile, fitted: &Fitted) -> Option<Beside> {
    let table = fitted.forecast.as_ref().ok().map(|forecast| &forecast.host);
    beside::beside(profile, fitted.ram, table, |row| {
        let unknown = |why: String| Computed::Unknown { why };
        computed(base, row).unwrap_or_else(|fail| unknown(fail.fact.map_or(String::new(), |fact| fact.to_string())))
    })
}

fn computed(base: &Charge, row: &'static Profile) -> Result<Computed, Fail> {
    let mut charge = base.clone();
    charge.set.clear();
    let command = charge.command()?;
    let refused = |knob: Knob| command.layers().find_map(|layer| layer.knobs.get(&knob)?.refused.clone());
    let beyond_one = row.settings.iter().filter(|(_, value)| value.count().is_some_and(|count| count > 1));
    if let Some(why) = beyond_one.into_iter().find_map(|(knob, _)| refused(*knob)) {
        return Ok(Computed::Refused { why });
    }
    adopt(&mut charge, row)?;
    let fitted = fit(&charge, false)?;
    Ok(match fitted.forecast {
        Ok(forecast) => Computed::Needs {
            expected: forecast.host.expected,
            safe: forecast.host.safe,
            vram: forecast.card.map(|card| card.expected),
            fits: fitted.short.is_none(),
        },
        Err(why) => Computed::Unknown { why },
    })
}
