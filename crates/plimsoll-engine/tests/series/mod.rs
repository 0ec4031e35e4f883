//! Small models of series with random weights, batches for them, short training runs, and the peer that they are compared
//! with.
#![allow(dead_code)] // each test binary uses its own part

pub mod card;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_engine::cpu::series_loss::Mix;
use plimsoll_engine::{Engine, MicroStep, Updated, Updates, with_cores};
use plimsoll_plan::batch::IGNORE;
use plimsoll_plan::choices::Choices;
use plimsoll_plan::program::{EvalJob, Job, compile};
use plimsoll_plan::spec::{
    Activation, ConvBlock, ConvNorm, HeadLayer, HeadSpec, InputLayout, LstmSpec, Param, SeriesAttention, SeriesLoss,
    SeriesSpec, series_params,
};
use plimsoll_plan::train::OptimizerSpec;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// A stream of random numbers (splitmix64).
pub struct Stream(pub u64);

impl Stream {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In 0 .. 1, never 0.
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Normal with mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        ((-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}

fn head(name: &str, hidden: &[usize], outputs: usize) -> Option<HeadSpec> {
    let hidden = hidden.iter().map(|width| HeadLayer { width: *width, dropout: 0.0 }).collect();
    Some(HeadSpec { name: name.into(), hidden, outputs })
}

fn conv(blocks: &[(usize, usize)]) -> Vec<ConvBlock> {
    blocks.iter().map(|(channels, kernel)| ConvBlock { channels: *channels, kernel: *kernel }).collect()
}

/// The first build, small: no width is a multiple of a vector register, and no length of a pool.
pub fn v1() -> SeriesSpec {
    let mut spec = SeriesSpec::plain(7, [5, 6, 9], 10);
    spec.set_dropout(0.0);
    SeriesSpec {
        window: 11,
        attention: SeriesAttention::Additive { units: 7 },
        classes: head("direction_head", &[8], 3),
        confidence: head("confidence_head", &[6], 1),
        values: head("return_head", &[5], 1),
        ..spec
    }
}

/// The second build, small, with positions that are used.
pub fn v2() -> SeriesSpec {
    let mut spec = SeriesSpec::hybrid_v2(7);
    spec.set_dropout(0.0);
    SeriesSpec {
        window: 11,
        conv: conv(&[(5, 3), (6, 5), (9, 7)]),
        lstm: LstmSpec { hidden: 10, ..spec.lstm },
        attention: SeriesAttention::MultiHead { heads: 4, dropout: 0.0, layer_norm: true, positions: 12 },
        classes: head("direction_head", &[8, 5], 3),
        confidence: head("confidence_head", &[6], 1),
        values: head("return_head", &[5], 1),
        ..spec
    }
}

/// The same with so many steps (140) that an LSTM can be walked in stretches: two whole ones and a part.
pub fn long(spec: SeriesSpec) -> SeriesSpec {
    SeriesSpec { window: 20, pool: 1, ..spec }
}

/// Others that the description can say.
pub fn others() -> Vec<(&'static str, SeriesSpec)> {
    let focal = SeriesLoss {
        label_smoothing: 0.1,
        focal_gamma: 1.5,
        class_weights: vec![0.5, 1.25, 2.0],
        ..SeriesLoss::default()
    };
    let plain = SeriesSpec {
        layout: InputLayout::Channels,
        norm: ConvNorm::None,
        window: 13,
        conv: conv(&[(9, 3)]),
        lstm: LstmSpec {
            hidden: 7,
            layers: 1,
            bidirectional: false,
            dropout: 0.0,
            layer_norm: false,
            output_dropout: None,
        },
        attention: SeriesAttention::None,
        confidence: None,
        ..v1()
    };
    let multi_head = SeriesAttention::MultiHead { heads: 2, dropout: 0.0, layer_norm: false, positions: 4 };
    vec![
        ("v1_focal", SeriesSpec { loss: focal.clone(), ..v1() }),
        ("v2_focal", SeriesSpec { loss: focal, ..v2() }),
        // More steps than positions: they are there, and not used.
        (
            "v2_without_positions",
            SeriesSpec {
                attention: SeriesAttention::MultiHead { heads: 4, dropout: 0.0, layer_norm: true, positions: 4 },
                ..v2()
            },
        ),
        // A skip that needs no convolution, and three steps a pool.
        ("same_channels", SeriesSpec { conv: conv(&[(6, 3), (6, 1), (6, 5)]), pool: 3, window: 20, ..v2() }),
        ("plain", plain.clone()),
        ("no_pool", SeriesSpec { pool: 1, activation: Activation::Gelu, residual: true, ..plain.clone() }),
        ("values_alone", SeriesSpec { classes: None, values: head("return_head", &[], 3), ..plain.clone() }),
        (
            "lstm_alone",
            SeriesSpec {
                conv: Vec::new(),
                attention: multi_head,
                lstm: LstmSpec { hidden: 8, ..plain.lstm.clone() },
                ..plain
            },
        ),
    ]
}

/// A batch of windows.
#[derive(Clone, Debug)]
pub struct Windows {
    pub inputs: Vec<f32>,
    pub classes: Vec<u32>,
    pub values: Vec<f32>,
}

impl Windows {
    pub fn draw(spec: &SeriesSpec, samples: usize, stream: &mut Stream, holes: bool) -> Windows {
        let shape = spec.batch(samples);
        let inputs = (0..samples * shape.window * shape.features).map(|_| stream.normal()).collect();
        let classes = spec.classes.as_ref().map_or(0, |head| head.outputs);
        let class = |nth: usize, stream: &mut Stream| match classes {
            0 => IGNORE,
            _ if holes && nth % 5 == 2 => IGNORE,
            n => stream.below(n) as u32,
        };
        let classes = (0..samples).map(|nth| class(nth, stream)).collect();
        let value =
            |nth: usize, stream: &mut Stream| if holes && nth % 4 == 3 { f32::NAN } else { 1.5 * stream.normal() };
        let values = (0..samples * shape.values).map(|nth| value(nth, stream)).collect();
        Windows { inputs, classes, values }
    }

    pub fn samples(&self) -> usize {
        self.classes.len()
    }

    pub fn stage(&self, engine: &mut Engine, range: std::ops::Range<usize>) {
        let samples = self.samples();
        let (width, values) = (self.inputs.len() / samples, self.values.len() / samples);
        let slot = engine.series_slot().unwrap();
        let many = range.len();
        slot.inputs[..many * width].copy_from_slice(&self.inputs[range.start * width..range.end * width]);
        slot.classes[..many].copy_from_slice(&self.classes[range.clone()]);
        slot.values[..many * values].copy_from_slice(&self.values[range.start * values..range.end * values]);
    }
}

/// Weights and running statistics of a model.
pub fn weights(spec: &SeriesSpec, seed: u64) -> Vec<(Param, Vec<f32>)> {
    let mut stream = Stream(seed);
    let mut draw = |param: Param| {
        let n = param.elements();
        let fan = param.shape.iter().skip(1).product::<usize>().max(1) as f32;
        let values: Vec<f32> = match param.name.as_str() {
            name if name.ends_with("num_batches_tracked") => vec![3.0; n],
            name if name.ends_with("running_var") => (0..n).map(|_| 0.5 + stream.unit() as f32).collect(),
            name if name.contains("norm.weight") => (0..n).map(|_| 1.0 + 0.1 * stream.normal()).collect(),
            _ if param.shape.len() > 1 => (0..n).map(|_| stream.normal() * fan.powf(-0.5)).collect(),
            _ => (0..n).map(|_| 0.1 * stream.normal()).collect(),
        };
        (param, values)
    };
    series_params(spec).into_iter().map(&mut draw).collect()
}

pub fn adamw() -> OptimizerSpec {
    OptimizerSpec::AdamW { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 }
}

pub fn job(spec: &SeriesSpec, effective_batch: usize) -> Job {
    let job = Job::of_series(spec.clone(), effective_batch, adamw(), (2, plimsoll_engine::simd::detect()));
    Job { eval: Some(EvalJob { beams: 1, max_new: 0 }), ..job }
}

/// Of what is drawn in updates.
pub const SEED: u64 = 11;

/// Starts an engine with these weights.
pub fn with<R: Send>(
    job: &Job,
    choices: &Choices,
    clip_norm: Option<f64>,
    weights: &[(Param, Vec<f32>)],
    f: impl FnOnce(&mut Engine) -> R + Send,
) -> R {
    let program = compile(job, choices);
    let run = move || {
        let updates = Updates { optimizer: job.optimizer.clone(), clip_norm, seed: SEED };
        let mut engine = Engine::start(program, Some(updates)).unwrap();
        for (index, (param, values)) in weights.iter().enumerate() {
            assert_eq!(engine.program().store.params[index].param.name, param.name);
            engine.param_mut(index).copy_from_slice(values);
        }
        f(&mut engine)
    };
    with_cores(job.threads, || {}, run).unwrap()
}

/// One update, in as many micro-batches as the program wants.
pub fn try_update(engine: &mut Engine, batch: &Windows, update: u64, lr: f64) -> Updated {
    let most = engine.program().shape.samples;
    let mut step = MicroStep { update, samples: most, first_sample: 0, lr: Some(lr) };
    for first in (0..batch.samples()).step_by(most) {
        let end = (first + most).min(batch.samples());
        batch.stage(engine, first..end);
        step = MicroStep { samples: end - first, first_sample: first as u32, ..step };
        engine.micro_step(step).unwrap();
    }
    engine.finish_update(step).unwrap()
}

/// The same, made: the mean loss and the norm.
pub fn update(engine: &mut Engine, batch: &Windows, nth: u64, lr: f64) -> (f64, f64) {
    match try_update(engine, batch, nth, lr) {
        Updated::Done { loss, norm } => (loss.mean(), norm),
        other => panic!("update {nth} was not made: {other:?}"),
    }
}

/// Named tensors.
pub type Tensors = HashMap<String, Vec<f32>>;

/// What Python is asked about one model.
pub struct Question<'a> {
    pub name: &'a str,
    pub spec: &'a SeriesSpec,
    pub weights: &'a [(Param, Vec<f32>)],
    pub batches: &'a [Windows],
    pub micro: usize,
    pub updates: usize,
    pub clip_norm: Option<f64>,
    /// Not trained in the updates.
    pub frozen: Vec<String>,
    /// How each update mixes its samples, where it does.
    pub mixes: Vec<Option<Mix>>,
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn write(path: &Path, tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs_err::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Python, where there is one; else why not.
pub fn python() -> Result<PathBuf, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("PLIMSOLL_PYTHON").map_or_else(|| here.join("../../.venv/bin/python"), PathBuf::from);
    match python.is_file() {
        true => Ok(python),
        false => Err(format!("no Python at `{}`; scripts/test makes one", python.display())),
    }
}

/// The answers, in order; or why there are none.
pub fn ask(binary: &str, questions: &[Question]) -> Result<Vec<Tensors>, String> {
    let python = python()?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{binary}-{}", std::process::id()));
    let mut cases: Vec<Value> = Vec::new();
    for question in questions {
        let folder = scratch.join(question.name);
        fs_err::create_dir_all(&folder).unwrap();
        let list: Vec<_> = question
            .weights
            .iter()
            .map(|(param, values)| (param.name.clone(), Dtype::F32, param.shape.clone(), bytes(values)))
            .collect();
        write(&folder.join("weights.safetensors"), &list);
        let mut list = Vec::new();
        for (nth, batch) in question.batches.iter().enumerate() {
            let shape = question.spec.batch(batch.samples());
            let classes = batch.classes.iter().map(|c| if *c == IGNORE { -1.0 } else { *c as f32 }).collect::<Vec<_>>();
            let inputs = vec![shape.samples, shape.window, shape.features];
            list.push((format!("inputs.{nth}"), Dtype::F32, inputs, bytes(&batch.inputs)));
            list.push((format!("classes.{nth}"), Dtype::F32, vec![shape.samples], bytes(&classes)));
            let values = vec![shape.samples, shape.values];
            list.push((format!("values.{nth}"), Dtype::F32, values, bytes(&batch.values)));
        }
        write(&folder.join("batches.safetensors"), &list);
        let mixes: Vec<_> = question.mixes.iter().map(|mix| mix.map(|mix| (mix.share, mix.shift))).collect();
        cases.push(json!({
            "folder": folder.display().to_string(), "spec": question.spec, "micro": question.micro,
            "updates": question.updates, "clip_norm": question.clip_norm, "frozen": question.frozen, "mixes": mixes,
            "options": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01},
        }));
    }
    let file = scratch.join("cases.json");
    fs_err::write(&file, Value::Array(cases).to_string()).unwrap();
    let out = Command::new(python).arg(here.join("tests/peer/series.py")).arg(&file).output().unwrap();
    assert!(out.status.success(), "series.py: {}", String::from_utf8_lossy(&out.stderr));
    let answers = questions.iter().map(|q| {
        let read = crate::fixture::tensors(&scratch.join(q.name).join("out.safetensors"));
        read.into_iter().map(|(name, (_, values))| (name, values)).collect()
    });
    let answers = answers.collect();
    fs_err::remove_dir_all(&scratch).unwrap();
    Ok(answers)
}
