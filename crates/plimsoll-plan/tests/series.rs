//! Plans of models of series: what the guide's job would have needed for one matrix, what ours needs, and what is traded.

mod terms;

use plimsoll_machine::Bytes;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::choose::{Pins, Terms, Verdict, choose};
use plimsoll_plan::op::LSTM_BLOCK;
use plimsoll_plan::program::{Job, compile};
use plimsoll_plan::series_matrix::AttentionMatrix;
use plimsoll_plan::spec::{ConvNorm, SeriesSpec};
use plimsoll_plan::tiles::Simd;
use plimsoll_plan::train::OptimizerSpec;

const GIB: f64 = (1u64 << 30) as f64;

fn job(spec: SeriesSpec, batch: usize) -> Job {
    Job::of_series(spec, batch, OptimizerSpec::adamw(5e-5), (2, Simd::Avx2))
}

/// Words of the largest tensor of a training tape.
fn largest(job: &Job, choices: &Choices) -> usize {
    let program = compile(job, choices);
    program.micro.expect("training").tape.tensors.iter().map(|t| t.words).max().expect("it has tensors")
}

#[test]
fn the_matrix_that_did_not_fit_is_foretold_and_never_built() {
    let spec = SeriesSpec::hybrid_v2(112);
    let (batch, heads, steps) = (256, 4, spec.lstm_steps());
    assert_eq!(steps, 840);
    // What a build that holds the matrix asks for at once: the guide's 1.35 GiB, and 2.69 in fp32.
    let matrix = AttentionMatrix::of(&spec, batch).expect("it has heads");
    let numbers = (batch * heads * steps * steps) as f64;
    assert!((matrix.bytes(2).0 as f64 / GIB - 1.3458).abs() < 1e-4);
    assert!((matrix.bytes(4).0 as f64 / GIB - 2.6917).abs() < 1e-4);
    // Ours: the largest tensor is the rows of q, k and v, and grows with the steps, not with their square.
    let words = largest(&job(spec.clone(), batch), &Choices::plain(batch));
    assert_eq!(words, batch * steps * 3 * spec.width());
    assert!((words as f64) < numbers / 4.0);
    let longer = SeriesSpec { window: 2 * spec.window, ..spec };
    assert_eq!(largest(&job(longer, batch), &Choices::plain(batch)), 2 * words);
}

#[test]
fn a_batch_norm_keeps_the_micro_batch_whole_and_models_without_one_may_be_split() {
    let micro = |spec: SeriesSpec, ram: Bytes| {
        let job = job(spec, 8);
        choose(&job, &terms::terms(ram, Pins::default())).plan
    };
    let small = SeriesSpec { window: 20, ..SeriesSpec::hybrid_v1(10) };
    let least = micro(small.clone(), Bytes::mib(1)).smallest;
    let plan = micro(small.clone(), least);
    assert_eq!((plan.verdict, plan.micro_batch), (Verdict::Fits, 8));
    assert_eq!(micro(small.clone(), least - Bytes(1)).verdict, Verdict::TooBig);
    let free = SeriesSpec { norm: ConvNorm::None, ..small };
    let least = micro(free.clone(), Bytes::mib(1)).smallest;
    assert!(micro(free, least).micro_batch < 8);
}

#[test]
fn gates_that_are_computed_again_take_less_memory() {
    let job = job(SeriesSpec::hybrid_v1(110), 16);
    let words = |lstm_every| compile(&job, &Choices { lstm_every, ..Choices::plain(16) }).parts.words();
    // Convolutions are kept in both.
    assert!(words(LSTM_BLOCK) * 5 < words(0) * 3, "{} and {}", words(LSTM_BLOCK), words(0));
}

#[test]
fn what_a_plan_gave_up_is_told_by_what_the_model_has() {
    let job = job(SeriesSpec::hybrid_v1(110), 8);
    let least = choose(&job, &terms::terms(Bytes::mib(1), Pins::default())).plan.smallest;
    let plan = choose(&job, &terms::terms(least, Pins::default())).plan;
    let said: Vec<&str> = plan.cuts.iter().map(|cut| cut.what.as_str()).collect();
    let gates = format!("recompute 3 of 3 blocks; gates of the LSTM computed again, {LSTM_BLOCK} steps at a time");
    assert_eq!(said, ["recompute 3 of 3 blocks", &gates, "1 compute thread instead of 2"]);
    assert!(plan.cuts.iter().all(|cut| cut.saved > 0), "{:?}", plan.cuts);
}

/// A model whose batch may be split.
fn split() -> SeriesSpec {
    SeriesSpec { norm: ConvNorm::None, ..SeriesSpec::hybrid_v1(110) }
}

#[test]
fn fewer_samples_than_threads_leave_threads_idle() {
    let seconds = |threads: usize, micro_batch: usize| {
        let job = Job { threads, ..job(split(), 32) };
        let pins = Pins { micro_batch: Some(micro_batch), ..Pins::default() };
        choose(&job, &terms::terms(Bytes::gib(64), pins)).plan.seconds_per_update
    };
    // Every thread has samples to walk.
    assert!(seconds(2, 4) < 1.1 * seconds(2, 32), "{} and {}", seconds(2, 4), seconds(2, 32));
    // Twelve of sixteen have none, in more than half of the work.
    assert!(seconds(16, 4) > 1.5 * seconds(16, 32), "{} and {}", seconds(16, 4), seconds(16, 32));
}

#[test]
fn a_slow_loader_gets_more_threads_and_a_fast_one_does_not() {
    let threads = |loader_rate: f64| {
        let job = Job { threads: 8, ..job(SeriesSpec::hybrid_v2(112), 32) };
        let terms = Terms { loader_rate, ..terms::terms(Bytes::gib(64), Pins::default()) };
        choose(&job, &terms).plan.choices.loader_threads
    };
    assert_eq!(threads(1e9), 1);
    assert!((2..=8).contains(&threads(400.0)), "{}", threads(400.0));
}

#[test]
fn a_split_batch_is_told_without_rows_of_logits() {
    let job = job(split(), 8);
    let pins = Pins { recompute: Some(3), lstm_every: Some(LSTM_BLOCK), ..Pins::default() };
    let least = choose(&job, &terms::terms(Bytes::mib(1), pins)).plan.smallest;
    let plan = choose(&job, &terms::terms(least + Bytes::mib(1), pins)).plan;
    assert!(plan.micro_batch < 8 && !plan.cuts.is_empty(), "{plan}");
    let next = plan.next_faster.iter().map(|next| &next.change);
    let told: Vec<&String> = plan.cuts.iter().map(|cut| &cut.what).chain(next).collect();
    assert!(told.iter().all(|told| !told.contains("loss ")), "{told:?}");
}
