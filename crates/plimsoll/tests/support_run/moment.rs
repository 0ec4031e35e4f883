//! When a run is struck: a moment counted in work that the run has done, never in seconds.
//!
//! A moment is waited for by looking at processes and files, a few thousand times a second. Where the run ends before it
//! comes, that is an answer, not a failure.

use std::path::Path;
use std::time::Duration;

use rustix::process::Pid;

use super::chance::Chance;
use super::trainer::Trainer;

/// Between two looks.
pub const BETWEEN: Duration = Duration::from_micros(200);

/// A moment in a run, counted from when it is first waited for.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// After so many looks: the supervisor begins, or inquires into a death, or the worker is being started.
    Looks(u64),
    /// When the worker has used so much processor time: planning, loading, steps.
    Work(Duration),
    /// When the journal has so many lines more.
    Lines(usize),
    /// When a checkpoint that is being written has so many files.
    Saving(usize),
    /// When an old checkpoint is being removed.
    Removing,
    /// So many looks after a step that is to be saved and evaluated.
    Evaluating { every: u64, looks: u64 },
    /// When the final model is being written.
    Finishing,
}

impl Moment {
    /// One of the sort that is the turn of `nth`, so that all sorts come in their share; in a run whose worker takes
    /// `life` of processor time undisturbed and evaluates `every` so many steps.
    pub fn any(nth: u64, chance: &mut Chance, life: Duration, every: u64) -> Moment {
        // 7 and 20 have no common factor: neighbours are of different sorts.
        match nth * 7 % 20 {
            0..=2 => Moment::Looks(chance.below(400)),
            3..=9 => Moment::Work(Duration::from_nanos(chance.below(life.as_nanos() as u64))),
            10..=11 => Moment::Lines(1 + chance.below(40) as usize),
            12..=15 => Moment::Saving(chance.below(5) as usize),
            16 => Moment::Removing,
            17..=18 => Moment::Evaluating { every, looks: chance.below(60) },
            _ => Moment::Finishing,
        }
    }

    /// Waits for it; whether it came before the run ended.
    pub fn wait(self, trainer: &mut Trainer) -> bool {
        let run = trainer.run().to_path_buf();
        let begun = lines(&run);
        let mut seen = 0;
        for look in 0.. {
            if trainer.has_ended() {
                return false;
            }
            let come = match self {
                Moment::Looks(looks) => look >= looks,
                Moment::Work(work) => trainer.find_worker().and_then(work_of).is_some_and(|done| done >= work),
                Moment::Lines(more) => lines(&run) >= begun + more,
                Moment::Saving(files) => folder(trainer, ".tmp-step-").is_some_and(|held| held >= files),
                Moment::Removing => folder(trainer, ".old-step-").is_some(),
                Moment::Evaluating { every, looks } => {
                    // Counted from the first look at which such a step is the last.
                    seen = if seen > 0 || awaits_evaluation(&run, every) { seen + 1 } else { 0 };
                    seen > looks
                }
                Moment::Finishing => run.join(".model.partial").exists(),
            };
            if come {
                return true;
            }
            std::thread::sleep(BETWEEN);
        }
        unreachable!("looks do not run out")
    }
}

/// The processor time that a process has used; `None` when it has ended.
pub fn work_of(pid: Pid) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: both calls only write the value that they are given room for.
    unsafe {
        if libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &mut clock) != 0 {
            return None;
        }
        let mut time = std::mem::zeroed::<libc::timespec>();
        let done = libc::clock_gettime(clock, &mut time);
        (done == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

fn lines(run: &Path) -> usize {
    let text = fs_err::read(run.join("journal.jsonl")).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// How many files a folder of this sort holds that is the present worker's, if there is one.
fn folder(trainer: &Trainer, prefix: &str) -> Option<usize> {
    let suffix = format!("-{}", trainer.find_worker()?.as_raw_nonzero());
    let ours = |name: &str| name.starts_with(prefix) && name.ends_with(&suffix);
    let entries = fs_err::read_dir(trainer.run().join("checkpoints")).ok()?;
    let found = entries.flatten().find(|entry| entry.file_name().to_str().is_some_and(ours))?;
    Some(fs_err::read_dir(found.path()).map_or(0, Iterator::count))
}

/// Whether the last line of the journal is that of a step that is evaluated.
pub fn awaits_evaluation(run: &Path, every: u64) -> bool {
    let text = fs_err::read_to_string(run.join("journal.jsonl")).unwrap_or_default();
    let last = text.lines().next_back().unwrap_or_default();
    let step =
        last.split_once("\"event\":\"step\",\"step\":").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
    step.is_some_and(|step: u64| step.is_multiple_of(every))
}
