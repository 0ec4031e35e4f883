//! What to change after a death of our own runs: it follows from the cause and its numbers alone. Pure.

use std::path::Path;

use plimsoll_machine::Bytes;
use plimsoll_recover::cause::Kind;

use super::after::is_numbered;
use super::case::JobFacts;
use super::diagnosis::{Advice, Lost};
use super::ending::Judged;
use super::numbers::{Limit, Numbers};
use super::sanitize::{clean, shell_word};
use super::when::Span;

/// Others count as neighbours when they hold more than this part of a limit (one tenth): below it, it is page tables
/// and rounding.
const NEIGHBOUR: u64 = 10;
/// A budget is set this part below what is there (one twentieth), as a re-plan does.
const MARGIN: u64 = 20;
/// Work lost at once from which saving more often is worth saying. The default saves every 15 minutes.
const MUCH_LOST: f64 = 20.0 * 60.0;

/// What to change, the most useful first.
pub fn advice(
    judged: &Judged,
    numbers: &Numbers,
    job: Option<&JobFacts>,
    lost: Option<&Lost>,
    run: &Path,
) -> Vec<Advice> {
    let mut out = match &judged.kind {
        Kind::KernelOomInOurCgroup => at_a_limit(numbers),
        Kind::KernelOomOfTheHost => on_a_short_machine(numbers),
        Kind::OomDaemon { name } => watchdog(name, numbers),
        Kind::KilledUnproven { .. } | Kind::Unknown => unproven(judged, numbers),
        Kind::DiskFull => disk(numbers, job, run),
        Kind::IoError => vec![
            say("look at the disk before anything else: the kernel's log (`dmesg`) and its health (`smartctl -a`)"),
            say(format!("then read every byte that was saved: plimsoll checkpoints {} --verify", shell_word(run))),
        ],
        Kind::BadData => vec![say("put the named file or setting right; a resume goes on behind what was done")],
        Kind::NonFinite => numbers_out_of_hand(numbers, job),
        Kind::Bug { .. } => vec![
            say(format!(
                "report it with the place above and the output of: plimsoll doctor {} --json",
                shell_word(run)
            )),
            say("a resume repeats the same steps: if it dies at the same step again, resuming once more will not help"),
        ],
        Kind::PowerOrReboot => vec![say("nothing in the run is to blame; it goes on from its last checkpoint")],
        Kind::CudaOutOfMemory => {
            vec![say("free the card (`nvidia-smi` shows who uses it), or lower the budget of VRAM")]
        }
        Kind::AllocationRefused => vec![say(
            "look for a limit on address space (`ulimit -v`) and for `vm.overcommit_memory = 2`: the memory was \
             refused, not used up",
        )],
        Kind::DoesNotFit => vec![say("`plimsoll plan` on the job prints what would make it fit")],
        Kind::StoppedByUser => Vec::new(),
    };
    if let Some(lost) = lost.filter(|lost| lost.seconds > MUCH_LOST) {
        let minutes = job.and_then(|job| job.save_minutes).map_or(15, |minutes| (minutes / 2).max(1));
        let text = format!("save more often: {} of work were lost at once", Span(lost.seconds));
        out.push(set(text, "train.save_minutes", minutes.to_string()));
    }
    out
}

fn at_a_limit(numbers: &Numbers) -> Vec<Advice> {
    let Numbers { planned, held, smallest, .. } = *numbers;
    let Some(limit) = &numbers.limit else {
        return vec![say(format!(
            "raise the memory limit{}, or set `budget.ram` below it; a resume plans anew under what there is then",
            planned.map_or(String::new(), |planned| format!(" above the plan's {planned}"))
        ))];
    };
    let whose = limit.of.as_ref().map_or(String::new(), |of| format!(" of `{of}`"));
    if limit.own {
        return vec![say(format!(
            "the run went over its own plan{}: that is a fault of the plan, not of the machine; please report it",
            planned.map_or(String::new(), |planned| format!(" of {planned} and over its guard of {}", limit.bytes))
        ))];
    }
    if let Some(held) = held
        && let Some(others) = neighbours(limit, held)
    {
        let room = Bytes(held.0 - held.0 / MARGIN);
        let mut out = vec![say(format!(
            "others share the limit{whose}: of {} the run held {held} and they held about {others}; end them or move \
             the run out of their cgroup",
            limit.bytes
        ))];
        if smallest.is_none_or(|smallest| smallest <= room) {
            out.push(set("or plan for what they leave", "budget.ram", as_budget(room)));
        }
        return out;
    }
    match planned {
        Some(planned) if planned > limit.bytes => vec![say(format!(
            "the limit{whose} is {}, the plan was {planned}: a resume plans anew under the limit, or raise it above \
             the plan",
            limit.bytes
        ))],
        Some(planned) => vec![say(format!(
            "the limit{whose} is {} and the plan was {planned}: leave more than {} beside the plan, by a higher limit \
             or a smaller `budget.ram`",
            limit.bytes,
            limit.bytes.saturating_sub(planned)
        ))],
        None => vec![say(format!("raise the limit{whose} above {}, or set `budget.ram` below it", limit.bytes))],
    }
}

/// What others held of a limit, where it is worth a word.
fn neighbours(limit: &Limit, held: Bytes) -> Option<Bytes> {
    let others = limit.bytes.saturating_sub(held);
    (others > Bytes(limit.bytes.0 / NEIGHBOUR)).then_some(others)
}

