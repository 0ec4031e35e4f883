//! Host memory of a run, all its processes together, by phase: what the kernel's limit counts.
//!
//! Shared library pages are counted once, everything else for each process that has it. On a CPU the model itself lies
//! here too. Freed memory stays with the C allocator for the most part, so a phase after the backward pass still has half
//! of what that pass took; measured shares are beside their constants. First-use compilation is shown, not counted.

use plimsoll_machine::Bytes;

use super::activation;
use super::loader::{Loader, Parent};
use super::precision::Device;
use super::runtime::{self, Saving};
use super::shape::{Family, Trainable};
use super::table::{Figure, Memory, Part, Phase, PhaseName, Source, Table};
use super::terms::Terms;
use super::vram::eval_layer;
use super::zero::{self, Offload};

/// Holes that the C allocator leaves in what a pass takes, per cent: expected and at most (14 runs, 0 to 20 seen).
const HOLES: (u64, u64) = (10, 25);
/// What stays with the allocator after a pass, per cent of it (14 runs, 41 to 65 seen).
const RETAINED: u64 = 50;
/// What convolutions and recurrent layers of oneDNN hold on a CPU.
const CONVOLUTIONS: Bytes = Bytes::mib(60);
/// What gloo and its threads take of each rank.
const GLOO: Bytes = Bytes::mib(20);

/// What a run of these terms takes of the host.
pub fn host(terms: &Terms) -> Table {
    let parts = Parts::of(terms);
    let mut phases = vec![
        Phase::new(PhaseName::Load, parts.base.iter().cloned().chain(parts.loading.clone())),
        parts.phase(PhaseName::Forward, &parts.pass(false), false),
        parts.phase(PhaseName::Backward, &parts.pass(true), false),
        parts.phase(PhaseName::Step, &parts.after(Bytes::ZERO, "step"), false),
        parts.phase(PhaseName::Eval, &parts.after(parts.eval, "validation pass"), true),
        parts.phase(PhaseName::Save, &parts.after(parts.buffer, "checkpoint in memory"), true),
    ];
    if terms.resume {
        // Forked workers keep what the rank had loaded when they were born, long after the rank has let it go.
        let held = parts.checkpoint;
        phases.push(if terms.loader.workers > 0 {
            let mut after = parts.after(parts.buffer, "checkpoint in memory");
            after.push(Part::computed("loaded checkpoint, held by workers", held));
            parts.phase(PhaseName::Resume, &after, true)
        } else {
            parts.phase(PhaseName::Resume, &[Part::computed("loaded checkpoint", held)], false)
        });
    }
    let outside = if terms.zero.active() {
        let offload = terms.zero.offload_optimizer != Offload::None;
        vec![Part::figure("first-use compilation of DeepSpeed's ops", runtime::first_use(offload))]
    } else {
        vec![]
    };
    Table::new(Memory::Host, phases, outside)
}

/// Everything that a phase is put together from, all ranks summed.
struct Parts {
    base: Vec<Part>,
    loading: Vec<Part>,
    persistent: Vec<Part>,
    gradients: Part,
    activations: Vec<Part>,
    loss: (Bytes, Bytes),
    transient: Bytes,
    retained: Bytes,
    eval: Bytes,
    buffer: Bytes,
    checkpoint: Bytes,
    train_pool: Vec<Part>,
    validation_pool: Vec<Part>,
}

fn times(bytes: Bytes, n: u64) -> Bytes {
    Bytes(bytes.0.saturating_mul(n))
}

/// A checkpoint of the whole run, wherever its parts lie: what is trained or saved whole, moments, master weights.
fn checkpoint(terms: &Terms) -> Bytes {
    let deepspeed = terms.zero.active();
    let trained = terms.shape.trainable(terms.trainable);
    let saved = if matches!(terms.trainable, Trainable::Lora { .. }) { trained } else { terms.shape.params() };
    let weights = saved.saturating_mul(terms.precision.weight(deepspeed));
    let master = trained.saturating_mul(terms.precision.master(deepspeed));
    let moments = terms.optimizer.state(&terms.shape, terms.trainable, terms.precision.state(deepspeed));
    moments.saturating_add(Bytes(weights)).saturating_add(Bytes(master))
}

