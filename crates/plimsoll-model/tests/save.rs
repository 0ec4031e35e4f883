//! What is written can be read, by us and by the format's own crate, and nothing is ever written over unasked.

mod folders;

use std::path::Path;

use folders::{config, config_with, numbers, raw_file, views, write_file, write_folder, write_weights};
use half::{bf16, f16};
use plimsoll_model::{
    Existing, ModelError, ModelFolder, TensorView, Views, WeightFiles, safetensors_bytes, save_model, write_safetensors,
};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::ModelSpec;
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Saves slices as f32.
fn save(
    out: &Path,
    folder: &ModelFolder,
    tensors: &[TensorView<'_>],
    side: &Path,
    existing: Existing,
) -> Result<(), ModelError> {
    let mut views = Views::new(&folder.spec().params(), tensors)?;
    save_model(out, folder.config(), folder.spec(), Dtype::F32, &mut views, side, existing)
}

fn read_all(weights: &WeightFiles, spec: &ModelSpec) -> Vec<Vec<f32>> {
    spec.params()
        .iter()
        .map(|p| {
            let mut out = vec![f32::NAN; p.elements()];
            weights.fill(&p.name, &mut out).unwrap();
            out
        })
        .collect()
}

fn json_of(path: std::path::PathBuf) -> Value {
    serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_folder_comes_back_as_it_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    for (name, changes) in [
        ("v1.0", vec![]),
        ("untied", vec![("tie_word_embeddings", json!(false)), ("feed_forward_proj", json!("gated-gelu"))]),
        ("unscaled", vec![("scale_decoder_outputs", json!(false))]),
        ("mt5", vec![("model_type", json!("mt5"))]),
    ] {
        let source = dir.path().join(name);
        fs_err::create_dir(&source).unwrap();
        write_folder(&source, &config_with(&changes));
        fs_err::write(source.join("tokenizer_config.json"), "{}").unwrap();
        fs_err::write(source.join("notes.txt"), "mine").unwrap();
        let folder = ModelFolder::open(&source).unwrap();
        let (spec, t5) = (folder.spec(), folder.spec().t5().unwrap());
        let params = spec.params();
        let data = numbers(&params);
        let out = dir.path().join("out").join(name);
        save(&out, &folder, &views(&params, &data), &source, Existing::Refuse).unwrap();

        let (again, weights) = ModelFolder::open_with_weights(&out).unwrap();
        assert_eq!(again.spec(), spec, "{name}");
        assert_eq!(read_all(&weights, spec), data, "{name}");
        assert_eq!(weights.contains("lm_head.weight"), !t5.scale_head, "{name}");
        assert_eq!(weights.metadata("format"), Some("pt"));
        assert_eq!(again.config()["task_specific_params"], json!({"beams": 4}));
        assert_eq!(again.config()["tie_word_embeddings"], json!(t5.scale_head));
        assert_eq!(again.config()["decoder_start_token_id"], json!(0));
        let class = if name == "mt5" { "MT5ForConditionalGeneration" } else { "T5ForConditionalGeneration" };
        assert_eq!(again.config()["architectures"], json!([class]));
        assert_eq!(json_of(out.join("generation_config.json"))["eos_token_id"], json!(1));
        let mut names: Vec<_> = fs_err::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let expected =
            ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
        assert_eq!(names, expected);
    }
    assert_eq!(fs_err::read_dir(dir.path().join("out")).unwrap().count(), 4, "nothing is left beside the models");
}

#[test]
fn numbers_of_the_config_stay_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let source = config_with(&[
        ("dropout_rate", json!(0.1)),
        ("layer_norm_epsilon", json!(1e-6)),
        ("eos_token_id", json!([1, 2])),
        ("odd", json!(0.123_456_789_012_345_68)),
    ]);
    write_folder(dir.path(), &source);
    fs_err::write(dir.path().join("generation_config.json"), r#"{"num_beams":4}"#).unwrap();
    let folder = ModelFolder::open(dir.path()).unwrap();
    let params = folder.spec().params();
    let data = numbers(&params);
    let out = dir.path().join("out");
    save(&out, &folder, &views(&params, &data), dir.path(), Existing::Refuse).unwrap();
    let saved = json_of(out.join("config.json"));
    for key in ["dropout_rate", "layer_norm_epsilon", "eos_token_id", "odd"] {
        assert_eq!(saved[key], source[key], "{key}");
    }
    assert_eq!(json_of(out.join("generation_config.json")), json!({"num_beams": 4}));
}

#[test]
fn a_file_is_laid_out_as_the_format_wants_and_has_the_bytes_foretold() {
    let mut file = Vec::new();
    let texts = [("step", "12"), ("quote", "\"\\\u{1}é")];
    let tensors = [
        TensorView { name: "m/\"x\"", shape: &[2, 1], data: &[1.5, -0.0] },
        TensorView { name: "scalar", shape: &[], data: &[f32::MIN_POSITIVE] },
        TensorView { name: "none", shape: &[0, 3], data: &[] },
    ];
    let written = write_safetensors(&mut file, &texts, &tensors).unwrap();
    assert_eq!(written, file.len() as u64);
    assert_eq!(written, safetensors_bytes(&texts, &tensors).unwrap());
    assert_eq!(u64::from_le_bytes(file[..8].try_into().unwrap()) % 8, 0);
    assert_eq!(file[8], b'{');
    let read = SafeTensors::deserialize(&file).unwrap();
    for tensor in &tensors {
        let view = read.tensor(tensor.name).unwrap();
        assert_eq!(view.shape(), tensor.shape);
        let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(view.data(), bytes);
    }

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint.safetensors");
    fs_err::write(&path, &file).unwrap();
    let weights = WeightFiles::open_file(&path).unwrap();
    for (key, value) in texts {
        assert_eq!(weights.metadata(key), Some(value));
    }
    let mut out = [0.0; 2];
    weights.fill("m/\"x\"", &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), [1.5f32, -0.0].map(f32::to_bits));
    weights.fill("none", &mut []).unwrap();
}

