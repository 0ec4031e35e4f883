//! Planning without a program: jobs and terms as values.

use plimsoll_machine::Bytes;
use plimsoll_plan::choose::{Pins, Terms};
use plimsoll_plan::cost::Rates;
use plimsoll_plan::footprint::{DiskFacts, Overheads};
use plimsoll_plan::program::{EvalJob, Job};
use plimsoll_plan::spec::T5Spec;
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;

use super::draw::Draw;

/// T5-base at an effective batch of 64, 512 + 512 tokens, with evaluation.
pub fn t5_base() -> Job {
    let spec =
        T5Spec { d_model: 768, d_ff: 3072, encoder_layers: 12, decoder_layers: 12, heads: 12, ..T5Spec::small() };
    let eval = Some(EvalJob { beams: 1, max_new: 512 });
    Job { eval, ..Job::new(spec, (512, 512), 64, OptimizerSpec::adafactor(1e-3), (2, Simd::Avx512)) }
}

/// A small job with every choice free.
pub fn small(draw: &mut Draw) -> Job {
    let mut job = t5_base();
    let mut spec = T5Spec::small();
    spec.vocab = draw.within(100..=4000);
    spec.d_model = 8 * draw.within(4..=32);
    spec.d_ff = 8 * draw.within(4..=128);
    spec.heads = draw.within(1..=4);
    spec.encoder_layers = draw.within(1..=4);
    spec.decoder_layers = draw.within(1..=4);
    spec.tied = draw.once_in(2);
    job.spec = spec.into();
    (job.source_len, job.target_len) = (draw.within(8..=256), draw.within(8..=256));
    job.effective_batch = draw.within(1..=16);
    job.clip = draw.once_in(2);
    let adamw = draw.once_in(2);
    job.optimizer = if adamw { OptimizerSpec::adamw(1e-3) } else { OptimizerSpec::adafactor(1e-3) };
    job.eval = draw.once_in(2).then_some(EvalJob { beams: 1, max_new: job.target_len });
    job
}

fn loader(samples: usize, threads: usize) -> Bytes {
    Bytes::kib(16 * samples as u64 + 300 * threads as u64)
}

/// Terms with a budget, as a machine like the development machine would give them.
pub fn terms(ram: Bytes) -> Terms<'static> {
    Terms {
        ram,
        ram_there: Bytes::gib(100),
        disk: Bytes::gib(100),
        disk_there: Bytes::gib(100),
        disk_facts: DiskFacts {
            keep: 3,
            best: false,
            side_files: Bytes::mib(3),
            unpacked: Bytes::ZERO,
            fetched: Bytes::ZERO,
            steps: 1000,
            evaluations: Bytes::ZERO,
            evaluation_lines: Bytes::ZERO,
        },
        overheads: Overheads {
            program: Bytes::mib(12),
            tokenizer: Bytes::mib(5),
            rows: Bytes::ZERO,
            startup_peak: Bytes::mib(20),
            supervisor: Bytes::mib(6),
            checkpoint_writer: Bytes::mib(1),
            evaluation: Bytes::mib(1),
            stack: Bytes::kib(96),
            mirror: Bytes::ZERO,
        },
        rates: Rates::of(2e11, 2e10),
        loader_rate: 1e6,
        most_loader_threads: usize::MAX,
        pins: Pins::default(),
        held: None,
        saves: true,
        loader: &loader,
        card: None,
    }
}
