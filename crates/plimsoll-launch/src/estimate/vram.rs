//! The memory of one card, by phase: what stays, and what each phase adds to it.
//!
//! Peak = what persists + the largest phase. Weights, gradients, moments, activations and logits follow from shapes;
//! context, workspaces and collectives are labelled defaults or measured facts. Nothing of the allocator is known but that
//! it cuts: a share of what comes and goes is lost to fragments, less with expandable segments.

use plimsoll_machine::Bytes;

use super::activation;
use super::table::{Figure, Memory, Part, Phase, PhaseName, Source, Table};
use super::terms::Terms;
use super::zero::{self, Offload};

/// What NCCL takes of a card with several ranks.
const COLLECTIVES: Bytes = Bytes::mib(256);
/// DDP's first bucket and those after it hold all gradients once more.
const DDP_BUCKET: Bytes = Bytes::mib(25);
/// Elements that stage 3 fetches ahead.
const PREFETCH: u64 = 50_000_000;

/// What a card of these terms holds. One rank, one card.
pub fn vram(terms: &Terms) -> Table {
    let states =
        zero::states(&terms.shape, terms.trainable, terms.optimizer, terms.precision, &terms.zero, terms.processes);
    let kept = activation::kept(terms);
    let (loss_forward, loss_backward) = activation::loss(terms, terms.batch);
    let evaluated = Terms { batch: terms.eval(), checkpointing: true, ..terms.clone() };
    let eval_layer = eval_layer(&evaluated);
    let (eval_loss, _) = activation::loss(&evaluated, terms.eval());

    let base = [
        Part::figure("context", terms.runtime.context),
        Part::figure("library workspaces", terms.runtime.workspaces),
        collectives(terms),
        Part::computed("weights", states.weights),
        Part::computed("LoRA weights", states.lora),
    ];
    let kept_between = [
        Part::computed("optimizer state", states.optimizer),
        Part::computed("master weights", states.master),
        buckets(terms, &states),
        live(terms),
    ];
    let gradients = Part::computed("gradients", states.gradients);
    // Gradients of earlier micro-batches, or of buckets that hold them, are there already in the forward pass.
    let carried = terms.accumulation > 1 || terms.processes > 1 || terms.zero.active();
    let activations = [
        Part::computed("activations", kept.layers.saturating_add(kept.ends)),
        Part::computed("attention matrices", kept.scores),
        Part::computed("recomputed layer", kept.recomputed),
        Part::computed("weight casts", kept.casts),
    ];
    let with = |name, extra: Vec<Part>, transient: Bytes, gradients: Option<&Part>| {
        let mut parts: Vec<Part> = base.iter().chain(&kept_between).cloned().collect();
        parts.extend(gradients.cloned());
        parts.extend(extra);
        parts.push(fragments(terms, transient));
        Phase::new(name, parts)
    };
    let and = |parts: &[Part], last: Part| parts.iter().cloned().chain([last]).collect::<Vec<_>>();

    let forward = and(&activations, Part::computed("logits", loss_forward));
    let backward = and(&activations, Part::computed("logits and their gradients", loss_backward));
    let trained = Bytes(terms.shape.trainable(terms.trainable).saturating_mul(4));
    // A fused or foreach step has temporaries of one group of parameters; ZeRO casts its share of the gradients up.
    let step = if terms.zero.active() && terms.zero.offload_optimizer == Offload::None {
        Bytes(trained.0 / terms.processes.max(1))
    } else {
        trained
    };
    let restored = states.optimizer.saturating_add(states.lora);
    let mut phases = vec![
        Phase::new(PhaseName::Load, base.iter().cloned()),
        with(PhaseName::Forward, forward, kept.total(), carried.then_some(&gradients)),
        with(PhaseName::Backward, backward, kept.total().saturating_add(loss_backward), Some(&gradients)),
        with(
            PhaseName::Step,
            vec![Part::bounded("step temporaries", Bytes(step.0 / 2), step, Source::Computed)],
            step,
            Some(&gradients),
        ),
        with(
            PhaseName::Eval,
            vec![Part::computed("logits", eval_loss), Part::computed("activations of one layer", eval_layer)],
            eval_loss.saturating_add(eval_layer),
            carried.then_some(&gradients),
        ),
        with(PhaseName::Save, vec![], Bytes::ZERO, Some(&gradients)),
    ];
    if terms.resume {
        let loaded = Part::bounded("checkpoint on the card", restored, restored, Source::Computed);
        phases.push(with(PhaseName::Resume, vec![loaded], restored, None));
    }
    Table::new(Memory::Card, phases, vec![])
}

/// One layer of a validation pass; `terms` has recomputation on, so that one layer is what `kept` shows.
pub(super) fn eval_layer(terms: &Terms) -> Bytes {
    let kept = activation::kept(terms);
    if kept.recomputed > Bytes::ZERO { kept.recomputed } else { Bytes(kept.layers.0 / 3) }
}

fn fragments(terms: &Terms, transient: Bytes) -> Part {
    let (expected, most) = if terms.expandable { (2, 6) } else { (8, 20) };
    let of = |per_cent| Bytes(transient.0 / 100 * per_cent);
    Part::bounded("fragmentation", of(expected), of(most), Source::Default)
}

fn collectives(terms: &Terms) -> Part {
    let bytes = if terms.processes > 1 { COLLECTIVES } else { Bytes::ZERO };
    Part::figure("collectives", Figure::default_of(bytes))
}

fn buckets(terms: &Terms, states: &zero::States) -> Part {
    if terms.zero.active() {
        let element = terms.precision.weight(true);
        let sets = if terms.zero.overlap { 2 } else { 1 };
        return Part::computed("ZeRO buckets", Bytes(terms.zero.reduce_bucket.saturating_mul(element * sets)));
    }
    if terms.processes > 1 {
        return Part::computed("DDP buckets", states.gradients.max(DDP_BUCKET));
    }
    Part::computed("buckets", Bytes::ZERO)
}

/// Parameters that stage 3 holds gathered: two layers and what is fetched ahead, at most `max_live`.
fn live(terms: &Terms) -> Part {
    if terms.zero.stage < 3 {
        return Part::computed("gathered parameters", Bytes::ZERO);
    }
    let element = terms.precision.weight(true);
    let most = terms.shape.params().min(terms.zero.max_live);
    let expected = (2 * terms.shape.largest_layer() + PREFETCH.min(terms.shape.params())).min(most);
    Part::bounded("gathered parameters", Bytes(expected * element), Bytes(most * element), Source::Computed)
}