#[test]
fn tensors_that_cannot_be_a_file_are_refused_before_a_byte_is_written() {
    let one = |name, data| TensorView { name, shape: &[1], data };
    let mut sink = Vec::new();
    let mut write = |tensors: &[TensorView<'_>]| write_safetensors(&mut sink, &[], tensors).unwrap_err();
    assert!(matches!(write(&[one("a", &[1.0]), one("a", &[1.0])]), ModelError::GivenTwice { .. }));
    assert!(matches!(write(&[one("a", &[1.0, 2.0])]), ModelError::SliceLength { expected: 1, got: 2, .. }));
    assert!(matches!(write(&[one("__metadata__", &[1.0])]), ModelError::ReservedName { .. }));
    assert!(sink.is_empty());
    let full: &mut [u8] = &mut [0; 16];
    let mut full = std::io::Cursor::new(full);
    assert!(matches!(write_safetensors(&mut full, &[], &[one("a", &[1.0])]), Err(ModelError::Sink(_))));
}

#[test]
fn tensors_that_are_not_the_models_are_refused_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    let folder = ModelFolder::open(dir.path()).unwrap();
    let params = folder.spec().params();
    let data = numbers(&params);
    let good = views(&params, &data);
    let out = dir.path().join("out");
    let save = |tensors: &[TensorView<'_>]| save(&out, &folder, tensors, dir.path(), Existing::Refuse).unwrap_err();
    assert!(matches!(save(&good[1..]), ModelError::NotGiven { tensor } if tensor == "shared.weight"));
    let extra = TensorView { name: "lm_head.weight", ..good[0] };
    assert!(matches!(save(&[&good[..], &[extra]].concat()), ModelError::NoParameter { .. }));
    assert!(matches!(save(&[&good[..], &good[..1]].concat()), ModelError::GivenTwice { .. }));
    let turned = TensorView { shape: &[6, 20], ..good[0] };
    assert!(matches!(save(&[&[turned], &good[1..]].concat()), ModelError::GivenShape { .. }));
    let short = TensorView { data: &good[0].data[1..], ..good[0] };
    assert!(matches!(save(&[&[short], &good[1..]].concat()), ModelError::SliceLength { .. }));
    fs_err::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert!(matches!(save(&good), ModelError::TokenizerMissing { .. }));
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 1, "only the config is left");
}

