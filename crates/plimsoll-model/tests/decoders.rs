//! Configs and weights of decoders: what is read from a possible one, and how each impossible one is refused.

mod folders;

use std::path::Path;

use folders::{changed, decoder_config, numbers, views, write_file, write_folder, write_weights};
use plimsoll_model::{Existing, ModelError, ModelFolder, TensorView, WeightFiles, save_model};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{DecoderSpec, Positions, RopeScaling, RopeSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

const FAMILIES: [&str; 5] = ["gpt2", "llama", "mistral", "qwen2", "qwen3"];

fn open(family: &str, changes: &[(&str, Value)]) -> Result<DecoderSpec, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &changed(decoder_config(family), changes));
    Ok(ModelFolder::open(dir.path())?.spec().decoder().unwrap().clone())
}

fn spec(family: &str, changes: &[(&str, Value)]) -> DecoderSpec {
    open(family, changes).unwrap()
}

#[test]
fn an_impossible_value_is_refused_with_key_expectation_and_value() {
    let width = "a whole number from 1 to 16777216";
    let probability = "a number from 0 up to, not including, 1";
    let cases = [
        ("gpt2", "vocab_size", json!(0), "a whole number from 1 to 2147483647", "0"),
        ("gpt2", "n_embd", json!(0), width, "0"),
        ("gpt2", "n_embd", json!(1u64 << 40), width, "1099511627776"),
        ("gpt2", "n_inner", json!(0), width, "0"),
        ("gpt2", "n_layer", json!(0), "a whole number from 1 to 4096", "0"),
        ("gpt2", "n_head", json!(3), "a divisor of the width 8", "3"),
        ("gpt2", "n_positions", json!(0), "a whole number from 1 to 2147483647", "0"),
        ("gpt2", "hidden_size", json!(9), "9, as `hidden_size` has it", "8"),
        ("gpt2", "activation_function", json!("relu"), "`gelu_new` or `gelu_pytorch_tanh`", "relu"),
        ("gpt2", "scale_attn_weights", json!(false), "`true`", "false"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true), "`false`", "true"),
        ("gpt2", "add_cross_attention", json!(true), "`false`", "true"),
        ("gpt2", "embd_pdrop", json!(1.0), probability, "1.0"),
        ("gpt2", "attn_pdrop", json!(-0.5), probability, "-0.5"),
        ("gpt2", "resid_pdrop", json!("x"), probability, "\"x\""),
        ("gpt2", "layer_norm_epsilon", json!(0), "a number between 0 and 1", "0"),
        ("gpt2", "initializer_range", json!(2.0), "a number from 0 to 1", "2.0"),
        ("gpt2", "bos_token_id", json!(20), "a token id below 20", "20"),
        ("gpt2", "eos_token_id", json!("absent"), "a token id below 20", "50256"),
        ("llama", "is_encoder_decoder", json!(true), "`false`", "true"),
        ("llama", "quantization_config", json!({"bits": 4}), "absent", r#"{"bits":4}"#),
        ("llama", "num_experts", json!(8), "absent", "8"),
        ("llama", "num_local_experts", json!(8), "absent", "8"),
        ("llama", "n_routed_experts", json!(8), "absent", "8"),
        ("llama", "hidden_act", json!("gelu"), "`silu`", "gelu"),
        ("llama", "hidden_size", json!(-1), width, "-1"),
        ("llama", "intermediate_size", json!(null), width, "null"),
        ("llama", "num_hidden_layers", json!(5000), "a whole number from 1 to 4096", "5000"),
        ("llama", "num_attention_heads", json!(3), "a divisor of the width 8", "3"),
        ("llama", "num_key_value_heads", json!(0), "a whole number from 1 to 65536", "0"),
        ("llama", "num_key_value_heads", json!(4), "a divisor of the 2 heads", "4"),
        ("llama", "head_dim", json!(3), "even, for rotary positions", "3"),
        ("llama", "head_dim", json!(0), "a whole number from 1 to 65536", "0"),
        ("qwen3", "head_dim", json!(null), "a whole number from 1 to 65536", "null"),
        ("llama", "max_position_embeddings", json!(0), "a whole number from 1 to 2147483647", "0"),
        ("llama", "rms_norm_eps", json!(1), "a number between 0 and 1", "1"),
        ("llama", "attention_dropout", json!(1), probability, "1"),
        ("llama", "attention_bias", json!("yes"), "`true` or `false`", "\"yes\""),
        ("llama", "mlp_bias", json!(1), "`true` or `false`", "1"),
        ("llama", "tie_word_embeddings", json!(1), "`true` or `false`", "1"),
        ("llama", "eos_token_id", json!([]), "a token id below 20, or several", "[]"),
        ("llama", "eos_token_id", json!([1, 20]), "a token id below 20, or several", "[1,20]"),
        ("llama", "eos_token_id", json!(-1), "a token id below 20", "-1"),
        ("llama", "pad_token_id", json!(20), "a token id below 20", "20"),
        ("llama", "pad_token_id", json!(-2), "a token id below 20", "-2"),
        ("llama", "rope_theta", json!(0), "a number from 1 on", "0"),
        ("llama", "rope_theta", json!("x"), "a number from 1 on", "\"x\""),
        ("llama", "partial_rotary_factor", json!(0.5), "1", "0.5"),
        ("llama", "rope_scaling", json!("linear"), "an object", "\"linear\""),
        ("mistral", "sliding_window", json!(0), "a whole number from 1 to 2147483647", "0"),
        ("qwen2", "max_window_layers", json!(-1), "a whole number", "-1"),
        ("qwen2", "use_sliding_window", json!(1), "`true` or `false`", "1"),
        (
            "qwen2",
            "layer_types",
            json!(["full_attention"]),
            "`full_attention` or `sliding_attention` for each of 2 blocks",
            r#"["full_attention"]"#,
        ),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            "`full_attention` or `sliding_attention` for each of 2 blocks",
            r#"["full_attention","linear_attention"]"#,
        ),
        (
            "qwen3",
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "`full_attention` for every block, as there is no sliding window",
            r#"["full_attention","sliding_attention"]"#,
        ),
        (
            "mistral",
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "`sliding_attention` for every block, as `sliding_window` has it",
            r#"["full_attention","sliding_attention"]"#,
        ),
    ];
    for (family, key, value, expected, found) in cases {
        match open(family, &[(key, value.clone())]) {
            Err(ModelError::ConfigKey { path, key: k, expected: e, found: f }) => {
                assert!(path.ends_with("config.json"));
                let shown = if key == "hidden_size" && family == "gpt2" { "n_embd" } else { key };
                assert_eq!((k, e.as_str(), f.as_str()), (shown, expected, found), "{family}");
            }
            other => panic!("{family}: {key} = {value}: {other:?}"),
        }
    }
}

