//! `journal.jsonl`: what happened in a run, one JSON object a line, only ever appended to.
//!
//! Invariant: a record is one `write` of a whole line, so after any crash the file is valid up to its last line end; a
//! cut tail is reported by [`read`] and removed when the journal is next opened. Several processes may append.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fs_err as fs;
use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{EvalScores, WatchError, number};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A run began.
    RunStarted {
        /// The program's version.
        version: String,
        /// Which plan, as the checkpoint names it.
        plan: String,
        /// Steps to do.
        total_steps: u64,
        /// Samples per weight update.
        effective_batch: u64,
        /// Engine threads.
        threads: u64,
        /// The SIMD level that the kernels use.
        simd: String,
        /// The planned peak of RAM, all processes.
        planned_ram_bytes: Bytes,
        /// The planned peak of VRAM.
        #[serde(default)]
        planned_vram_bytes: Bytes,
        /// Anything else worth knowing.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        facts: Value,
    },
    /// A weight update was done.
    Step {
        /// Which, from 1.
        step: u64,
        /// Mean loss over its target tokens.
        #[serde(with = "number")]
        loss: f64,
        /// The learning rate that was used; 0 where the optimizer takes its own from step and weights.
        #[serde(with = "number")]
        lr: f64,
        /// The gradient's norm before clipping.
        #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
        grad_norm: Option<f64>,
        /// Real tokens in it, source and target.
        tokens: u64,
        /// Its wall time.
        #[serde(with = "number")]
        seconds: f64,
        /// Of it, waiting for data.
        #[serde(with = "number", default)]
        data_seconds: f64,
        /// Its rate.
        #[serde(with = "number")]
        tokens_per_second: f64,
        /// RAM in use after it, all processes.
        ram_bytes: Bytes,
    },
    /// A step whose loss or gradient was no finite number: weights and optimizer stay as they were before it.
    Skipped {
        /// Which, from 1.
        step: u64,
        /// What was not finite: `loss` or `gradient`.
        what: String,
        /// How many in a row, this one included.
        in_a_row: u64,
    },
    /// An evaluation was done.
    Eval {
        /// After which step.
        step: u64,
        /// Mean loss over the target tokens.
        #[serde(with = "number")]
        loss: f64,
        /// BLEU-4, 0 to 100, where answers were generated.
        #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
        bleu: Option<f64>,
        /// Share of answers that are exactly right, 0 to 1, where answers were generated.
        #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
        exact: Option<f64>,
        /// What else is known, of series.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scores: Option<EvalScores>,
        /// Its wall time.
        #[serde(with = "number")]
        seconds: f64,
    },
    /// A checkpoint is complete.
    Saved {
        /// After which step.
        step: u64,
        /// Where.
        path: PathBuf,
        /// Its length.
        bytes: Bytes,
        /// How long it took.
        #[serde(with = "number")]
        seconds: f64,
        /// Of it, how long the steps stood still.
        #[serde(with = "number", default)]
        waited_seconds: f64,
        /// Why then.
        #[serde(default)]
        reason: SaveReason,
    },
    /// A save was not done or failed; the run goes on, and older checkpoints stand.
    NotSaved {
        /// After which step.
        step: u64,
        /// Why.
        reason: String,
    },
    /// The run goes on from a checkpoint; what the journal says of later steps before this line is void.
    Resumed {
        /// The checkpoint's step.
        step: u64,
        /// The checkpoint.
        from: PathBuf,
    },
    /// The run stopped and can be resumed.
    Stopped {
        /// After which step.
        step: u64,
        /// Why.
        reason: String,
    },
    /// The run is done.
    Finished {
        /// How many.
        steps: u64,
        /// The last step's loss.
        #[serde(with = "number")]
        final_loss: f64,
        /// Wall time of this process's part of the run.
        #[serde(with = "number")]
        seconds: f64,
        /// The measured peak of RAM, all processes.
        peak_ram_bytes: Bytes,
        /// Why it ended before the last of its steps, where it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        early: Option<String>,
    },
    /// Something that the user should know and that stops nothing.
    Warning {
        /// After which step.
        step: u64,
        /// What.
        message: String,
    },
    /// The supervisor started a worker.
    WorkerStarted {
        /// Its number.
        pid: u32,
        /// Its numbers from the outermost visible PID namespace inwards.
        #[serde(default)]
        nspid: Vec<u32>,
        /// Which start of this supervisor, from 1.
        attempt: u64,
        /// The cap on RAM that it was given, below the job's budget.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cap: Option<Bytes>,
        /// Its own cgroup, as `/proc` names it, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// The machine's boot.
        #[serde(default)]
        boot_id: String,
        /// `oom_kill` of `/proc/vmstat` at that moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vmstat_oom_kill: Option<u64>,
    },
    /// The worker has a plan and goes to work under it.
    Planned {
        /// The planned peak of RAM, all processes.
        ram_bytes: Bytes,
        /// The budget that it was made for.
        budget_bytes: Bytes,
        /// The smallest plan with the same results.
        smallest_bytes: Bytes,
        /// Samples per micro-batch.
        micro_batch: u64,
        /// Micro-batches per update.
        accumulation: u64,
        /// Blocks computed twice.
        recompute: u64,
        /// Whether checkpoints are written in the background.
        snapshot: bool,
        /// The lines of the plan.
        parts: BTreeMap<String, Bytes>,
    },
    /// Memory and its surroundings at a telling moment.
    Sample {
        /// Which moment.
        at: Moment,
        /// After which step.
        step: u64,
        /// RAM in use, all processes.
        ram_bytes: Bytes,
        /// What was seen.
        #[serde(flatten)]
        seen: Seen,
    },
    /// The pressure on the run changed, and this was done.
    Pressure {
        /// After which step.
        step: u64,
        /// `fine`, `save_now`, `shrink`, `stop` or `grow`.
        answer: String,
        /// Why, for people.
        why: String,
        /// What it was decided from.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        inputs: Value,
    },
    /// A worker died, or failed.
    Incident {
        /// The last step that was done.
        step: u64,
        /// The step of the newest complete checkpoint; 0 for none.
        saved_step: u64,
        /// The kind of cause, such as `kernel_oom_in_our_cgroup`.
        kind: String,
        /// The cause in a few words.
        told: String,
        /// `proven`, `likely` or `unproven`.
        confidence: String,
        /// The facts, each with its source.
        because: Vec<String>,
        /// The whole evidence.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        evidence: Value,
    },
    /// What is done about an incident.
    Decided {
        /// `restart`, `replan` or `give_up`.
        decision: String,
        /// Why, for people.
        why: String,
        /// The cap that the next worker gets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cap: Option<Bytes>,
        /// What it was decided from.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        inputs: Value,
    },
    /// A worker's last words: an error that ended it, or a panic.
    Failed {
        /// After which step.
        step: u64,
        /// What.
        message: String,
        /// Where in the program, for a panic.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<String>,
    },
    /// A checkpoint, or the final model (no step), is whole at the mirror.
    Mirrored {
        /// The checkpoint's step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        /// Where, without credentials.
        url: String,
        /// Its length.
        bytes: Bytes,
        /// How long it took.
        #[serde(with = "number")]
        seconds: f64,
    },
    /// The mirror cannot be reached, or refuses; it is tried again.
    MirrorTrouble {
        /// What.
        message: String,
    },
    /// A foreign trainer was started with these words.
    Launched {
        /// Which start of this supervisor, from 1.
        attempt: u64,
        /// The trainer, and what launches it.
        trainer: String,
        /// The whole command.
        words: Vec<String>,
        /// What its environment got on top of ours.
        #[serde(default)]
        env: BTreeMap<String, String>,
        /// What it is set to, by our names.
        #[serde(default)]
        settings: BTreeMap<String, Value>,
        /// What differs from the user's own command, for people.
        #[serde(default)]
        changes: Vec<String>,
        /// The checkpoint that it goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<PathBuf>,
    },
    /// What a foreign trainer's log told of its progress.
    Progress {
        /// The step, as the trainer counts.
        step: u64,
        /// Steps to do, as the trainer counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
        /// The loss, where it was told.
        #[serde(with = "number::option", default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
    },
    /// The processes of a foreign trainer, and what each takes.
    Tree {
        /// What they take together that cannot be dropped.
        ram_bytes: Bytes,
        /// Each of them.
        processes: Vec<Member>,
    },
    /// Something that was asked of a foreign trainer, beside what really runs.
    Verified {
        /// What: `world`, `deepspeed`, `restored`.
        what: String,
        /// What was asked.
        asked: String,
        /// What was seen.
        seen: String,
        /// Whether that is the same.
        fine: bool,
    },
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// A process of a foreign trainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub pid: u32,
    /// What it does: `rank 0`, `loader of rank 0`, `launcher`, `compiler`, `helper`.
    pub role: String,
    /// In RAM, shared pages counted in full.
    pub rss_bytes: Bytes,
    /// Its fair share of RAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pss_bytes: Option<Bytes>,
    /// On the cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<Bytes>,
}

