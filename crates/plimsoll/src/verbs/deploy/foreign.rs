//! Somebody else's trainer under our guard: its estimate for this or a recorded machine, its command with the settings of a
//! profile, its folders.

use std::path::Path;

use plimsoll_deploy::{Grace, Hardware, Kind, Limit, Stop, hardware};
use plimsoll_launch::guide::Correction;
use plimsoll_launch::{Knob, Settings};
use plimsoll_machine::Bytes;

use super::Planned;
use super::folders::Folders;
use super::said::Said;
use super::wants::wants;
use crate::args::{DeployArgs, ForeignFlags, JobFlags};
use crate::launch::{Charge, Fitted, Ready, Recorded, fit};
use crate::render::{self, Exit, Fail, OrFail};
use crate::verbs::guided::{adopt, elsewhere, profile_for};
use crate::verbs::run::{allow, charge_of, pairs, settings};

/// What plimsoll itself takes beside the trainer.
const OWN: Bytes = Bytes::mib(64);
/// The least of `/dev/shm` where processes hand batches or messages to each other there.
const SHM: Bytes = Bytes::gib(1);

/// Flags of a job that a foreign trainer has too.
const SHARED: [&str; 3] = ["ram", "vram", "stop-within"];
/// Flags of a trainer that are not for `plimsoll run`: they are in the file, or in the command.
const WRITTEN: [&str; 5] = ["set", "machine", "profile", "cards", "cores"];

/// Plans the command.
pub fn planned(args: &DeployArgs) -> Result<Planned, Fail> {
    let said = Said::again()?;
    if let Some(flag) = said.flags::<JobFlags>(|name| !SHARED.contains(&name))?.first() {
        let flag = flag.split('=').next().unwrap_or(flag);
        return Err(Fail::usage(format!("`{flag}` is for a job of our own, and a command stands behind `--`")));
    }
    let flags = &args.foreign;
    let machine = flags.machine.as_deref().map(Recorded::read).transpose()?;
    let profile = flags.profile.as_deref().map(|name| profile_for(name, machine.as_ref())).transpose()?;
    let mut charge = charge_of_args(args)?;
    elsewhere(&mut charge, machine.as_ref(), profile);
    if charge.words.is_empty() {
        return Err(Fail::usage("there is no command to run; expected one behind `--`"));
    }
    let mut notes = profile.map_or(Ok(Vec::new()), |profile| adopt(&mut charge, profile))?;
    if let Some(profile) = profile {
        notes.extend(profile.figures.iter().map(|(what, figure)| format!("guide: {what}: {figure}")));
        let corrected = |it: &Correction| format!("{}: the guide says: {}. True is: {}.", it.id, it.claim, it.truth);
        notes.extend(profile.corrections().map(corrected));
    }
    if let Some(file) = &flags.machine {
        notes.push(format!("Planned for the machine in {}.", file.display()));
    }
    let fitted = fit(&charge, !charge.as_is)?;
    if let Some(short) = &fitted.short {
        let sure = if short.certain { "it does not fit" } else { "it may not fit" };
        let fact = format!("{sure}: {} are expected, {} are there; {}", short.needs, short.there, short.bottom);
        if short.certain && !charge.as_is {
            return Err(Fail::new(Exit::DoesNotFit, anyhow::anyhow!(fact)));
        }
        render::talk(fact);
    }
    notes.extend(fitted.steps.iter().map(|step| format!("One step down to make it fit: {step}.")));
    let ready = Ready::new(Path::new("."), &charge, &fitted.over, None)?;
    let memory = memory(&fitted, args.job.ram, machine.as_ref())?;
    let (command, set) = baked(&charge, &ready, &fitted);
    let mut words = vec!["run".to_string()];
    words.extend(said.flags::<ForeignFlags>(|name| !WRITTEN.contains(&name))?);
    words.extend(said.flags::<JobFlags>(|name| SHARED.contains(&name))?);
    words.extend(set.iter().map(|(knob, value)| format!("--set={knob}={value}")));
    let mut folders = Folders::default();
    folders.written(&charge.folder)?;
    folders.named(&command)?;
    charge.shape.iter().chain(&charge.trainer_files).try_for_each(|path| folders.read(path))?;
    let Hardware { cards, cores, ranks } = hardware(wants(flags, &charge, &ready, machine.as_ref(), profile));
    let workers = ready.count(Knob::Workers).unwrap_or(0);
    let within = ready.command.layers().map(|layer| layer.stop.within_seconds).max().unwrap_or(30);
    Ok(Planned {
        kind: Kind::Foreign,
        name: profile.map_or(ready.command.trainer.name.clone(), |profile| profile.name.clone()),
        notes,
        words,
        image: format!("plimsoll-{}", ready.command.trainer.name),
        memory,
        shm: (workers > 0 || ranks > 1).then(|| shm(&fitted)),
        cards,
        cores,
        saves: ready.command.layers().any(|layer| layer.stop.saves),
        grace: Grace::of(Stop::Within { seconds: charge.stop_within.unwrap_or(within) }),
        urls: urls_in(&command),
        command,
        folder: charge.folder,
        folders,
    })
}