#[test]
fn rotary_positions_that_are_not_computed_are_refused_by_what_is_wrong_with_them() {
    let llama3 = |changes: &[(&str, Value)]| {
        let whole = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
        changed(whole, changes)
    };
    let kinds = "an object whose `rope_type` is `default`, `linear` or `llama3`";
    for (said, expected) in [
        (json!({"rope_type": "yarn", "factor": 4.0}), kinds),
        (json!({"type": "dynamic", "factor": 4.0}), kinds),
        (json!({"rope_type": 5}), kinds),
        (json!({"rope_type": "linear"}), "an object whose `factor` is a number from 1 on"),
        (json!({"rope_type": "linear", "factor": 0.5}), "an object whose `factor` is a number from 1 on"),
        (json!({"rope_theta": 0.5}), "an object whose `rope_theta` is a number from 1 on"),
        (json!({"partial_rotary_factor": 0.5}), "an object whose `partial_rotary_factor`, if any, is 1"),
        (json!({"full_attention": {"rope_theta": 1e4}}), "one set of numbers for all blocks"),
        (json!({"sliding_attention": {"rope_theta": 1e4}}), "one set of numbers for all blocks"),
        (llama3(&[("factor", json!("absent"))]), "an object whose `factor` is a number from 1 on"),
        (llama3(&[("low_freq_factor", json!(0))]), "an object whose `low_freq_factor` is a number above 0"),
        (llama3(&[("high_freq_factor", json!("x"))]), "an object whose `high_freq_factor` is a number above 0"),
        (
            llama3(&[("high_freq_factor", json!(1.0))]),
            "an object whose `high_freq_factor` is above its `low_freq_factor`",
        ),
        (
            llama3(&[("original_max_position_embeddings", json!(0))]),
            "an object whose `original_max_position_embeddings` is a whole number above 0",
        ),
    ] {
        for name in ["rope_parameters", "rope_scaling"] {
            match open("llama", &[(name, said.clone())]) {
                Err(ModelError::ConfigKey { key, expected: e, found, .. }) => {
                    assert_eq!((key, e.as_str(), found), (name, expected, said.to_string()));
                }
                other => panic!("{said}: {other:?}"),
            }
        }
    }
}

