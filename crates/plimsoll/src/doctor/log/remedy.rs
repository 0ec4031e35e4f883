//! What to change after a death that only logs tell of. The trainer may be anybody's, so no value of ours is named.

use plimsoll_launch::failure::{self, Abilities, FailureKind};
use plimsoll_machine::Bytes;

use super::judge::Judged;
use super::{Of, Read};
use crate::doctor::advice::say;
use crate::doctor::diagnosis::Advice;
use crate::doctor::numbers::reported_limit;
use crate::doctor::sanitize::clean;

/// What to change, the most useful first.
pub fn advice(judged: &Judged, reads: &[Read]) -> Vec<Advice> {
    let mut out = Vec::new();
    let kernel = reads.iter().flat_map(|read| &read.scan.telling).filter(|line| line.telling.kernel);
    let kernel: Vec<&str> = kernel.map(|line| line.text.as_str()).collect();
    if let (FailureKind::HostOom { .. }, Some(limit)) = (&judged.failure.kind, reported_limit(&kernel.join("\n"))) {
        out.push(say(format!("raise the memory limit of {limit}, or make the run smaller")));
    }
    out.extend(sort_of_memory(judged));
    if let FailureKind::KilledUnproven { signal: 9 } | FailureKind::LoaderWorkerDied { signal: Some(9) | None } =
        judged.failure.kind
    {
        out.push(say(
            "137 and `Killed` do not say who killed: `dmesg -T > kernel.log`, then `plimsoll doctor LOG --dmesg \
             kernel.log`, before you change anything",
        ));
    }
    let others = judged.failure.card.iter().flat_map(|card| &card.others);
    if judged.failure.kind != FailureKind::CardNeighbour {
        out.extend(others.map(|other| {
            say(format!(
                "process {} holds {} of the same card: if it is not yours, ask whose it is",
                other.pid, other.held
            ))
        }));
    }
    let told = failure::advice(&judged.failure, None, &abilities(reads));
    out.extend(told.into_iter().map(|advice| Advice {
        text: clean(&advice.text),
        key: advice.knob.as_ref().map(|(knob, _)| knob.name()),
        value: advice.knob.map(|(_, value)| value.to_string()),
    }));
    out
}

/// What the trainer of a log can do, as far as its log shows which it is. Most can do most; Piper cannot accumulate.
fn abilities(reads: &[Read]) -> Abilities {
    let logs = reads.iter().filter(|read| read.of != Of::Kernel).flat_map(|read| &read.scan.gist);
    let has = |word: &str| logs.clone().any(|log| log.text.contains(word));
    let piper = has("piper/train/") || has("piper.train");
    Abilities {
        accumulate: !piper,
        clip: !piper,
        checkpointing: !piper,
        precision: true,
        length: false,
        clip_length: piper,
        attention: !piper,
        zero: has("deepspeed") || has("DeepSpeed"),
        resume: true,
        segments: true,
    }
}

/// Which sort of memory the victim held says where to save.
fn sort_of_memory(judged: &Judged) -> Option<Advice> {
    let resident = judged.kill.as_ref()?.resident?;
    let (shared, all) = (resident.shmem.unwrap_or_default(), resident.anon.saturating_add(resident.file));
    let all = all.saturating_add(shared);
    let most = |part: Bytes| part.0 > all.0 / 2;
    if most(shared) {
        let text =
            format!("{shared} of {all} were shared: pinned memory or /dev/shm; use less pinning or fewer loaders");
        return Some(say(text));
    }
    most(resident.anon).then(|| {
        let held = resident.anon;
        say(format!(
            "{held} of {all} were heap: a smaller micro-batch, fewer loader processes, or less offloaded to RAM"
        ))
    })
}
