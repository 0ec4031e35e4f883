//! Live against transformers and PyTorch: random models of several sizes, padded and unpadded batches; loss, gradients,
//! weights after twenty updates, and the updates themselves.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it each test says so and passes. Python starts once
//! for all cases, because importing transformers takes longer than the cases do.

mod fixture;
mod random;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fixture::{Batch, choices, distance, tensors, train_update, with_engine};
use plimsoll_engine::{MicroStep, Updates};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::program::compile;
use plimsoll_plan::spec::{FeedForward, T5Spec};
use plimsoll_plan::train::OptimizerSpec;
use random::{batches, fill, job, v10, v11, weights};
use safetensors::tensor::{Dtype, TensorView};

const UPDATES: usize = 20;
const LR: f64 = 1e-3;

/// A model, its batches, and how it is trained.
struct Case {
    name: &'static str,
    spec: T5Spec,
    lens: (usize, usize),
    rows: usize,
    ragged: bool,
    optimizer: OptimizerSpec,
    clip_norm: Option<f64>,
    micro_batches: usize,
}

/// One block each of T5-small's width and heads, with a small vocabulary.
fn small(spec: T5Spec) -> T5Spec {
    T5Spec {
        vocab: 1000,
        d_model: 512,
        d_kv: 64,
        d_ff: 1024,
        heads: 8,
        encoder_layers: 1,
        decoder_layers: 1,
        buckets: 32,
        max_distance: 128,
        ..spec
    }
}

fn middling(spec: T5Spec) -> T5Spec {
    T5Spec { vocab: 300, d_model: 100, d_kv: 24, d_ff: 200, heads: 4, encoder_layers: 3, decoder_layers: 2, ..spec }
}

fn cases() -> Vec<Case> {
    let adamw = OptimizerSpec::AdamW { lr: LR, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };
    // T5 draws `q` with a deviation of 0.0055 at T5-small's width, and AdamW's first updates are nearly signs of a tiny
    // gradient: at a rate of 1e-3 and an eps of 1e-8, PyTorch's fp32 is 4e-3 from its own fp64 after 20 updates. A larger
    // eps and a smaller rate leave a course that fp32 determines. The cases below have the usual numbers.
    let gentle = OptimizerSpec::AdamW { lr: 1e-4, betas: [0.9, 0.999], eps: 1e-5, weight_decay: 0.01 };
    let warm = match OptimizerSpec::adafactor_relative() {
        OptimizerSpec::Adafactor {
            lr,
            eps,
            clip_threshold,
            decay_rate,
            beta1,
            weight_decay,
            scale_parameter,
            relative_step,
            ..
        } => OptimizerSpec::Adafactor {
            lr,
            eps,
            clip_threshold,
            decay_rate,
            beta1,
            weight_decay,
            scale_parameter,
            relative_step,
            warmup_init: true,
        },
        other => other,
    };
    let sgd = OptimizerSpec::Sgd { lr: LR, momentum: 0.9, dampening: 0.1, nesterov: false, weight_decay: 0.01 };
    let case = |name, spec, lens, rows, ragged, optimizer: &OptimizerSpec| Case {
        name,
        spec,
        lens,
        rows,
        ragged,
        optimizer: optimizer.clone(),
        clip_norm: None,
        micro_batches: 1,
    };
    let adafactor = OptimizerSpec::adafactor(LR);
    let untied_v10 = T5Spec { tied: false, ..v10(0.0) };
    let tied_v11 = T5Spec { tied: true, ..v11(0.0) };
    vec![
        case("small_v10_padded_adamw", small(v10(0.0)), (100, 70), 2, true, &gentle),
        case("small_v11_unpadded_adafactor", small(v11(0.0)), (100, 70), 2, false, &adafactor),
        case("middling_v10_unpadded_adamw", middling(v10(0.0)), (40, 33), 4, false, &adamw),
        case("middling_v11_padded_adamw", middling(v11(0.0)), (40, 33), 4, true, &adamw),
        case("middling_v10_padded_adafactor", middling(v10(0.0)), (40, 33), 4, true, &adafactor),
        case("odd_v11_tied_padded_adafactor", tied_v11, (23, 19), 6, true, &adafactor),
        case("odd_v10_untied_padded_adamw", untied_v10, (23, 19), 6, true, &adamw),
        case("odd_v10_padded_relative_warmup", v10(0.0), (23, 19), 6, true, &warm),
        case("odd_v10_padded_sgd", v10(0.0), (23, 19), 6, true, &sgd),
        Case {
            clip_norm: Some(0.5),
            micro_batches: 3,
            ..case("odd_v11_padded_clipped_accumulated", v11(0.0), (23, 19), 6, true, &adamw)
        },
    ]
}

impl Case {
    fn batches(&self) -> Vec<Batch> {
        batches(&self.spec, 4, self.rows, self.lens, self.ragged, 9)
    }

