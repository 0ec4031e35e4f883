//! An outline says of any mixture what the written tape says.

use proptest::prelude::*;

use super::*;
use crate::choices::Choices;
use crate::choose::{Pins, Terms};
use crate::cost::Rates;
use crate::family;
use crate::footprint::{DiskFacts, Overheads};
use crate::place::live;
use crate::program::{EvalJob, store_of};
use crate::search::Search;
use crate::spec::{
    DecoderFamily, DecoderSpec, Dropouts, FeedForward, ModelSpec, Positions, RopeScaling, RopeSpec, T5Spec,
};
use crate::tiles::{Simd, Tiles};
use crate::train::OptimizerSpec;
use crate::trained::{LoraSpec, TrainSpec, default_targets};

fn small_decoder(layers: usize, family: DecoderFamily, tied: bool) -> DecoderSpec {
    let gpt2 = family == DecoderFamily::Gpt2;
    let rope = RopeSpec { theta: 1e4, scaling: RopeScaling::Default };
    DecoderSpec {
        family,
        vocab: 97,
        d_model: 24,
        layers,
        heads: 4,
        kv_heads: if gpt2 { 4 } else { 2 },
        d_head: 6,
        d_ff: 40,
        norm_eps: 1e-6,
        positions: if gpt2 { Positions::Learned } else { Positions::Rope(rope) },
        max_positions: 64,
        windows: vec![],
        qkv_bias: gpt2 || family == DecoderFamily::Qwen2,
        out_bias: gpt2,
        mlp_bias: gpt2,
        tied,
        dropout: Dropouts { embedding: 0.1, attention: 0.0, residual: 0.1 },
        init_std: 0.02,
        bos_id: None,
        eos_ids: vec![1],
        pad_id: None,
    }
}

fn small_t5(encoders: usize, decoders: usize, tied: bool) -> T5Spec {
    T5Spec {
        vocab: 61,
        d_model: 20,
        d_kv: 5,
        d_ff: 33,
        encoder_layers: encoders,
        decoder_layers: decoders,
        heads: 3,
        feed_forward: if tied { FeedForward::Relu } else { FeedForward::GatedGelu },
        tied,
        ..T5Spec::small()
    }
}

fn spec() -> impl Strategy<Value = ModelSpec> {
    let family = prop::sample::select(vec![
        DecoderFamily::Gpt2,
        DecoderFamily::Llama,
        DecoderFamily::Qwen2,
        DecoderFamily::Qwen3,
    ]);
    prop_oneof![
        (1usize..4, family, any::<bool>()).prop_map(|(n, family, tied)| small_decoder(n, family, tied).into()),
        (1usize..3, 1usize..3, any::<bool>()).prop_map(|(e, d, tied)| small_t5(e, d, tied).into()),
    ]
}

fn train(spec: &ModelSpec, which: usize) -> TrainSpec {
    match which {
        0 => TrainSpec::All,
        1 => TrainSpec::Freeze(vec![if spec.decoder().is_some() { "model.layers.0".into() } else { "encoder".into() }]),
        nth => TrainSpec::Lora(LoraSpec {
            r: 2,
            alpha: 4.0,
            dropout: if nth == 2 { 0.1 } else { 0.0 },
            rslora: false,
            targets: default_targets(spec),
        }),
    }
}

fn terms() -> Terms<'static> {
    let none = Bytes::ZERO;
    Terms {
        ram: Bytes::gib(1),
        ram_there: Bytes::gib(1),
        disk: Bytes::gib(1),
        disk_there: Bytes::gib(1),
        disk_facts: DiskFacts {
            keep: 1,
            best: false,
            side_files: none,
            unpacked: none,
            fetched: none,
            steps: 1,
            evaluations: none,
            evaluation_lines: none,
        },
        overheads: Overheads {
            program: none,
            tokenizer: none,
            rows: none,
            startup_peak: none,
            supervisor: none,
            checkpoint_writer: none,
            evaluation: none,
            stack: none,
            mirror: none,
        },
        rates: Rates::default(),
        loader_rate: 1e6,
        most_loader_threads: usize::MAX,
        pins: Pins::default(),
        held: None,
        saves: false,
        loader: &|_, _| Bytes::ZERO,
        card: None,
    }
}