#[test]
fn rotary_positions_are_read_from_old_and_new_keys() {
    let rope = |changes: &[(&str, Value)]| match spec("qwen2", changes).positions {
        Positions::Rope(rope) => rope,
        Positions::Learned => panic!("learned"),
    };
    let plain = |theta| RopeSpec { theta, scaling: RopeScaling::Default };
    assert_eq!(rope(&[]), plain(1e4));
    assert_eq!(rope(&[("rope_theta", json!(1e6)), ("rope_scaling", json!(null))]), plain(1e6));
    assert_eq!(rope(&[("rope_theta", json!(5.0)), ("rope_parameters", json!({"rope_theta": 7}))]), plain(7.0));
    // The old key wins, as it does in transformers 5.
    let linear = json!({"type": "linear", "factor": 2.0});
    let both = rope(&[("rope_scaling", linear), ("rope_parameters", json!({"rope_theta": 7.0}))]);
    assert_eq!(both, RopeSpec { theta: 1e4, scaling: RopeScaling::Linear { factor: 2.0 } });
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    for (changes, context) in [(vec![], 10), (vec![("original_max_position_embeddings", json!(6))], 6)] {
        let mut all = changes.clone();
        all.push(("rope_parameters", llama3.clone()));
        let RopeScaling::Llama3 { original_context, factor, .. } = rope(&all).scaling else { panic!() };
        assert_eq!((original_context, factor), (context, 8.0));
    }
}

#[test]
fn windows_follow_each_familys_own_keys() {
    assert_eq!(spec("mistral", &[]).windows, [Some(4096); 2]);
    assert!(spec("mistral", &[("sliding_window", json!(null))]).windows.is_empty());
    assert!(spec("llama", &[("sliding_window", json!(4))]).windows.is_empty());
    let on = ("use_sliding_window", json!(true));
    assert!(spec("qwen2", &[("sliding_window", json!(4)), ("max_window_layers", json!(0))]).windows.is_empty());
    let from_second = [on.clone(), ("sliding_window", json!(4)), ("max_window_layers", json!(1))];
    assert_eq!(spec("qwen2", &from_second).windows, [None, Some(4)]);
    assert!(spec("qwen3", std::slice::from_ref(&on)).windows.is_empty(), "28 blocks without one come first");
    let types = ("layer_types", json!(["sliding_attention", "attention"]));
    assert_eq!(spec("qwen3", &[on, types]).windows, [Some(4096), None]);
}

#[test]
fn small_differences_between_the_families_are_kept() {
    for family in ["mistral", "qwen2"] {
        let said = spec(family, &[("attention_bias", json!(true)), ("mlp_bias", json!(true))]);
        assert_eq!((said.qkv_bias, said.out_bias, said.mlp_bias), (family == "qwen2", false, false), "{family}");
    }
    let qwen3 = spec("qwen3", &[("attention_bias", json!(true)), ("mlp_bias", json!(true))]);
    assert_eq!((qwen3.qkv_bias, qwen3.out_bias, qwen3.mlp_bias), (true, true, false));
    assert_eq!(spec("llama", &[("num_key_value_heads", json!(null))]).kv_heads, 2);
    assert_eq!(spec("llama", &[("attention_dropout", json!(null))]).dropout.attention, 0.0);
    assert_eq!(spec("llama", &[("pad_token_id", json!(-1))]).pad_id, None);
    assert_eq!(spec("llama", &[("eos_token_id", json!([2, 7]))]).eos_ids, [2, 7]);
    assert!(spec("llama", &[("eos_token_id", json!(null))]).eos_ids.is_empty());
    assert_eq!(spec("llama", &[("initializer_range", json!(0.0))]).init_std, 0.02);
    assert_eq!(spec("llama", &[("hidden_act", json!("swish"))]), spec("llama", &[]));
    assert_eq!(spec("gpt2", &[("reorder_and_upcast_attn", json!(true))]), spec("gpt2", &[]));
}

#[test]
fn sizes_that_are_possible_one_by_one_but_not_together_are_refused() {
    let side = json!(1 << 24);
    let huge = [("vocab_size", json!(i32::MAX)), ("hidden_size", side.clone()), ("intermediate_size", side)];
    assert!(matches!(open("llama", &huge), Err(ModelError::ModelTooLarge { .. })));
}

/// A folder with weights.
fn weighted(family: &str, changes: &[(&str, Value)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &changed(decoder_config(family), changes));
    let spec = ModelFolder::open(dir.path()).unwrap().spec().clone();
    write_weights(dir.path(), &spec);
    dir
}