    fn config(&self) -> serde_json::Value {
        let spec = &self.spec;
        let mut config = serde_json::json!({
            "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": true,
            "vocab_size": spec.vocab, "d_model": spec.d_model, "d_kv": spec.d_kv, "d_ff": spec.d_ff,
            "num_layers": spec.encoder_layers, "num_decoder_layers": spec.decoder_layers, "num_heads": spec.heads,
            "relative_attention_num_buckets": spec.buckets, "relative_attention_max_distance": spec.max_distance,
            "dropout_rate": 0.0, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
            "feed_forward_proj": if spec.feed_forward == FeedForward::Relu { "relu" } else { "gated-gelu" },
            "pad_token_id": spec.pad_id, "eos_token_id": spec.eos_id, "decoder_start_token_id": spec.start_id,
            "tie_word_embeddings": spec.tied,
        });
        // Without the key, transformers scales exactly where the head is said to be tied.
        if spec.tied != spec.scale_head {
            config["scale_decoder_outputs"] = spec.scale_head.into();
        }
        config
    }

    /// The optimizer by Python's names.
    fn options(&self) -> (&'static str, serde_json::Value) {
        let mut options = serde_json::to_value(&self.optimizer).unwrap();
        options.as_object_mut().unwrap().remove("name");
        if self.optimizer.name() == "adafactor" && self.optimizer.lr().is_none() {
            options["lr"] = serde_json::Value::Null;
        }
        (self.optimizer.name(), options)
    }

    fn folder(&self) -> PathBuf {
        scratch().join(self.name)
    }

    /// Writes the model folder and the batches; returns the arguments of `live.py`.
    fn write(&self) -> Vec<String> {
        let folder = self.folder();
        fs_err::create_dir_all(&folder).unwrap();
        fs_err::write(folder.join("config.json"), self.config().to_string()).unwrap();
        let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let tensors = weights(&self.spec, 5)
            .into_iter()
            .map(|(param, values)| (param.name, Dtype::F32, param.shape, f32s(&values)));
        save(&folder.join("model.safetensors"), tensors.collect());
        let batches = self.batches();
        let (mut ids, mut mask, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for batch in &batches {
            for (source, target) in batch.sources.iter().zip(&batch.targets) {
                let padded = |of: &dyn Fn(usize) -> i32, most: usize| {
                    (0..most).flat_map(|i| of(i).to_le_bytes()).collect::<Vec<u8>>()
                };
                ids.extend(padded(&|i| source.get(i).map_or(0, |t| *t as i32), self.lens.0));
                mask.extend(padded(&|i| i32::from(i < source.len()), self.lens.0));
                labels.extend(padded(
                    &|i| target.get(i).filter(|t| **t != IGNORE).map_or(-100, |t| *t as i32),
                    self.lens.1,
                ));
            }
        }
        let shape = |len| vec![batches.len(), self.rows, len];
        let parts =
            [("input_ids", self.lens.0, ids), ("attention_mask", self.lens.0, mask), ("labels", self.lens.1, labels)];
        let parts = parts.map(|(name, len, bytes)| (name.to_string(), Dtype::I32, shape(len), bytes));
        save(&folder.join("batch.safetensors"), parts.into());
        let (name, options) = self.options();
        let at = |file: &str| folder.join(file).display().to_string();
        let mut args = vec!["--model".into(), folder.display().to_string(), "--batch".into(), at("batch.safetensors")];
        args.extend(["--out".into(), at("out.safetensors"), "--updates".into(), UPDATES.to_string()]);
        args.extend(["--optimizer".into(), name.into(), "--options".into(), options.to_string()]);
        args.extend(["--micro-batches".into(), self.micro_batches.to_string()]);
        if let Some(norm) = self.clip_norm {
            args.extend(["--clip-norm".into(), norm.to_string()]);
        }
        args
    }
}

fn save(path: &Path, tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    fs_err::write(path, safetensors::serialize(views, Some(format)).unwrap()).unwrap();
}

/// A folder of this process: a test runner may start several, and one must not write what another has mapped.
fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("live_parity-{}", std::process::id()))
}

/// Runs `live.py` once for each list of arguments that it is given, in one process.
const MANY: &str = "
import json, runpy, sys
script, folder = sys.argv[1:3]
sys.path.insert(0, folder)
for args in json.load(sys.stdin):
    sys.argv = [script, *args]
    runpy.run_path(script, run_name='__main__')
";

/// A case and the tensors that PyTorch computed for it.
type Computed = Vec<(Case, HashMap<String, (Vec<usize>, Vec<f32>)>)>;

