//! Advice that is mostly words: settings, files, peers, faults.

use super::super::kind::FailureKind;
use super::super::{Culprit, Failure};
use super::{Abilities, Advice, count, memory, say, set, word};
use crate::failure::kind::Victim;
use crate::knob::{Knob, Settings};

/// Piper's aligner, which its published package lacks.
const ALIGNER: &str = "piper.train.vits.monotonic_align.monotonic_align";

pub(super) fn refused(settings: Option<&Settings>) -> Vec<Advice> {
    let mut out = vec![say(
        "the memory was refused, not used up: look at `ulimit -v` and `vm.overcommit_memory`, on Windows at the size of \
         the paging file",
    )];
    out.extend(memory::loaders(settings, Victim::Unknown));
    out
}

pub(super) fn shared_memory(settings: Option<&Settings>) -> Vec<Advice> {
    let mut out = vec![say(
        "give it more shared memory: `docker run --shm-size=8g` (the default is 64 MiB), or a larger `/dev/shm`; it is \
         RAM and counts against the limit",
    )];
    if count(settings, Knob::Workers) != Some(0) {
        out.push(set("or load in the training process itself", Knob::Workers, 0));
    }
    out
}

pub(super) fn loader(signal: Option<i32>, settings: Option<&Settings>) -> Vec<Advice> {
    let mut out = Vec::new();
    if signal.is_none_or(|signal| signal == 9) {
        out.push(say(
            "who killed it is not known: look at the kernel's log of that time (`dmesg -T`) before anything is changed",
        ));
    }
    if count(settings, Knob::Workers) != Some(0) {
        let text = "load in the training process itself once: an error in the dataset is then told with its place";
        out.push(set(text, Knob::Workers, 0));
    }
    out
}

pub(super) fn not_finite(settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let mut out = vec![say("lower the learning rate, and look at the data of that step")];
    if can.precision && word(settings, Knob::Precision).is_some_and(|precision| precision.starts_with("fp16")) {
        let text = "use bf16 instead of fp16: the same memory, and the range of fp32";
        out.push(set(text, Knob::Precision, "bf16-mixed"));
    }
    if can.clip {
        out.push(say("clip gradients"));
    }
    out
}

/// What to say of the other kinds.
pub(super) fn of(kind: &FailureKind, failure: &Failure) -> Vec<Advice> {
    let rank = failure.culprit.as_ref().map_or("the rank that was silent first".to_string(), Culprit::to_string);
    match kind {
        FailureKind::Completed => Vec::new(),
        FailureKind::Stopped => vec![say("nothing is wrong")],
        FailureKind::TooManyFiles => vec![
            say("raise the limit of open files before the start: `ulimit -n 65536`"),
            say("or share tensors by name: `torch.multiprocessing.set_sharing_strategy('file_system')`"),
        ],
        FailureKind::CardLost => vec![
            say(
                "no setting cures that: look at `nvidia-smi -q -d ECC,PAGE_RETIREMENT` and at the `Xid` lines in `dmesg`",
            ),
            say("take another card, or restart the machine; if it happens on one card again, have it replaced"),
        ],
        FailureKind::RankDied { .. } => {
            vec![say(format!("read the log of {rank}: with `torchrun --log-dir DIR --tee 3` each rank writes its own"))]
        }
        FailureKind::PeerLost => vec![say(
            "what was seen are echoes; the rank that was silent first has the cause: keep a log of each rank \
             (`torchrun --log-dir DIR --tee 3`)",
        )],
        FailureKind::Stalled { .. } => vec![
            say(format!("see what {rank} does: `py-spy dump --pid PID`")),
            say("a process in state T goes on with `kill -CONT PID`; a debugger or Ctrl-Z stops one"),
        ],
        FailureKind::PortInUse => vec![
            say("see who listens there: `ss -ltnp`; ranks of an earlier run outlive their launcher"),
            say("or take another port: `--master_port`, `--main_process_port`, or 0 for any"),
        ],
        FailureKind::BadCheckpoint => vec![
            say("go on from the newest checkpoint that is complete; a cut file comes of a save that was interrupted"),
            say("a ZeRO checkpoint needs the number of ranks that it was saved with"),
        ],
        FailureKind::NotRestored => vec![say(
            "it ran, but not from its checkpoint: stop it before it overwrites anything, and name the checkpoint \
             explicitly (DeepSpeed: `latest` or a tag; Hugging Face: `optimizer.pt` beside the weights)",
        )],
        FailureKind::BadSetting => vec![say(
            "put the named setting right: the line above says which; a trainer with manual optimization (Piper) takes \
             neither accumulation nor clipping",
        )],
        FailureKind::MissingModule { name } if name == ALIGNER => vec![say(
            "Piper's package lacks its aligner: build `monotonic_align` from Piper's source repository into that place",
        )],
        FailureKind::MissingModule { name } => vec![say(format!("install `{name}` where the trainer runs"))],
        FailureKind::CompilerKilled => vec![
            say("build the extension once before training, with one compiler at a time: `MAX_JOBS=1`"),
            say("a compiler of DeepSpeed's ops takes up to 2 GiB, and there is one per rank"),
        ],
        FailureKind::DiskFull => vec![say("free disk where checkpoints and caches are written, or write elsewhere")],
        FailureKind::IoError => {
            vec![say("look at the disk first: `dmesg`, `smartctl -a`; then copy what matters off it")]
        }
        FailureKind::BadData => vec![say("put the named file or row right")],
        FailureKind::KilledUnproven { signal: 15 } => vec![say("somebody asked it to stop: nothing else is known")],
        FailureKind::KilledUnproven { .. } => vec![
            say("a signal does not say who sent it: look at the kernel's log of that time before anything is changed"),
            say(
                "in a container or batch job its manager may know: `docker inspect`, `kubectl describe pod`, `sacct -j`",
            ),
        ],
        FailureKind::MachineLost => vec![say("nothing in the training is to blame")],
        FailureKind::Bug { place } => {
            vec![say(format!("the error is raised at `{place}`: read the lines above it in the log"))]
        }
        _ => vec![say("read the log of every rank: the one that is silent first is the one that died")],
    }
}