#[test]
fn a_folder_comes_back_as_it_was_saved_with_the_keys_that_are_not_ours() {
    for family in FAMILIES {
        let dir = weighted(family, &[("eos_token_id", json!([2, 7])), ("odd", json!(0.123_456_789_012_345_68))]);
        let (folder, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
        let out = dir.path().join("out");
        let spec = folder.spec();
        save_model(&out, folder.config(), spec, Dtype::F32, &mut &weights, dir.path(), Existing::Refuse).unwrap();
        let (again, written) = ModelFolder::open_with_weights(&out).unwrap();
        assert_eq!(again.spec(), spec, "{family}");
        for param in spec.params() {
            let mut both = [vec![0.0; param.elements()], vec![1.0; param.elements()]];
            weights.fill(&param.name, &mut both[0]).unwrap();
            written.fill(&param.name, &mut both[1]).unwrap();
            assert_eq!(both[0], both[1], "{family}: {}", param.name);
        }
        for key in ["eos_token_id", "odd", "task_specific_params"] {
            assert_eq!(again.config()[key], folder.config()[key], "{family}: {key}");
        }
        let generation: Value =
            serde_json::from_str(&fs_err::read_to_string(out.join("generation_config.json")).unwrap()).unwrap();
        assert_eq!(generation["eos_token_id"], json!([2, 7]));
        assert_eq!(written.contains("lm_head.weight"), family != "gpt2");
    }
}

#[test]
fn a_spec_that_the_config_does_not_say_is_not_saved() {
    let dir = weighted("llama", &[]);
    let (folder, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
    let other = DecoderSpec { windows: vec![Some(3); 2], ..folder.spec().decoder().unwrap().clone() };
    let out = dir.path().join("out");
    let save = |spec: &DecoderSpec, dtype| {
        let spec = spec.clone().into();
        save_model(&out, folder.config(), &spec, dtype, &mut &weights, dir.path(), Existing::Refuse)
    };
    assert!(matches!(save(&other, Dtype::F32), Err(ModelError::SpecNotSaid { .. })));
    let mut dropped = folder.spec().clone();
    let refused = save(dropped.decoder().unwrap(), Dtype::Int8);
    assert!(matches!(refused, Err(ModelError::DtypeNotSaved { dtype: Dtype::Int8 })));
    assert!(!out.exists());
    // What a job changes for a run must not keep the model from being saved.
    dropped.set_dropout(0.25);
    save(dropped.decoder().unwrap(), Dtype::F32).unwrap();
}

/// The weights of a folder, changed as a list of names and numbers.
fn rewrite(dir: &Path, change: impl Fn(&mut Vec<(String, Vec<usize>, Vec<f32>)>)) {
    let spec = ModelFolder::open(dir).unwrap().spec().clone();
    let params = spec.params();
    let mut list: Vec<_> =
        params.iter().zip(numbers(&params)).map(|(p, data)| (p.name.clone(), p.shape.clone(), data)).collect();
    change(&mut list);
    let tensors: Vec<TensorView<'_>> =
        list.iter().map(|(name, shape, data)| TensorView { name, shape, data }).collect();
    write_file(&dir.join("model.safetensors"), &tensors);
}

#[test]
fn a_head_is_tied_only_where_the_config_says_so_and_the_files_agree() {
    let tie = [("tie_word_embeddings", json!(true))];
    let tied = |dir: &TempDir| {
        ModelFolder::open_with_weights(dir.path()).map(|(f, w)| {
            assert!(w.extras(&f.spec().params()).is_empty());
            f.spec().decoder().unwrap().tied
        })
    };
    let dir = weighted("llama", &tie);
    assert!(tied(&dir).unwrap());
    rewrite(dir.path(), |list| list.push(("lm_head.weight".into(), list[0].1.clone(), list[0].2.clone())));
    assert!(tied(&dir).unwrap());
    rewrite(dir.path(), |list| list.push(("lm_head.weight".into(), list[0].1.clone(), vec![0.5; 160])));
    assert!(!tied(&dir).unwrap());
    rewrite(dir.path(), |list| list[0].0 = "lm_head.weight".into());
    assert!(tied(&dir).unwrap());

    let dir = weighted("llama", &[]);
    rewrite(dir.path(), |list| list.last_mut().unwrap().2 = list[0].2.clone());
    assert!(!tied(&dir).unwrap(), "equal, but not said to be one");
    rewrite(dir.path(), |list| drop(list.pop()));
    assert!(matches!(tied(&dir), Err(ModelError::TensorMissing { tensor, .. }) if tensor == "lm_head.weight"));
    rewrite(dir.path(), |list| drop(list.remove(0)));
    assert!(
        matches!(tied(&dir), Err(ModelError::TensorMissing { tensor, .. }) if tensor == "model.embed_tokens.weight")
    );
}

#[test]
fn trained_tensors_without_a_place_are_refused_and_buffers_are_not() {
    let dir = weighted("gpt2", &[]);
    rewrite(dir.path(), |list| {
        list.iter_mut().for_each(|one| one.0 = one.0.replace("transformer.", ""));
        list.push(("h.0.attn.bias".into(), vec![1, 1, 2, 2], vec![1.0; 4]));
        list.push(("h.1.attn.masked_bias".into(), vec![], vec![-1e4]));
        list.push(("score.weight".into(), vec![1, 8], vec![0.0; 8]));
    });
    let (folder, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
    assert_eq!(weights.extras(&folder.spec().params()), ["score.weight"]);
    for (family, extra) in [
        ("gpt2", "h.2.ln_1.weight"),
        ("gpt2", "transformer.h.0.crossattention.c_attn.weight"),
        ("llama", "model.layers.2.mlp.up_proj.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("llama", "norm.weight"),
        ("qwen2", "model.layers.0.self_attn.q_norm.weight"),
    ] {
        let dir = weighted(family, &[]);
        rewrite(dir.path(), |list| list.push((extra.into(), vec![1], vec![0.0])));
        match ModelFolder::open_with_weights(dir.path()) {
            Err(ModelError::TrainedExtras { tensors, .. }) => assert_eq!(tensors, [extra]),
            other => panic!("{extra}: {other:?}"),
        }
    }
}

#[test]
fn any_part_of_a_tensor_can_be_read_and_nothing_beyond_it() {
    let dir = weighted("llama", &[]);
    let (folder, wide) = ModelFolder::open_with_weights(dir.path()).unwrap();
    let out = dir.path().join("narrow");
    save_model(&out, folder.config(), folder.spec(), Dtype::Bf16, &mut &wide, dir.path(), Existing::Refuse).unwrap();
    let narrow = WeightFiles::open(&out).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight";
    for (files, dtype) in [(&wide, Dtype::F32), (&narrow, Dtype::Bf16)] {
        assert_eq!(files.dtype(name).unwrap(), dtype);
        assert_eq!(files.float_dtype(), Some(dtype));
        let mut whole = vec![0.0; 96];
        files.fill(name, &mut whole).unwrap();
        for (first, count) in [(0, 96), (0, 0), (96, 0), (95, 1), (7, 30)] {
            let mut part = vec![f32::NAN; count];
            files.fill_part(name, first, &mut part).unwrap();
            assert_eq!(part, whole[first..first + count]);
        }
        for (first, count) in [(96, 1), (90, 7), (usize::MAX, 2)] {
            let error = files.fill_part(name, first, &mut vec![0.0; count]).unwrap_err();
            assert!(matches!(error, ModelError::PartRange { elements: 96, .. }), "{error}");
        }
    }
}

#[test]
fn a_folder_of_several_dtypes_has_none_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let header = |first: &str, bytes: usize| {
        let end = bytes + 4;
        format!(
            r#"{{"a":{{"dtype":"{first}","shape":[1,2],"data_offsets":[0,{bytes}]}},"b":{{"dtype":"BF16","shape":[2,1],"data_offsets":[{bytes},{end}]}}}}"#
        )
    };
    for (first, bytes, expected) in [("BF16", 4, Some(Dtype::Bf16)), ("F32", 8, None), ("I8", 2, None)] {
        folders::raw_file(&path, &header(first, bytes), bytes + 4);
        assert_eq!(WeightFiles::open_file(&path).unwrap().float_dtype(), expected, "{first}");
    }
    let files = WeightFiles::open_file(&path).unwrap();
    assert!(matches!(files.dtype("a"), Err(ModelError::DtypeRefused { .. })));
    assert!(matches!(files.fill_part("a", 0, &mut [0.0]), Err(ModelError::DtypeRefused { .. })));
}

#[test]
fn views_of_a_decoder_are_written_under_its_names() {
    let dir = weighted("qwen3", &[]);
    let folder = ModelFolder::open(dir.path()).unwrap();
    let params = folder.spec().params();
    let data = numbers(&params);
    let mut source = plimsoll_model::Views::new(&params, &views(&params, &data)).unwrap();
    let out = dir.path().join("out");
    save_model(&out, folder.config(), folder.spec(), Dtype::F32, &mut source, dir.path(), Existing::Refuse).unwrap();
    let names: Vec<String> = WeightFiles::open(&out).unwrap().names().map(String::from).collect();
    assert!(names.contains(&"model.layers.1.self_attn.q_norm.weight".to_string()));
    assert_eq!(names.len(), params.len());
}
