//! Every way a file of weights can lie, and the error that names the lie.

mod folders;

use std::path::Path;

use folders::{config, raw_file, views, write_file, write_folder, write_weights};
use plimsoll_model::{ModelError, ModelFolder, TensorView, WeightFiles};
use plimsoll_plan::spec::{ModelSpec, Param, T5Spec};
use serde_json::json;
use tempfile::TempDir;

/// What is said about a file with this header and so many bytes of data.
fn said(header: &str, data_bytes: usize) -> ModelError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    raw_file(&path, header, data_bytes);
    let error = WeightFiles::open_file(&path).unwrap_err();
    assert!(error.to_string().contains("x.safetensors"), "{error}");
    error
}

/// A good folder, its spec, parameters and numbers.
fn good() -> (TempDir, ModelSpec, Vec<Param>, Vec<Vec<f32>>) {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    let spec = ModelFolder::open(dir.path()).unwrap().spec().clone();
    let (params, data) = write_weights(dir.path(), &spec);
    (dir, spec, params, data)
}

fn index(dir: &Path, map: serde_json::Value) {
    let text = json!({"metadata": {"total_size": 0}, "weight_map": map}).to_string();
    fs_err::write(dir.join("model.safetensors.index.json"), text).unwrap();
}

#[test]
fn a_file_shorter_than_its_length_field_is_cut_in_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for bytes in [0, 7] {
        fs_err::write(&path, vec![0; bytes]).unwrap();
        let error = WeightFiles::open_file(&path).unwrap_err();
        assert!(
            matches!(error, ModelError::HeaderTruncated { expected_bytes: 8, got_bytes, .. } if got_bytes == bytes as u64)
        );
    }
    fs_err::write(&path, 100u64.to_le_bytes()).unwrap();
    let error = WeightFiles::open_file(&path).unwrap_err();
    assert!(matches!(error, ModelError::HeaderTruncated { expected_bytes: 108, got_bytes: 8, .. }), "{error:?}");
}

#[test]
fn a_header_longer_than_any_honest_one_is_refused_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for bytes in [(16u64 << 20) + 1, u64::MAX] {
        fs_err::write(&path, bytes.to_le_bytes()).unwrap();
        let error = WeightFiles::open_file(&path).unwrap_err();
        assert!(matches!(error, ModelError::HeaderTooLong { got_bytes, .. } if got_bytes == bytes), "{error:?}");
    }
}

#[test]
fn a_header_that_is_not_an_object_of_tensors_is_refused() {
    for header in [
        "",
        "[]",
        "{",
        "{} x",
        "\u{0}",
        r#"{"a":1}"#,
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"__metadata__":{"format":1}}"#,
        r#"{"__metadata__":{},"__metadata__":{}}"#,
    ] {
        assert!(matches!(said(header, 4), ModelError::HeaderNotJson { .. }), "{header}");
    }
    let text = said(r#"{"wheel":{"dtype":"F32","shape":"round","data_offsets":[0,4]}}"#, 4).to_string();
    assert!(text.contains("tensor `wheel`: invalid type: string \"round\""), "{text}");
}

#[test]
fn a_tensor_named_twice_is_refused() {
    let header =
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert!(matches!(said(header, 8), ModelError::HeaderNamesTwice { tensor, .. } if tensor == "a"));
}

#[test]
fn an_unknown_dtype_is_named() {
    let header = r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(matches!(said(header, 4), ModelError::DtypeUnknown { found, .. } if found == "F33"));
}

#[test]
fn overlaps_holes_and_reversed_offsets_are_refused_with_the_place() {
    let two = |b: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[1],"data_offsets":{b}}}}}"#
        )
    };
    for (offsets, begin, end) in [("[4,8]", 4, 8), ("[12,16]", 12, 16), ("[8,4]", 8, 4)] {
        match said(&two(offsets), 12) {
            ModelError::Offsets { tensor, expected_begin: 8, begin: b, end: e, .. } => {
                assert_eq!((tensor.as_str(), b, e), ("b", begin, end));
            }
            other => panic!("{offsets}: {other:?}"),
        }
    }
}