/// Why a checkpoint was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveReason {
    /// So many steps were done.
    #[default]
    Steps,
    /// So much time had passed.
    Time,
    /// An evaluation was next.
    BeforeEval,
    /// Memory or disk was running out.
    Pressure,
    /// The run was stopping.
    Exit,
    /// The last step was done.
    End,
}

/// A moment worth a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// The worker has planned and taken its memory.
    Start,
    /// Weights are there.
    ModelLoaded,
    /// After the first step of a process.
    FirstStep,
    /// Now and then.
    Steps,
    /// After an evaluation.
    Eval,
    /// After a save.
    Save,
    /// The supervisor's look, once in a while.
    Tick,
}

/// What a sample saw; what could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// What could still be taken, under all limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom_bytes: Option<Bytes>,
    /// The worker's swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<Bytes>,
    /// On the card, all included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<Bytes>,
    /// The machine's swapping, in and out, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swapping_bytes_per_second: Option<Bytes>,
    /// PSI `some avg10`, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_some: Option<f64>,
    /// PSI `full avg10`, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_full: Option<f64>,
    /// Free on the run folder's file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<Bytes>,
    /// What was measured of the lines of the plan.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, Bytes>,
}

/// An event and when it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Milliseconds since 1970, by the machine's clock.
    pub unix_ms: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    file: fs::File,
    line: Vec<u8>,
}

