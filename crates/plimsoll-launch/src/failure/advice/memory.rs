//! Advice where memory was short, on the host or on a card.

use super::super::cuda::CudaReport;
use super::super::kind::{Killer, Victim};
use super::{Abilities, Advice, count, on, say, set, word};
use crate::knob::{Knob, Settings};

/// After a kill for want of host memory. What helps first is what changes no result.
pub(super) fn host(by: &Killer, victim: Victim, settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let mut out = Vec::new();
    if victim == Victim::Compiler {
        out.push(say(
            "build the extension once outside the memory limit, then start again: it is kept and not built twice",
        ));
        out.push(say("or let it build with one compiler at a time: `MAX_JOBS=1`"));
        return out;
    }
    out.extend(loaders(settings, victim));
    if on(settings, Knob::PinMemory) == Some(true) {
        out.push(set(
            "switch pinned memory off: pinned blocks are rounded up to powers of two and cannot be swapped",
            Knob::PinMemory,
            false,
        ));
    }
    for (knob, what) in [(Knob::OffloadOptimizer, "the optimizer's state"), (Knob::OffloadParams, "parameters")] {
        if word(settings, knob) == Some("cpu") {
            out.push(say(format!(
                "{what} lie in host memory because `{knob}` is `cpu`: if the card has room, keep them there"
            )));
        }
    }
    if count(settings, Knob::SanitySteps) == Some(0) {
        out.push(set(
            "let the sanity check before the first step run: validation loaders that fork before training stay small",
            Knob::SanitySteps,
            2,
        ));
    }
    out.extend(smaller_batch(settings, can, "host memory depends on it the least"));
    out.push(match by {
        Killer::Cgroup => say("or raise the memory limit of the cgroup, container or job"),
        Killer::Host => say("or end what else uses memory on the machine, or add swap for what can be paged out"),
        Killer::Daemon { name } => {
            say(format!("or tell `{name}` to spare the training: it acts before memory is gone"))
        }
    });
    out
}

/// Fewer loader processes and fewer batches in flight.
pub(super) fn loaders(settings: Option<&Settings>, victim: Victim) -> Vec<Advice> {
    let mut out = Vec::new();
    let why = if victim == Victim::Loader {
        "it was a loader process that was killed"
    } else {
        "each loader process copies what it touches of the dataset"
    };
    match count(settings, Knob::Workers) {
        Some(0) => {}
        Some(workers) => {
            let fewer = workers / 2;
            out.push(set(format!("use fewer loader processes ({workers} now): {why}"), Knob::Workers, fewer));
        }
        None => out.push(say(format!("use fewer loader processes: {why}"))),
    }
    if let Some(prefetch) = count(settings, Knob::Prefetch)
        && prefetch > 1
        && count(settings, Knob::Workers) != Some(0)
    {
        let text = format!("let each loader process hold fewer batches ready ({prefetch} now)");
        out.push(set(text, Knob::Prefetch, prefetch / 2));
    }
    out
}

/// After a card ran out.
pub(super) fn card(report: Option<&CudaReport>, settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let figures = match report {
        Some(CudaReport { requested: Some(asked), free: Some(free), total: Some(total), .. }) => {
            format!("{asked} were asked for, {free} of {total} were free")
        }
        Some(CudaReport { requested: Some(asked), .. }) => format!("{asked} were asked for"),
        _ => "the activations of a smaller one are smaller".to_string(),
    };
    let mut out = smaller_batch(settings, can, &figures);
    if can.checkpointing && on(settings, Knob::Checkpointing) != Some(true) {
        let text = "compute activations twice instead of keeping them: the same result, about a fifth slower";
        out.push(set(text, Knob::Checkpointing, true));
    }
    if can.attention && word(settings, Knob::Attention) == Some("eager") {
        let text = "use fused attention: the matrix of all pairs of tokens is not kept";
        out.push(set(text, Knob::Attention, "sdpa"));
    }
    if can.precision && word(settings, Knob::Precision).is_none_or(|precision| precision == "fp32") {
        let text = "train in mixed precision: activations take half the room; weights and optimizer stay as they are";
        out.push(set(text, Knob::Precision, "bf16-mixed"));
    }
    if can.length {
        match count(settings, Knob::Length) {
            Some(length) if length > 1 => {
                let text = format!("cut samples shorter ({length} now), which changes what is learnt");
                out.push(set(text, Knob::Length, length / 2));
            }
            _ => out.push(say("cut samples shorter, which changes what is learnt")),
        }
    } else if can.clip_length {
        out.push(say(
            "leave out the longest clips: the longest one of a batch decides its memory, more than the batch does",
        ));
    }
    if can.zero {
        match count(settings, Knob::ZeroStage) {
            Some(stage) if stage < 3 && count(settings, Knob::Processes).is_some_and(|ranks| ranks > 1) => {
                let text = format!("share more among the ranks: ZeRO stage {} instead of {stage}", stage + 1);
                out.push(set(text, Knob::ZeroStage, stage + 1));
            }
            _ => {}
        }
    }
    out
}

