//! Every way a config.json can ask for an impossible model, and what is read from a possible one.

mod folders;

use folders::{config, config_with, write_folder};
use plimsoll_model::{ModelError, ModelFolder};
use plimsoll_plan::spec::{FeedForward, T5Spec};
use serde_json::{Value, json};

const KNOWN: &str = "`t5`, `mt5`, `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3` or `cnn-lstm`";

fn open(config: &Value) -> Result<ModelFolder, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), config);
    ModelFolder::open(dir.path())
}

fn spec(changes: &[(&str, Value)]) -> T5Spec {
    open(&config_with(changes)).unwrap().spec().t5().unwrap().clone()
}

#[test]
fn missing_keys_have_the_defaults_of_transformers() {
    let t5 = open(&json!({"model_type": "t5"})).unwrap().spec().t5().unwrap().clone();
    let small = T5Spec {
        vocab: 32128,
        d_model: 512,
        d_kv: 64,
        d_ff: 2048,
        encoder_layers: 6,
        decoder_layers: 6,
        heads: 8,
        buckets: 32,
        max_distance: 128,
        dropout: 0.1,
        norm_eps: 1e-6,
        feed_forward: FeedForward::Relu,
        tied: true,
        scale_head: true,
        pad_id: 0,
        eos_id: 1,
        start_id: 0,
    };
    assert_eq!(t5, small);
    let mt5 = open(&json!({"model_type": "mt5"})).unwrap().spec().t5().unwrap().clone();
    let expected = T5Spec {
        vocab: 250_112,
        d_ff: 1024,
        encoder_layers: 8,
        decoder_layers: 8,
        heads: 6,
        feed_forward: FeedForward::GatedGelu,
        scale_head: false,
        ..small
    };
    assert_eq!(mt5, expected);
}

#[test]
fn the_head_is_scaled_unless_the_config_says_otherwise_in_either_of_its_ways() {
    let cases = [
        (vec![], true, true),
        (vec![("tie_word_embeddings", json!(null))], true, true),
        (vec![("tie_word_embeddings", json!(false))], false, false),
        // As transformers 5 writes a v1.1 model.
        (vec![("tie_word_embeddings", json!(true)), ("scale_decoder_outputs", json!(false))], true, false),
        (vec![("tie_word_embeddings", json!(false)), ("scale_decoder_outputs", json!(true))], false, true),
        (vec![("model_type", json!("mt5"))], true, false),
    ];
    for (changes, tied, scale_head) in cases {
        let spec = spec(&changes);
        assert_eq!((spec.tied, spec.scale_head), (tied, scale_head), "{changes:?}");
    }
}

#[test]
fn decoder_layers_and_start_token_follow_encoder_and_padding() {
    let spec1 = spec(&[("num_layers", json!(3)), ("num_decoder_layers", json!(null)), ("pad_token_id", json!(5))]);
    assert_eq!((spec1.encoder_layers, spec1.decoder_layers, spec1.start_id), (3, 3, 5));
    let spec2 = spec(&[("num_decoder_layers", json!(2)), ("decoder_start_token_id", json!(7))]);
    assert_eq!((spec2.encoder_layers, spec2.decoder_layers, spec2.start_id), (1, 2, 7));
}

#[test]
fn general_names_and_lists_of_end_tokens_are_understood() {
    let spec = spec(&[("d_model", json!("absent")), ("hidden_size", json!(12)), ("eos_token_id", json!([3, 1]))]);
    assert_eq!((spec.d_model, spec.eos_id), (12, 3));
}

#[test]
fn unknown_keys_stay_in_the_raw_config() {
    assert_eq!(open(&config()).unwrap().config()["task_specific_params"], json!({"beams": 4}));
}