/// What PyTorch computed for each case, or why there is nothing.
fn live() -> Result<&'static Computed, &'static String> {
    static LIVE: OnceLock<Result<Computed, String>> = OnceLock::new();
    let computed = LIVE.get_or_init(|| {
        let python = std::env::var_os("PLIMSOLL_PYTHON")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"), PathBuf::from);
        if !python.is_file() {
            return Err(format!("no Python at `{}`; scripts/test makes one", python.display()));
        }
        let cases = cases();
        let args: Vec<Vec<String>> = cases.iter().map(Case::write).collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer");
        let stdin = scratch().join("args.json");
        fs_err::write(&stdin, serde_json::to_string(&args).unwrap()).unwrap();
        let mut command = Command::new(python);
        command.args(["-c", MANY]).arg(folder.join("live.py")).arg(folder).env("HF_HUB_OFFLINE", "1");
        let out = command.stdin(fs_err::File::open(stdin).unwrap().into_parts().0).output().unwrap();
        assert!(out.status.success(), "live.py: {}", String::from_utf8_lossy(&out.stderr));
        let computed = cases.into_iter().map(|case| {
            let tensors = tensors(&case.folder().join("out.safetensors"));
            (case, tensors)
        });
        let computed = computed.collect();
        fs_err::remove_dir_all(scratch()).unwrap();
        Ok(computed)
    });
    computed.as_ref()
}

#[test]
fn loss_and_every_gradient_agree() {
    let live = match live() {
        Ok(live) => live,
        Err(why) => return println!("skipped: {why}"),
    };
    for (case, expected) in live {
        let job = job(case.spec.clone(), case.lens, case.rows, fixture::sgd(0.0), false);
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: None, seed: 1 };
        with_engine(compile(&job, &choices(case.rows)), updates, |engine| {
            fill(engine, &weights(&case.spec, 5));
            case.batches()[0].stage(engine);
            let step = MicroStep { update: 0, samples: case.rows, first_sample: 0, lr: Some(0.0) };
            let loss = engine.micro_step(step).unwrap();
            let exact = f64::from(expected["loss"].1[0]);
            let apart = (loss.mean() - exact).abs() / exact;
            assert!(apart < 1e-5, "{}: the loss is {}, not {exact}", case.name, loss.mean());
            let mut worst = (0.0, "");
            for (index, place) in engine.program().store.params.iter().enumerate() {
                let mean: Vec<f32> = engine.gradient(index).unwrap().iter().map(|g| g / loss.tokens as f32).collect();
                let far = distance(&mean, &expected[&format!("grad.{}", place.param.name)].1);
                assert!(far < 1e-4, "{}: the gradient of {} is {far:e} apart", case.name, place.param.name);
                worst = if far > worst.0 { (far, place.param.name.as_str()) } else { worst };
            }
            println!("{}: loss {apart:.1e} apart, gradients {:.1e} ({})", case.name, worst.0, worst.1);
        });
    }
}

#[test]
fn twenty_updates_agree_and_so_does_each_move() {
    let live = match live() {
        Ok(live) => live,
        Err(why) => return println!("skipped: {why}"),
    };
    for (case, expected) in live {
        let job = job(case.spec.clone(), case.lens, case.rows, case.optimizer.clone(), case.clip_norm.is_some());
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm: case.clip_norm, seed: 1 };
        with_engine(compile(&job, &choices(case.rows / case.micro_batches)), updates, |engine| {
            let before = weights(&case.spec, 5);
            fill(engine, &before);
            let batches = case.batches();
            for update in 0..UPDATES {
                let (loss, norm) =
                    train_update(engine, &batches[update % batches.len()], update as u64, case.optimizer.lr());
                let (exact, exact_norm) =
                    (f64::from(expected["losses"].1[update]), f64::from(expected["grad_norms"].1[update]));
                assert!((loss - exact).abs() < 1e-5 * exact, "{}: loss {update} is {loss}, not {exact}", case.name);
                let near = (norm - exact_norm).abs() < 1e-4 * exact_norm;
                assert!(near, "{}: norm {update} is {norm}, not {exact_norm}", case.name);
            }
            let (mut worst, mut worst_move) = (0.0f64, 0.0f64);
            for (index, (param, before)) in before.iter().enumerate() {
                let after = &expected[&format!("after.{}", param.name)].1;
                let far = distance(engine.param(index), after);
                assert!(far < 1e-4, "{}: {} is {far:e} apart", case.name, param.name);
                let moved = |after: &[f32]| after.iter().zip(before).map(|(a, b)| a - b).collect::<Vec<f32>>();
                let far_move = distance(&moved(engine.param(index)), &moved(after));
                assert!(far_move < 1e-2, "{}: the move of {} is {far_move:e} apart", case.name, param.name);
                (worst, worst_move) = (worst.max(far), worst_move.max(far_move));
            }
            println!("{}: weights {worst:.1e} apart, moves {worst_move:.1e}", case.name);
        });
    }
}