fn on_a_short_machine(numbers: &Numbers) -> Vec<Advice> {
    let mut out = Vec::new();
    if let (Some((left, ram)), Some(planned)) = (numbers.host, numbers.planned) {
        let others = ram.saturating_sub(left).saturating_sub(numbers.seen.unwrap_or(planned));
        out.push(say(format!(
            "the machine had {left} of {ram} left, the plan was {planned}, others used about {others}: end some of \
             them, or give the run less"
        )));
    } else {
        out.push(say("end what else uses memory, or give the run less"));
    }
    out.push(say("a resume plans anew under what the machine can give then; `budget.ram` caps it"));
    out
}

fn watchdog(name: &str, numbers: &Numbers) -> Vec<Advice> {
    let who = if name.is_empty() { "the watchdog".to_string() } else { format!("`{name}`") };
    let planned = numbers.planned.map_or(String::new(), |planned| format!(" (the plan was {planned})"));
    let first =
        format!("{who} acts before memory is gone: set `budget.ram` lower{planned}, or end what else uses memory");
    let second = match name {
        "systemd-oomd" => "or tell systemd to spare it: `systemd-run --user --scope -p ManagedOOMPreference=avoid ...`",
        "earlyoom" => "or tell earlyoom to spare it: `earlyoom --avoid plimsoll`",
        "kubelet" => "or raise the pod's memory request, so that the node keeps it free",
        "slurmstepd" => "or ask Slurm for more: `--mem`",
        _ => return vec![say(first)],
    };
    vec![say(first), say(second)]
}

fn unproven(judged: &Judged, numbers: &Numbers) -> Vec<Advice> {
    let evidence = &judged.evidence;
    let mut out = vec![say("if you or a script of yours ended it, nothing needs to change")];
    if evidence.kernel_log.is_none() && is_numbered(evidence) {
        out.push(say(
            "let the kernel's log be read next time: `sysctl kernel.dmesg_restrict=0`, or run `plimsoll doctor` as \
             root now, while the log still holds the time of the death",
        ));
    }
    if evidence.cgroup.is_none() && !numbers.own_cgroup {
        out.push(say(
            "give the run a cgroup of its own next time, whose counters tell an OOM kill from another: `systemd-run \
             --user --scope -p Delegate=yes plimsoll resume ...`",
        ));
    }
    if let Some((left, ram)) = numbers.host {
        out.push(say(format!("the machine had {left} of {ram} left at the last sample; that alone proves nothing")));
    }
    out
}

fn disk(numbers: &Numbers, job: Option<&JobFacts>, run: &Path) -> Vec<Advice> {
    let place = shell_word(run);
    let mut out = match (numbers.disk_needed, numbers.disk_free_now) {
        (Some(needed), Some(free)) if needed <= free => {
            vec![say(format!("there is room again: {free} are free at {place}, a save needs {needed}"))]
        }
        (Some(needed), Some(free)) => vec![say(format!(
            "free {} more on the disk of {place}: a save needs {needed}, {free} are free",
            needed.saturating_sub(free)
        ))],
        (None, Some(free)) => vec![say(format!("free disk at {place}: {free} are free there now"))],
        _ => vec![say(format!("free disk at {place}"))],
    };
    if let (Some(keep), Some(checkpoint)) = (job.map(|job| job.keep).filter(|keep| *keep > 1), numbers.checkpoint) {
        let text = format!("keep fewer checkpoints: each takes {checkpoint}, {keep} are kept now");
        out.push(set(text, "train.keep", "1".to_string()));
    }
    out
}

fn numbers_out_of_hand(numbers: &Numbers, job: Option<&JobFacts>) -> Vec<Advice> {
    let mut out = Vec::new();
    match numbers.finite {
        Some(finite) => {
            let norm = finite.grad_norm.map_or(String::new(), |norm| format!(", gradient norm {}", rate(norm)));
            let lr = if finite.lr > 0.0 { format!(", learning rate {}", rate(finite.lr)) } else { String::new() };
            out.push(say(format!(
                "the last sound step was {} with loss {:.4}{lr}{norm}; a resume alone computes the same again, so \
                 change something first",
                finite.step, finite.loss
            )));
        }
        None => out.push(say("no loss was ever finite: look at the weights that it began with, and at the data")),
    }
    if let Some(lr) = job.and_then(|job| job.lr) {
        let text = format!("lower the learning rate from {}", rate(lr));
        out.push(set(text, "train.optimizer.lr", rate(lr / 2.0)));
    }
    match job.map(|job| job.clip_norm) {
        Some(None) => out.push(set("clip gradients, which is off", "train.clip_norm", "1.0".to_string())),
        Some(Some(clip)) => {
            out.push(set(format!("clip gradients below {}", rate(clip)), "train.clip_norm", rate(clip / 2.0)))
        }
        None => {}
    }
    out
}

/// A rate as people and job files write it.
fn rate(value: f64) -> String {
    if (1e-4..1e4).contains(&value) { format!("{value}") } else { format!("{value:e}") }
}

/// After a stop for want of room, which was no death.
pub fn under_pressure(numbers: &Numbers) -> Vec<Advice> {
    let needs = match (numbers.planned, numbers.smallest) {
        (Some(planned), Some(smallest)) => format!("; the plan was {planned}, the smallest needs {smallest}"),
        (Some(planned), None) => format!("; the plan was {planned}"),
        _ => String::new(),
    };
    vec![say(format!("end what else takes the room, then go on: a resume plans anew under what there is{needs}"))]
}

/// Advice in words alone.
pub fn say(text: impl Into<String>) -> Advice {
    Advice { text: clean(&text.into()), key: None, value: None }
}

/// Advice that a key of the job carries out.
pub fn set(text: impl Into<String>, key: &'static str, value: String) -> Advice {
    Advice { text: clean(&text.into()), key: Some(key), value: Some(value) }
}

/// As a job file writes it, rounded down.
pub fn as_budget(bytes: Bytes) -> String {
    format!("\"{}MiB\"", (bytes.0 >> 20).max(1))
}