/// Half the micro-batch, and twice the accumulation where the trainer can.
fn smaller_batch(settings: Option<&Settings>, can: &Abilities, why: &str) -> Vec<Advice> {
    let Some(batch) = count(settings, Knob::Batch) else {
        return vec![if can.accumulate {
            say(format!("halve the micro-batch and double the accumulation, which keeps the effective batch ({why})"))
        } else {
            say(format!("halve the batch; the trainer does not accumulate, so the result changes ({why})"))
        }];
    };
    if batch <= 1 {
        return Vec::new();
    }
    // The effective batch stays what it was: the micro-batch goes down by its smallest factor.
    let factor = (2..=batch).find(|factor| batch % factor == 0).unwrap_or(batch);
    if can.accumulate {
        let steps = count(settings, Knob::Accumulation).unwrap_or(1).saturating_mul(factor);
        let smaller = batch / factor;
        return vec![
            set(format!("micro-batch {smaller} instead of {batch} ({why})"), Knob::Batch, smaller),
            set(format!("and accumulate {steps} of them, which keeps the effective batch"), Knob::Accumulation, steps),
        ];
    }
    let text = format!(
        "batch {} instead of {batch} ({why}); the trainer does not accumulate, so the result changes",
        batch / 2
    );
    vec![set(text, Knob::Batch, batch / 2)]
}

/// After the card had the memory in pieces.
pub(super) fn fragments(report: Option<&CudaReport>, settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let mut out = Vec::new();
    let set_already = word(settings, Knob::Segments) == Some("expandable");
    if can.segments && !set_already {
        let text = "let the allocator grow its segments: `PYTORCH_ALLOC_CONF=expandable_segments:True` (older \
                    torch: `PYTORCH_CUDA_ALLOC_CONF`), set before the program starts";
        out.push(set(text, Knob::Segments, "expandable"));
    }
    if report.is_some_and(|report| report.had_more_free() && !report.had_it_in_pieces()) {
        out.push(say(
            "more was free than was asked for: look for a cap on this process's share of the card; on Windows the \
             driver counts what the desktop may need",
        ));
    }
    out.extend(card(report, settings, can));
    out
}

/// After somebody else held the card's memory.
pub(super) fn neighbour(report: Option<&CudaReport>, settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let who = report.map_or(String::new(), |report| {
        let named: Vec<String> =
            report.others.iter().map(|other| format!("process {} holds {}", other.pid, other.held)).collect();
        if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
    });
    let mut out = vec![
        say(format!("others use that card{who}; ask whose they are (`nvidia-smi`), and let them end first")),
        say("or take another card: `CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=...`"),
    ];
    out.extend(card(report, settings, can));
    out
}

/// After an error that a full card often looks like.
pub(super) fn masked(settings: Option<&Settings>, can: &Abilities) -> Vec<Advice> {
    let mut out = vec![say(
        "look at the card's memory at that moment before anything else: this error also comes of a driver that does \
         not fit, and of wrong shapes",
    )];
    out.extend(smaller_batch(settings, can, "if the card was full, this is the cure"));
    out
}
