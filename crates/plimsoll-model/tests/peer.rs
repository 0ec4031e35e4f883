//! transformers and PEFT make folders, we read and rewrite them, they read ours: the same tensors, the same logits.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it the tests say so and pass.

mod folders;

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::{AdapterFolder, Existing, ModelFolder, Views, init, merge, save_adapter, save_model};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{DecoderSpec, ModelSpec, Param, Positions, SeriesSpec, is_running, series_params};
use serde_json::{Value, json};

/// The Python with transformers, or why there is none.
fn python() -> Result<PathBuf, String> {
    let path = match std::env::var_os("PLIMSOLL_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("no Python at `{}`; scripts/test makes one", path.display())),
    }
}

/// Lets a script of `tests/peer` make its cases, hands each to `ours`, and lets the script judge.
fn with_peer(python: &Path, script: &str, cases: usize, ours: impl Fn(&Path, &Value)) {
    let root = tempfile::tempdir().unwrap();
    run(python, script, "make", root.path());
    let mut seen = 0;
    for entry in fs_err::read_dir(root.path()).unwrap() {
        let case = entry.unwrap().path();
        let facts = serde_json::from_str(&fs_err::read_to_string(case.join("facts.json")).unwrap()).unwrap();
        ours(&case, &facts);
        seen += 1;
    }
    assert_eq!(seen, cases);
    run(python, script, "judge", root.path());
}

fn run(python: &Path, script: &str, verb: &str, root: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer").join(script);
    let out = Command::new(python).arg(script).arg(verb).arg(root).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{verb}: {}\n{}", text(&out.stdout), text(&out.stderr));
}

/// `rewritten`: the same weights; `narrow`: the same as bf16; `random`: drawn by us.
fn rewrite(case: &Path) -> ModelFolder {
    let source = case.join("source");
    let (folder, weights) = ModelFolder::open_with_weights(&source).unwrap();
    let spec = folder.spec();
    for (name, dtype) in [("rewritten", Dtype::F32), ("narrow", Dtype::Bf16)] {
        let out = case.join(name);
        save_model(&out, folder.config(), spec, dtype, &mut &weights, &source, Existing::Refuse).unwrap();
        let (again, files) = ModelFolder::open_with_weights(&out).unwrap();
        assert_eq!(again.spec(), spec, "{}", case.display());
        assert_eq!(files.float_dtype(), Some(dtype));
    }
    let params = spec.params();
    let mut data: Vec<Vec<f32>> = params.iter().map(|p| vec![f32::NAN; p.elements()]).collect();
    for (param, out) in params.iter().zip(&mut data) {
        init::fill_random(param, 11, out);
    }
    let mut views = Views::new(&params, &folders::views(&params, &data)).unwrap();
    let out = case.join("random");
    save_model(out, folder.config(), spec, Dtype::F32, &mut views, &source, Existing::Refuse).unwrap();
    folder
}

#[test]
fn a_t5_that_transformers_made_and_we_rewrote_computes_the_same_in_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    with_peer(&python, "models.py", 10, |case, facts| {
        let folder = rewrite(case);
        let spec = folder.spec().t5().unwrap();
        assert_eq!(facts["tied"], spec.tied, "{}", case.display());
        assert_eq!(facts["scale_head"], spec.scale_head, "{}", case.display());
        assert_eq!((spec.encoder_layers, spec.decoder_layers), (2, 3));
    });
}

#[test]
fn a_decoder_that_transformers_made_and_we_rewrote_computes_the_same_in_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    with_peer(&python, "decoders.py", 23, |case, facts| {
        let folder = rewrite(case);
        let spec = folder.spec().decoder().unwrap();
        assert_eq!(told(spec), facts["spec"], "{}", case.display());
        if let Positions::Rope(rope) = spec.positions {
            let theirs: Vec<f32> = serde_json::from_value(facts["frequencies"].clone()).unwrap();
            assert_eq!(theirs.len(), spec.d_head / 2);
            for (i, theirs) in theirs.iter().enumerate() {
                let ours = rope.frequency(i, spec.d_head);
                assert!((ours - theirs).abs() <= 2e-6 * theirs, "{}: {i}: {ours} {theirs}", case.display());
            }
        }
    });
}