#[test]
fn an_impossible_value_is_refused_with_key_expectation_and_value() {
    let cases = [
        ("model_type", json!("bert"), KNOWN, "bert"),
        ("model_type", json!("absent"), KNOWN, "nothing"),
        ("model_type", json!(5), "a text", "5"),
        ("is_encoder_decoder", json!(false), "`true`", "false"),
        ("vocab_size", json!(0), "a whole number from 1 to 2147483647", "0"),
        ("vocab_size", json!(u64::MAX), "a whole number from 1 to 2147483647", "18446744073709551615"),
        ("d_model", json!(0), "a whole number from 1 to 16777216", "0"),
        ("d_model", json!(-3), "a whole number from 1 to 16777216", "-3"),
        ("d_model", json!(6.5), "a whole number from 1 to 16777216", "6.5"),
        ("d_model", json!("6"), "a whole number from 1 to 16777216", "\"6\""),
        ("d_model", json!(null), "a whole number from 1 to 16777216", "null"),
        ("hidden_size", json!(0), "a whole number from 1 to 16777216", "0"),
        ("d_kv", json!(0), "a whole number from 1 to 65536", "0"),
        ("d_ff", json!(0), "a whole number from 1 to 16777216", "0"),
        ("num_heads", json!(0), "a whole number from 1 to 65536", "0"),
        ("num_layers", json!(0), "a whole number from 1 to 4096", "0"),
        ("num_layers", json!(1_000_000_000), "a whole number from 1 to 4096", "1000000000"),
        ("num_decoder_layers", json!(0), "a whole number from 1 to 4096", "0"),
        ("relative_attention_num_buckets", json!(2), "at least 4", "2"),
        ("relative_attention_max_distance", json!(4), "above half of the 8 buckets", "4"),
        ("dropout_rate", json!(1.0), "a number from 0 up to, not including, 1", "1.0"),
        ("dropout_rate", json!(-0.1), "a number from 0 up to, not including, 1", "-0.1"),
        ("dropout_rate", json!("x"), "a number from 0 up to, not including, 1", "\"x\""),
        ("layer_norm_epsilon", json!(0), "a number between 0 and 1", "0"),
        ("initializer_factor", json!(0), "a number above 0", "0"),
        ("feed_forward_proj", json!("gated-silu"), "`relu` or `gated-gelu`", "gated-silu"),
        ("dense_act_fn", json!("gelu_new"), "`relu`, as `feed_forward_proj` has it", "gelu_new"),
        ("is_gated_act", json!(true), "`false`, as `feed_forward_proj` has it", "true"),
        ("tie_word_embeddings", json!("no"), "`true` or `false`", "\"no\""),
        ("scale_decoder_outputs", json!(1), "`true` or `false`", "1"),
        ("pad_token_id", json!(20), "a token id below 20", "20"),
        ("pad_token_id", json!(null), "a token id below 20", "null"),
        ("eos_token_id", json!(-1), "a token id below 20", "-1"),
        ("eos_token_id", json!([]), "a token id below 20", "[]"),
        ("decoder_start_token_id", json!(99), "a token id below 20", "99"),
    ];
    for (key, value, expected, found) in cases {
        match open(&config_with(&[(key, value.clone())])) {
            Err(ModelError::ConfigKey { path, key: k, expected: e, found: f }) => {
                assert!(path.ends_with("config.json"));
                assert_eq!((k, e.as_str(), f.as_str()), (key, expected, found));
            }
            other => panic!("{key} = {value}: {other:?}"),
        }
    }
}

#[test]
fn two_names_of_one_size_must_agree() {
    let error = open(&config_with(&[("head_dim", json!(4))])).unwrap_err().to_string();
    assert!(error.ends_with("key `d_kv` must be 4, as `head_dim` has it, found `3`"), "{error}");
}

#[test]
fn sizes_that_are_possible_one_by_one_but_not_together_are_refused() {
    let huge = config_with(&[
        ("vocab_size", json!(i32::MAX)),
        ("d_model", json!(1 << 24)),
        ("d_ff", json!(1 << 24)),
        ("num_heads", json!(1 << 16)),
        ("d_kv", json!(1 << 16)),
        ("num_layers", json!(4096)),
    ]);
    assert!(
        matches!(open(&huge), Err(ModelError::ModelTooLarge { got_bytes, .. }) if got_bytes > u128::from(u64::MAX))
    );
}

#[test]
fn a_config_that_is_missing_broken_or_huge_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("readme.md"), "x").unwrap();
    match ModelFolder::open(dir.path()) {
        Err(ModelError::ConfigMissing { found, .. }) => assert_eq!(found, ["readme.md"]),
        other => panic!("{other:?}"),
    }
    let path = dir.path().join("config.json");
    fs_err::write(&path, "{\"model_type\":\n \"t5\",,}").unwrap();
    let error = ModelFolder::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json` is not valid: ") && error.contains("line 2 column 7"), "{error}");
    fs_err::write(&path, "[1]").unwrap();
    let error = ModelFolder::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("config.json` must hold a JSON object, found an array"), "{error}");
    fs_err::File::create(&path).unwrap().set_len((16 << 20) + 1).unwrap();
    let error = ModelFolder::open(dir.path()).unwrap_err();
    assert!(matches!(error, ModelError::FileTooLarge { got_bytes: 16_777_217, .. }), "{error:?}");
    fs_err::remove_file(&path).unwrap();
    fs_err::create_dir(&path).unwrap();
    assert!(matches!(ModelFolder::open(dir.path()), Err(ModelError::NotAFile { .. })));
    let error = ModelFolder::open(dir.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn a_folder_without_tokenizer_json_says_what_it_has_instead() {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    let folder = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(folder.tokenizer_path().unwrap(), dir.path().join("tokenizer.json"));
    fs_err::rename(dir.path().join("tokenizer.json"), dir.path().join("spiece.model")).unwrap();
    let error = folder.tokenizer_path().unwrap_err().to_string();
    assert!(error.ends_with("has no `tokenizer.json`; it holds `config.json`, `spiece.model`"), "{error}");
}