impl Journal {
    /// Starts the journal of a new run; one that is there already is refused.
    pub fn create(path: &Path) -> Result<Journal, WatchError> {
        Ok(Journal::on(fs::OpenOptions::new().append(true).create_new(true).open(path)?))
    }

    /// Opens a journal to go on with it, or starts it. A line that a crash cut is removed.
    pub fn append(path: &Path) -> Result<Journal, WatchError> {
        let mut file = fs::OpenOptions::new().read(true).append(true).create(true).open(path)?;
        // Others may be in the middle of a line.
        let locked = file.file().lock().is_ok();
        let length = file.metadata()?.len();
        let whole = whole_lines(&mut file, length)?;
        if whole < length {
            file.set_len(whole)?;
        }
        if locked {
            let _ = file.file().unlock();
        }
        Ok(Journal::on(file))
    }

    fn on(file: fs::File) -> Journal {
        Journal { file, line: Vec::with_capacity(4096) }
    }

    /// Appends one record, dated now. A disk that takes only a part of it is told to forget that part.
    pub fn record(&mut self, event: &Event) -> Result<(), WatchError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.line.clear();
        let record = RecordRef { unix_ms: now.as_millis() as u64, event };
        serde_json::to_writer(&mut self.line, &record).map_err(std::io::Error::from)?;
        self.line.push(b'\n');
        // The lock goes with the process; where there is none to be had, one `write` a line must do.
        let locked = self.file.file().lock().is_ok();
        let done = self.write_line();
        if locked {
            let _ = self.file.file().unlock();
        }
        done
    }

    fn write_line(&mut self) -> Result<(), WatchError> {
        let written = self.file.write(&self.line)?;
        if written < self.line.len() {
            let length = self.file.metadata()?.len();
            self.file.set_len(length.saturating_sub(written as u64))?;
            return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
        }
        Ok(())
    }

    /// Brings what was recorded to the disk, for the moments that must survive a power cut.
    pub fn sync(&self) -> Result<(), WatchError> {
        Ok(self.file.sync_data()?)
    }
}

#[derive(Serialize)]
struct RecordRef<'a> {
    unix_ms: u64,
    #[serde(flatten)]
    event: &'a Event,
}

/// What a journal holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Its records, in order.
    pub records: Vec<Record>,
    /// The last line, if a crash cut it.
    pub cut: Option<Cut>,
}

/// A last line without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Line, from 1.
    pub line: usize,
    /// What there is of it.
    pub bytes: Bytes,
}

/// Reads a journal, of a live run or a dead one.
pub fn read(path: &Path) -> Result<Reading, WatchError> {
    let mut from = BufReader::new(fs::File::open(path)?);
    let (mut records, mut text) = (Vec::new(), Vec::new());
    for line in 1.. {
        text.clear();
        if from.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.last() != Some(&b'\n') {
            let cut = Cut { line, bytes: Bytes(text.len() as u64) };
            return Ok(Reading { records, cut: Some(cut) });
        }
        let record = serde_json::from_slice(&text).map_err(|error| WatchError::NotARecord {
            path: path.to_path_buf(),
            line,
            found: String::from_utf8_lossy(&text[..text.len().min(60)]).trim_end().escape_debug().to_string(),
            problem: error.to_string(),
        })?;
        records.push(record);
    }
    Ok(Reading { records, cut: None })
}

/// The last records of a journal, as many as lie whole within its last `most` bytes; what is no record is passed over.
pub fn last(path: &Path, most: Bytes) -> Result<Vec<Record>, WatchError> {
    let mut file = fs::File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(most.0);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(most.0).read_to_end(&mut text)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let first = if start == 0 { 0 } else { text.iter().position(|&byte| byte == b'\n').map_or(whole, |end| end + 1) };
    let lines = text.get(first..whole).unwrap_or_default().split(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The length of `file` up to its last line end, looked for from the back.
fn whole_lines(file: &mut fs::File, length: u64) -> Result<u64, WatchError> {
    let mut block = [0; 4096];
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