#[test]
fn a_cnn_lstm_that_pytorch_wrote_and_we_rewrote_is_loaded_strictly_and_answers_the_same() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    with_peer(&python, "series.py", 5, |case, facts| {
        let folder = rewrite(case);
        let spec = folder.spec().series().unwrap();
        let counted: usize = series_params(spec).iter().filter(|p| !is_running(&p.name)).map(Param::elements).sum();
        assert_eq!(facts["parameters"], counted, "{}", case.display());
        let (_, weights) = ModelFolder::open_with_weights(case.join("source")).unwrap();
        for block in 0..facts["norms"].as_u64().unwrap() {
            let mut count = [0.0];
            weights.fill(&format!("cnn_blocks.{block}.batch_norm.num_batches_tracked"), &mut count).unwrap();
            assert_eq!(count, [5.0], "{}", case.display());
        }
    });
}

#[test]
fn no_head_may_have_a_name_that_a_module_of_pytorch_has() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("names.json");
    run(&python, "series.py", "names", &file);
    let names: Vec<String> = serde_json::from_str(&fs_err::read_to_string(file).unwrap()).unwrap();
    assert!(names.len() > 40);
    for name in names {
        let mut spec = SeriesSpec::hybrid_v1(3);
        spec.values.as_mut().unwrap().name = name.clone();
        assert!(spec.check().is_err(), "`{name}` is taken");
    }
}

#[test]
fn a_config_that_names_its_family_and_nothing_else_means_what_it_means_to_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = tempfile::tempdir().unwrap();
    run(&python, "decoders.py", "defaults", root.path());
    for family in ["gpt2", "llama", "mistral", "qwen2", "qwen3"] {
        let theirs = fs_err::read_to_string(root.path().join(format!("{family}.json"))).unwrap();
        let theirs: Value = serde_json::from_str(&theirs).unwrap();
        let dir = tempfile::tempdir().unwrap();
        folders::write_folder(dir.path(), &json!({ "model_type": family }));
        let folder = ModelFolder::open(dir.path()).unwrap();
        let spec = folder.spec().decoder().unwrap();
        let f32_of = |value: &Value| value.as_f64().map(|n| n as f32);
        for (key, value) in told(spec).as_object().unwrap() {
            assert_eq!(&theirs[key], value, "{family}: {key}");
        }
        assert_eq!(f32_of(&theirs["eps"]), Some(spec.norm_eps), "{family}");
        assert_eq!(f32_of(&theirs["deviation"]), Some(spec.init_std), "{family}");
        let theta = match spec.positions {
            Positions::Learned => None,
            Positions::Rope(rope) => Some(rope.theta),
        };
        assert_eq!(f32_of(&theirs["theta"]), theta, "{family}");
        let dropouts = [spec.dropout.embedding, spec.dropout.attention, spec.dropout.residual];
        assert_eq!([0, 1, 2].map(|i| f32_of(&theirs["dropouts"][i])), dropouts.map(Some), "{family}");
    }
}

/// What the script tells of a model, in its words.
fn told(spec: &DecoderSpec) -> Value {
    let windows: Vec<Option<usize>> = (0..spec.layers).map(|block| spec.window(block)).collect();
    json!({
        "vocab": spec.vocab, "width": spec.d_model, "layers": spec.layers, "heads": spec.heads,
        "kv_heads": spec.kv_heads, "head": spec.d_head, "inner": spec.d_ff, "positions": spec.max_positions,
        "windows": windows, "tied": spec.tied, "bos": spec.bos_id, "eos": spec.eos_ids, "pad": spec.pad_id,
        "parameters": spec_parameters(spec),
    })
}

fn spec_parameters(spec: &DecoderSpec) -> usize {
    ModelSpec::from(spec.clone()).params().iter().map(|p| p.elements()).sum()
}

#[test]
fn adapters_go_both_ways_and_a_merge_is_pefts() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    with_peer(&python, "adapters.py", 8, |case, facts| {
        let base = case.join("base");
        let (folder, weights) = ModelFolder::open_with_weights(&base).unwrap();
        let adapter = AdapterFolder::open(case.join("theirs")).unwrap();
        adapter.check(folder.spec()).unwrap();
        let lora = adapter.lora();
        assert_eq!(facts["scale"].as_f64().unwrap() as f32, lora.scale(), "{}", case.display());
        assert_eq!(facts["targets"], json!(lora.targets), "{}", case.display());
        assert_eq!(adapter.base(), base.to_str());
        let ours = case.join("ours");
        let mut factors = adapter.weights();
        save_adapter(&ours, lora, folder.spec(), base.to_str().unwrap(), &mut factors, &base, Existing::Refuse)
            .unwrap();
        let again = AdapterFolder::open(&ours).unwrap();
        again.check(folder.spec()).unwrap();
        assert_eq!((again.lora(), again.base()), (lora, adapter.base()));
        merge(&folder, &weights, &adapter, case.join("merged"), Dtype::F32, Existing::Refuse).unwrap();
    });
}