#[test]
fn offsets_that_do_not_fit_shape_and_dtype_are_refused() {
    let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}}"#;
    assert!(matches!(said(header, 12), ModelError::TensorBytes { expected_bytes: Some(16), got_bytes: 12, .. }));
    let header = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
    assert!(matches!(said(header, 0), ModelError::TensorBytes { expected_bytes: None, got_bytes: 0, .. }));
    let header = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    assert!(matches!(said(header, 1), ModelError::TensorBytes { expected_bytes: None, .. }));
}

#[test]
fn a_truncated_file_and_one_with_bytes_left_over_are_told_apart() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let whole = 8 + header.len() as u64 + 8;
    match said(header, 7) {
        ModelError::FileTruncated { expected_bytes, got_bytes, .. } => {
            assert_eq!((expected_bytes, got_bytes), (whole, whole - 1));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(said(header, 9), ModelError::FileTooLong { got_bytes, .. } if got_bytes == whole + 1));
    let far = r#"{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#;
    assert!(matches!(said(far, 8), ModelError::TensorBytes { expected_bytes: None, .. }));
    let far = r#"{"a":{"dtype":"U8","shape":[1152921504606846976],"data_offsets":[0,1152921504606846976]}}"#;
    assert!(matches!(said(far, 8), ModelError::FileTruncated { .. }));
}