impl Parts {
    fn of(terms: &Terms) -> Parts {
        let ranks = terms.processes.max(1);
        let states = zero::states(&terms.shape, terms.trainable, terms.optimizer, terms.precision, &terms.zero, ranks);
        let on_cpu = terms.device == Device::Cpu;
        let here = |bytes: Bytes| if on_cpu { times(bytes, ranks) } else { Bytes::ZERO };
        let runtime = &terms.runtime;

        let mut base = vec![
            Part::figure(format!("Python and libraries (ranks: {ranks})"), runtime.private.times(ranks)),
            Part::figure("library pages, shared", runtime.shared),
            Part::figure("launcher", runtime::launcher(terms.launcher)),
            Part::computed("dataset", times(terms.dataset.bytes, ranks)),
        ];
        if !on_cpu {
            base.push(Part::figure("CUDA in host memory", runtime.cuda_host.times(ranks)));
        }
        let weights = states.weights.saturating_add(states.lora);
        // Each rank makes the model in host memory, wherever it goes afterwards; drawing a tensor takes one more.
        let made = terms.shape.bytes(terms.precision.weight(false).max(2));
        let drawn = Bytes(terms.shape.largest_layer().saturating_mul(4));
        let loading = vec![
            Part::computed("weights", times(made, ranks)),
            Part::bounded("largest tensor while drawn", drawn, times(drawn, ranks), Source::Computed),
        ];
        let kept = activation::kept(terms);
        let loss = activation::loss(terms, terms.batch);
        let loss = (here(loss.0), here(loss.1));
        let convolutions = matches!(terms.shape.family, Family::CnnLstm(_)) && on_cpu;
        let activations = vec![
            Part::computed("activations", here(kept.layers)),
            match terms.shape.family {
                Family::Vits => {
                    let ends = here(kept.ends);
                    Part::bounded("convolution workspaces", ends, Bytes(ends.0 / 100 * 120), Source::Default)
                }
                _ => Part::computed("embedding and last norm", here(kept.ends)),
            },
            Part::computed("attention matrices", here(kept.scores)),
            Part::computed("recomputed layer", here(kept.recomputed)),
            Part::computed("weight casts", here(kept.casts)),
        ];
        let transient = here(kept.total()).saturating_add(loss.1);
        let share = if terms.shape.family == Family::Vits { 100 } else { RETAINED };
        let retained = Bytes(transient.0 / 100 * share);

        let sample = Loader { sample: terms.sample(), ..terms.loader };
        let persistent = vec![
            Part::figure("first steps", runtime.first_step.times(ranks)),
            Part::computed("weights", here(weights)),
            Part::computed("optimizer state", here(states.optimizer)),
            Part::computed("master weights", here(states.master)),
            Part::figure(
                "convolution workspaces",
                Figure::default_of(if convolutions { times(CONVOLUTIONS, ranks) } else { Bytes::ZERO }),
            ),
            Self::collectives(terms, &states, on_cpu),
            Self::offloaded(&states),
            Part::computed("batches in flight", sample.in_flight(terms.batch, ranks)),
            Part::computed("batches, pinned", if on_cpu { Bytes::ZERO } else { sample.pinned(terms.batch, ranks) }),
        ];
        let evaluated = Terms { batch: terms.eval(), checkpointing: true, ..terms.clone() };
        let eval = here(eval_layer(&evaluated)).saturating_add(here(activation::loss(&evaluated, terms.eval()).0));
        let checkpoint = checkpoint(terms);
        let buffer = if runtime.saving == Saving::Buffered { checkpoint } else { Bytes::ZERO };

        let resting = [runtime.private.bytes, runtime.first_step.bytes, Bytes(here(states.gradients).0 / ranks)]
            .into_iter()
            .chain([Bytes(here(weights.saturating_add(states.optimizer)).0 / ranks), Bytes(retained.0 / ranks)])
            .fold(Bytes::ZERO, Bytes::saturating_add);
        let parent = Parent {
            heap: runtime.private.bytes,
            weights: if on_cpu { Bytes(terms.shape.trainable(terms.trainable).saturating_mul(4)) } else { Bytes::ZERO },
            resting,
        };
        Parts {
            base,
            loading,
            persistent,
            gradients: Part::computed("gradients", here(states.gradients)),
            activations,
            loss,
            transient,
            retained,
            eval,
            buffer,
            checkpoint: times(checkpoint, if terms.zero.active() { 1 } else { ranks }),
            train_pool: terms.loader.train_pool(parent, &terms.dataset, ranks),
            validation_pool: terms.loader.validation_pool(parent, &terms.dataset, ranks),
        }
    }

    fn collectives(terms: &Terms, states: &zero::States, on_cpu: bool) -> Part {
        if terms.processes < 2 && !terms.zero.active() {
            return Part::computed("collectives", Bytes::ZERO);
        }
        // A bucket on a CPU takes no page before it is written to, and no more is written than there are gradients.
        let buckets = if on_cpu { states.gradients.max(Bytes(states.weights.0 / 8)) } else { Bytes::ZERO };
        let gloo = if terms.processes > 1 { GLOO } else { Bytes::ZERO };
        let bytes = times(buckets.saturating_add(gloo), terms.processes);
        let twice = times(buckets.saturating_add(times(gloo, 2)), terms.processes);
        Part::bounded("collectives and buckets", bytes, twice, Source::Default)
    }

    fn offloaded(states: &zero::States) -> Part {
        // Of the page-locked part only the rounding comes on top: its own bytes are counted already.
        let bytes = states.host;
        let rounded = bytes.saturating_add(Bytes(states.host_pinned.0 / 2));
        Part::bounded("offloaded state", bytes, rounded, Source::Computed)
    }

    /// What a training pass adds.
    fn pass(&self, backward: bool) -> Vec<Part> {
        let mut parts = self.activations.clone();
        let loss = if backward { self.loss.1 } else { self.loss.0 };
        parts.push(Part::computed(if backward { "logits and their gradients" } else { "logits" }, loss));
        let of = |per_cent| Bytes(self.transient.0 / 100 * per_cent);
        parts.push(Part::bounded("allocator", of(HOLES.0), of(HOLES.1), Source::Default));
        parts
    }

    /// What a phase after a pass has: what the allocator kept of it, and what the phase itself takes.
    fn after(&self, own: Bytes, name: &str) -> Vec<Part> {
        let most = Bytes(self.transient.0 / 100 * 75).max(Bytes(self.retained.0 / 100 * 112));
        let retained = Part::bounded("kept by the allocator", self.retained, most, Source::Default);
        vec![retained, Part::bounded(name, own, Bytes(own.0 / 100 * 115), Source::Computed)]
    }

    fn phase(&self, name: PhaseName, extra: &[Part], validating: bool) -> Phase {
        let mut parts: Vec<Part> = self.base.iter().chain(&self.persistent).cloned().collect();
        // Freed or not, gradients hold their place: the allocator's holes are of their sizes.
        parts.push(self.gradients.clone());
        parts.extend(extra.iter().cloned());
        parts.extend(self.train_pool.iter().cloned());
        if validating {
            parts.extend(self.validation_pool.iter().cloned());
        }
        Phase::new(name, parts)
    }
}