fn charge_of_args(args: &DeployArgs) -> Result<Charge, Fail> {
    let flags = &args.foreign;
    Ok(Charge {
        flags: pairs(&flags.knob)?.into_iter().collect(),
        resume_flag: flags.resume_flag.clone(),
        checkpoints: flags.checkpoints.clone(),
        set: settings(&flags.set)?,
        allow: allow(&flags.allow)?,
        ram: args.job.ram,
        vram: args.job.vram,
        length: flags.length,
        on_card: flags.cards.map(|cards| cards > 0),
        shape: flags.shape.as_deref().map(|path| fs_err::canonicalize(path).or_usage()).transpose()?,
        as_is: flags.as_is,
        stop_within: args.job.stop_within.map(|count| count.0),
        ..charge_of(flags.trainer.as_deref(), &args.command)?
    })
}

/// URLs in words, whether a flag stands before them or not.
fn urls_in(words: &[String]) -> Vec<String> {
    let value = |word: &String| {
        word.split_once('=')
            .filter(|(flag, _)| flag.starts_with('-'))
            .map_or(word.clone(), |(_, value)| value.to_string())
    };
    words.iter().map(value).filter(|word| word.contains("://")).collect()
}

/// RAM: what the trainer takes at most, and what we take; as far as it was asked for and the machine has it.
fn memory(fitted: &Fitted, asked: Option<Bytes>, machine: Option<&Recorded>) -> Result<Limit, Fail> {
    let limit = match (&fitted.forecast, asked) {
        (Ok(forecast), _) => Limit::over(forecast.host.safe + OWN, "the estimate's safe RAM, with plimsoll's own"),
        (Err(_), Some(asked)) => Limit::over(asked, "the RAM of `--ram`"),
        (Err(why), None) => {
            let fail = Fail::usage(format!("how much RAM it takes is not known: {why}"));
            return Err(fail.hint("or say what it may take: `--ram SIZE`"));
        }
    };
    let asked = asked.map(|asked| Limit::over(asked + OWN, "").bytes());
    let there = asked.or(fitted.ram.map(Limit::whole)).into_iter().chain(machine.map(|machine| machine.usable)).min();
    Ok(there.map_or(limit.clone(), |there| limit.within(there)))
}

/// What loader processes and ranks hand to each other through memory.
fn shm(fitted: &Fitted) -> Bytes {
    let in_flight = fitted.forecast.as_ref().ok().and_then(|forecast| forecast.host.part("batches in flight"));
    let twice = in_flight.map_or(Bytes::ZERO, |part| part.most + part.most);
    Bytes(SHM.max(twice).0.next_multiple_of(1 << 20))
}

/// The command with its settings in it, where they are flags of its own; else the user's command, and what `--set` must say.
fn baked(charge: &Charge, ready: &Ready, fitted: &Fitted) -> (Vec<String>, Settings) {
    let edited = &ready.edited;
    match edited.copies.is_empty() && edited.cut.is_none() && edited.env.is_empty() {
        true => (edited.words.clone(), Settings::new()),
        false => (charge.words.clone(), fitted.over.clone()),
    }
}