#[test]
fn a_file_that_shrinks_after_it_was_opened_is_found_out() {
    let (dir, _, params, data) = good();
    let weights = WeightFiles::open(dir.path()).unwrap();
    let file = fs_err::OpenOptions::new().write(true).open(dir.path().join("model.safetensors")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let last = params.len() - 1;
    let error = weights.fill(&params[last].name, &mut vec![0.0; data[last].len()]).unwrap_err();
    assert!(matches!(error, ModelError::FileTruncated { .. }), "{error:?}");
}

#[test]
fn a_folder_is_no_file_and_a_folder_without_weights_says_what_it_has() {
    let (dir, ..) = good();
    let path = dir.path().join("model.safetensors");
    fs_err::remove_file(&path).unwrap();
    fs_err::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
    let error = ModelFolder::open_with_weights(dir.path()).unwrap_err().to_string();
    let expected = "it holds `config.json`, `pytorch_model.bin`, `tokenizer.json`";
    assert!(error.ends_with(expected), "{error}");
    fs_err::create_dir(&path).unwrap();
    assert!(matches!(WeightFiles::open(dir.path()), Err(ModelError::NotAFile { .. })));
}

#[test]
fn missing_tensors_are_named_and_counted() {
    let (dir, spec, ..) = good();
    let deeper = ModelSpec::from(T5Spec { encoder_layers: 2, ..spec.t5().unwrap().clone() });
    match WeightFiles::open(dir.path()).unwrap().check(&deeper.params()) {
        Err(ModelError::TensorMissing { tensor, shape, missing, .. }) => {
            assert_eq!(tensor, "encoder.block.1.layer.0.SelfAttention.q.weight");
            assert_eq!((shape, missing), (vec![6, 6], 8));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_shape_is_named_even_with_the_right_number_of_elements() {
    let (dir, spec, ..) = good();
    let t5 = spec.t5().unwrap().clone();
    let swapped = ModelSpec::from(T5Spec { vocab: t5.d_model, d_model: t5.vocab, ..t5 });
    match WeightFiles::open(dir.path()).unwrap().check(&swapped.params()) {
        Err(ModelError::Shape { tensor, expected, got, .. }) => {
            assert_eq!((tensor.as_str(), expected, got), ("shared.weight", vec![6, 20], vec![20, 6]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dtype_that_is_no_float_is_refused_by_check_and_by_fill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    raw_file(&path, r#"{"n":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#, 8);
    let weights = WeightFiles::open_file(&path).unwrap();
    let init = plimsoll_plan::spec::Init::Ones;
    let error = weights.check(&[Param { name: "n".into(), shape: vec![2], init }]).unwrap_err().to_string();
    assert!(error.ends_with("tensor `n` must be F32, F16 or BF16, found I32"), "{error}");
    assert!(matches!(weights.fill("n", &mut [0.0; 2]), Err(ModelError::DtypeRefused { .. })));
}

#[test]
fn a_slice_of_another_length_is_refused_and_an_unknown_name_too() {
    let (dir, ..) = good();
    let weights = WeightFiles::open(dir.path()).unwrap();
    let error = weights.fill("shared.weight", &mut [0.0; 3]).unwrap_err();
    assert!(matches!(error, ModelError::SliceLength { expected: 120, got: 3, .. }), "{error:?}");
    assert!(matches!(weights.fill("shred.weight", &mut []), Err(ModelError::NoSuchTensor { .. })));
}

#[test]
fn extra_tensors_are_listed_and_refused_only_when_they_are_trained_parts() {
    let (dir, spec, params, data) = good();
    let path = dir.path().join("model.safetensors");
    let extra = |name| TensorView { name, shape: &[1], data: &[1.0] };
    let mut tensors = views(&params, &data);
    tensors.push(extra("qa_outputs.weight"));
    tensors.push(extra("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"));
    write_file(&path, &tensors);
    let (_, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
    assert_eq!(weights.extras(&spec.params()), ["qa_outputs.weight"]);

    tensors.push(extra("encoder.block.1.layer.0.layer_norm.weight"));
    write_file(&path, &tensors);
    match ModelFolder::open_with_weights(dir.path()) {
        Err(ModelError::TrainedExtras { tensors, .. }) => {
            assert_eq!(tensors, ["encoder.block.1.layer.0.layer_norm.weight"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn embeddings_that_differ_between_the_stacks_are_refused() {
    let (dir, _, params, data) = good();
    let path = dir.path().join("model.safetensors");
    let mut other = data[0].clone();
    let same = |data| TensorView { name: "encoder.embed_tokens.weight", shape: &params[0].shape, data };
    let mut tensors = views(&params, &data);
    tensors.push(same(&data[0]));
    write_file(&path, &tensors);
    ModelFolder::open_with_weights(dir.path()).unwrap();
    other[119] += 1.0;
    *tensors.last_mut().unwrap() = same(&other);
    write_file(&path, &tensors);
    let error = ModelFolder::open_with_weights(dir.path()).unwrap_err().to_string();
    assert!(error.contains("`encoder.embed_tokens.weight` differs from `shared.weight`"), "{error}");
}

#[test]
fn an_index_that_lies_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, tensor| {
        write_file(&dir.path().join(name), &[TensorView { name: tensor, shape: &[1], data: &[1.0] }])
    };
    let open = || WeightFiles::open(dir.path());
    file("one.safetensors", "a");
    file("two.safetensors", "b");

    index(dir.path(), json!({"a": "one.safetensors", "b": "two.safetensors"}));
    assert_eq!(open().unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
    for name in ["../one.safetensors", "/one.safetensors", "", ".", "x/one.safetensors"] {
        index(dir.path(), json!({"a": name}));
        assert!(matches!(open(), Err(ModelError::IndexFileName { file, .. }) if file == name), "{name}");
    }
    index(dir.path(), json!({"a": "three.safetensors"}));
    assert!(matches!(open(), Err(ModelError::ShardMissing { shard, .. }) if shard == "three.safetensors"));
    index(dir.path(), json!({"a": "one.safetensors", "b": "one.safetensors"}));
    assert!(matches!(open(), Err(ModelError::NotInShard { tensor, .. }) if tensor == "b"));
    index(dir.path(), json!({"a": "two.safetensors", "b": "one.safetensors"}));
    assert!(matches!(open(), Err(ModelError::NotInShard { .. })));
    file("two.safetensors", "a");
    index(dir.path(), json!({"a": "one.safetensors", "b": "two.safetensors"}));
    match open() {
        Err(ModelError::InTwoShards { tensor, first, second }) => {
            assert_eq!(tensor, "a");
            assert!(first.ends_with("one.safetensors") && second.ends_with("two.safetensors"));
        }
        other => panic!("{other:?}"),
    }
    index(dir.path(), json!(["a"]));
    assert!(matches!(open(), Err(ModelError::Json { .. })));
    index(dir.path(), json!({"a": "one.safetensors"}));
    let shard = fs_err::OpenOptions::new().write(true).open(dir.path().join("one.safetensors")).unwrap();
    shard.set_len(shard.metadata().unwrap().len() - 1).unwrap();
    assert!(matches!(open(), Err(ModelError::FileTruncated { path, .. }) if path.ends_with("one.safetensors")));
}
