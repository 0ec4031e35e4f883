//! What to change after a death that only a log tells of. The trainer may be anybody's, so no key of ours is named.

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Kind;

use super::judge::Judged;
use super::scan::Scan;
use crate::doctor::advice::say;
use crate::doctor::diagnosis::Advice;
use crate::doctor::numbers::reported_limit;

/// Share of a card's memory that may be lost to fragments before they are worth a word.
const FRAGMENTS: f64 = 0.05;

/// What to change, the most useful first.
pub fn advice(judged: &Judged, scan: &Scan) -> Vec<Advice> {
    let first = judged.finding.because.first().map_or("", |ground| ground.text.as_str());
    match &judged.kind {
        Kind::KernelOomInOurCgroup => {
            let kernel: Vec<&str> = scan.telling.iter().filter(|l| l.telling.kernel).map(|l| l.text.as_str()).collect();
            let limit = reported_limit(&kernel.join("\n")).map_or(String::new(), |limit| format!(" of {limit}"));
            let mut out = vec![say(format!("raise the memory limit{limit}, or make the run smaller"))];
            out.extend(sort_of_memory(judged));
            out
        }
        Kind::KernelOomOfTheHost => {
            let mut out = vec![say("end what else uses memory on that machine, or make the run smaller")];
            out.extend(sort_of_memory(judged));
            out
        }
        Kind::OomDaemon { name } => {
            vec![say(format!(
                "`{name}` acts before memory is gone: make the run smaller, or tell `{name}` to spare it"
            ))]
        }
        Kind::KilledUnproven { .. } => vec![
            say("137 and `Killed` do not say who killed: look at the kernel's log of that time (`dmesg -T > \
                 kernel.log`, then `plimsoll doctor kernel.log`) before you change anything"),
            say("in a container or batch job, its manager may know: `docker inspect`, `kubectl describe pod`, \
                 `sacct -j`"),
        ],
        Kind::CudaOutOfMemory => card(first),
        Kind::DiskFull if first.contains("shared memory") => {
            vec![say("give the container more shared memory (`docker run --shm-size`), or use fewer loader processes")]
        }
        Kind::DiskFull => {
            vec![say("free disk where the named file lies, or write elsewhere; then go on from a checkpoint")]
        }
        Kind::IoError => vec![say("look at the disk first: `dmesg`, `smartctl -a`; then copy what matters off it")],
        Kind::BadData => vec![say("put the named file or row right")],
        Kind::NonFinite => vec![say("lower the learning rate, clip gradients, and look at the data of that step")],
        Kind::Bug { place } => {
            vec![say(format!("the error is raised at `{place}`: read the lines above it in the log"))]
        }
        Kind::AllocationRefused => vec![say(
            "the system refused memory: look at `ulimit -v`, `vm.overcommit_memory` and at how much was asked for",
        )],
        Kind::PowerOrReboot => vec![say("nothing in the run is to blame; go on from its last checkpoint")],
        Kind::StoppedByUser => vec![say("nothing is wrong; go on from its last checkpoint, or ask for more time")],
        Kind::DoesNotFit => vec![say("`plimsoll plan` on the job prints what would make it fit")],
        Kind::Unknown => vec![say("look at the log of every rank: the one that is silent first is the one that died")],
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

/// The figures that PyTorch puts into its message.
fn card(line: &str) -> Vec<Advice> {
    let after = |mark: &str| line.split_once(mark).map(|(_, rest)| rest);
    let amount = |text: &str| {
        let mut words = text.split([' ', ',', ';']).filter(|word| !word.is_empty());
        let (number, unit) = (words.next()?, words.next()?.trim_end_matches('.'));
        format!("{number}{unit}").parse::<Bytes>().ok()
    };
    let asked = after("Tried to allocate ").and_then(amount);
    let free = after(" of which ").and_then(amount);
    let total = after("total capacity of ").and_then(amount);
    let lost = line
        .split_once(" is reserved by PyTorch but unallocated")
        .and_then(|(before, _)| amount(before.rsplit_once(" and ").map_or(before, |(_, amount)| amount)));
    let figures = match (asked, free, total) {
        (Some(asked), Some(free), Some(total)) => format!(": {asked} were asked for, {free} of {total} were free"),
        (Some(asked), _, _) => format!(": {asked} were asked for"),
        _ => String::new(),
    };
    let mut out = vec![say(format!(
        "halve the micro-batch and double the accumulation, which keeps the effective batch{figures}"
    ))];
    if let (Some(lost), Some(total)) = (lost, total)
        && lost.0 as f64 > total.0 as f64 * FRAGMENTS
    {
        out.push(say(format!(
            "{lost} of {total} were reserved and not used: fragments; try `PYTORCH_ALLOC_CONF=expandable_segments:True`"
        )));
    }
    // `Process 4711 has 3.50 GiB memory in use.`
    let neighbour = after("Process ").and_then(|rest| rest.split_once(" has ")).map(|(pid, _)| pid);
    if let Some(pid) = neighbour.filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())) {
        out.push(say(format!("another process ({pid}) uses the same card: end it or take another card")));
    }
    out
}