use plimsoll_machine::Bytes;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_mixture_of_stages_is_the_tape_that_it_stands_for(
        spec in spec(),
        (micro_batch, parts) in (1usize..4, 1usize..10),
        (recompute, attention, chunk) in (0usize..5, 0usize..5, 1usize..30),
        (in_backward, clip, which) in (any::<bool>(), any::<bool>(), 0usize..4),
        (source_len, target_len) in (1usize..20, 1usize..20),
    ) {
        let decoder = spec.decoder().is_some();
        let target_len = if decoder { source_len } else { target_len };
        let job = Job {
            clip,
            train: train(&spec, which),
            ..Job::new(spec, (source_len, target_len), micro_batch * parts, OptimizerSpec::adamw(1e-3), (2, Simd::Avx2))
        };
        let blocks = job.spec.blocks();
        let recompute = recompute.min(blocks);
        let choices = Choices {
            micro_batch,
            recompute,
            recompute_attention: attention.min(blocks - recompute),
            recompute_feed_forward: 0,
            loss_chunk: chunk.min(micro_batch * target_len),
            optimizer_in_backward: in_backward,
            loader_threads: 1,
            lean: false,
            keep_norms: false,
            lstm_every: 0,
        };
        let store = store_of(&job, in_backward);
        let tape_job = job.tape_job(&store, &choices);
        let tape = family::micro_tape(&job.spec, &tape_job, &choices);
        let scale = Scale { store: &store, rows: crate::program::rows_of(&tape_job.shape), tiles: Tiles::of(job.simd), threads: job.threads };
        let terms = terms();
        let search = Search::new(&job, &terms, Pins::default());
        let outline = search.outline(&choices);
        let judged = outline.judge(&choices);
        let logits = aligned(choices.loss_chunk * job.spec.vocab());
        let most = live(&tape).into_iter().max().unwrap_or(0);
        prop_assert_eq!(judged.live.max(judged.live_at_loss + logits), most);
        let mut work = Work::default();
        tape.ops.iter().for_each(|op| work += scale.work(op));
        let mut told = outline.work(&judged, &scale, choices.loss_chunk);
        if !in_backward {
            family::update_tape(&store).ops.iter().for_each(|op| told = told - scale.work(op));
            work = work * parts as f64;
        }
        let rates = Rates::default();
        let (told, real) = (told.seconds(&rates), work.seconds(&rates));
        prop_assert!((told / real - 1.0).abs() < 1e-9, "{told} against {real}");
    }

    #[test]
    fn a_bound_is_never_above_what_placing_needs(
        spec in spec(),
        (micro_batch, parts, level) in (1usize..4, 1usize..7, 0usize..9),
        (in_backward, clip, generates) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let eval = Some(EvalJob { beams: 2, max_new: if generates { 5 } else { 0 } });
        let job = Job {
            clip,
            eval,
            ..Job::new(spec, (9, 9), micro_batch * parts, OptimizerSpec::adafactor(1e-3), (2, Simd::Avx2))
        };
        let frame = Choices {
            micro_batch,
            recompute: 0,
            recompute_attention: 0,
            recompute_feed_forward: 0,
            loss_chunk: 7,
            optimizer_in_backward: in_backward,
            loader_threads: 1,
            lean: false,
            keep_norms: false,
            lstm_every: 0,
        };
        let choices = frame.on_rung(level.min(2 * job.spec.blocks()), job.spec.blocks());
        let terms = terms();
        let search = Search::new(&job, &terms, Pins::default());
        let (bound, placed) = (search.judge(choices).least, search.place(choices).ram.peak);
        prop_assert!(bound <= placed, "{bound} above {placed}");
        prop_assert!(placed.0 <= bound.0 + bound.0 / 20 + 65536, "{placed} far above {bound}");
    }
}