#[test]
fn an_existing_folder_is_left_alone_unless_told_and_then_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    let folder = ModelFolder::open(dir.path()).unwrap();
    let params = folder.spec().params();
    let data = numbers(&params);
    let out = dir.path().join("model");
    let save = |existing| save(&out, &folder, &views(&params, &data), dir.path(), existing);
    // Empty: a plain rename would go through.
    fs_err::create_dir(&out).unwrap();
    assert!(matches!(save(Existing::Refuse), Err(ModelError::Exists { dir }) if dir == out));
    fs_err::write(out.join("precious"), "x").unwrap();
    assert!(matches!(save(Existing::Refuse), Err(ModelError::Exists { .. })));
    assert!(out.join("precious").exists());
    // Left by a writer that was killed.
    fs_err::create_dir(dir.path().join(".model.partial")).unwrap();
    fs_err::write(dir.path().join(".model.partial/junk"), "x").unwrap();
    save(Existing::Replace).unwrap();
    assert!(!out.join("precious").exists() && !out.join("junk").exists());
    ModelFolder::open_with_weights(&out).unwrap();
    save(Existing::Replace).unwrap();
    assert!(!dir.path().join(".model.partial").exists());

    fs_err::remove_dir_all(&out).unwrap();
    fs_err::write(&out, "a file").unwrap();
    assert!(matches!(save(Existing::Replace), Err(ModelError::NotAFolder { .. })));
    assert_eq!(fs_err::read_to_string(&out).unwrap(), "a file");
}

#[test]
fn the_embedding_is_found_under_its_other_names_and_the_head_is_its_own_only_if_it_differs() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    let spec = ModelFolder::open(dir.path()).unwrap().spec().clone();
    let (params, data) = write_weights(dir.path(), &spec);
    let path = dir.path().join("model.safetensors");
    for name in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"] {
        let mut tensors = views(&params, &data);
        tensors[0].name = name;
        write_file(&path, &tensors);
        let (folder, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
        assert!(folder.spec().t5().unwrap().tied, "{name}");
        assert_eq!(read_all(&weights, &spec), data, "{name}");
    }
    let mut head = data[0].clone();
    for tied in [true, false] {
        let mut tensors = views(&params, &data);
        tensors.push(TensorView { name: "lm_head.weight", shape: &params[0].shape, data: &head });
        write_file(&path, &tensors);
        let (folder, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
        assert_eq!(folder.spec().t5().unwrap().tied, tied);
        assert_eq!(read_all(&weights, folder.spec()).len(), params.len() + usize::from(!tied));
        head[7] += 1.0;
    }
}

proptest! {
    #[test]
    fn half_precision_is_widened_exactly_in_place(bits in prop::collection::vec(any::<u16>(), 0..70)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        for (dtype, widen) in [
            ("F16", (|b| f16::from_bits(b).to_f32()) as fn(u16) -> f32),
            ("BF16", |b| bf16::from_bits(b).to_f32()),
        ] {
            let n = bits.len();
            let header = format!(r#"{{"h":{{"dtype":"{dtype}","shape":[{n}],"data_offsets":[0,{}]}}}}"#, 2 * n);
            raw_file(&path, &header, 0);
            let mut file = fs_err::read(&path).unwrap();
            file.extend(bits.iter().flat_map(|b| b.to_le_bytes()));
            fs_err::write(&path, file).unwrap();
            let mut out = vec![0.0; n];
            WeightFiles::open_file(&path).unwrap().fill("h", &mut out).unwrap();
            for (x, b) in out.iter().zip(&bits) {
                prop_assert!(x.to_bits() == widen(*b).to_bits() || (x.is_nan() && widen(*b).is_nan()));
            }
        }
    }
}
