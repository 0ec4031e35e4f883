//! Adapters: what PEFT can say and we cannot do is refused by name, and what was saved comes back.

mod folders;

use std::path::Path;

use folders::{changed, decoder_config, numbers, raw_file, views, write_file, write_folder, write_weights};
use plimsoll_model::{
    AdapterFolder, Existing, ModelError, ModelFolder, TensorView, Views, adapter_params, merge, save_adapter,
};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::trained::LoraSpec;
use serde_json::{Value, json};
use tempfile::TempDir;

fn lora() -> LoraSpec {
    LoraSpec { r: 2, alpha: 3.0, dropout: 0.1, rslora: false, targets: vec!["q_proj".into(), "v_proj".into()] }
}

/// A small Llama with an adapter in `adapter/`.
fn folder_with_adapter() -> (TempDir, ModelSpec) {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &decoder_config("llama"));
    fs_err::write(dir.path().join("chat_template.jinja"), "{{ x }}").unwrap();
    let spec = ModelFolder::open(dir.path()).unwrap().spec().clone();
    write_weights(dir.path(), &spec);
    save(dir.path(), &lora(), &spec).unwrap();
    (dir, spec)
}

fn save(dir: &Path, lora: &LoraSpec, spec: &ModelSpec) -> Result<(), ModelError> {
    let params = adapter_params(spec, lora)?;
    let data = numbers(&params);
    let mut views = Views::new(&params, &views(&params, &data))?;
    save_adapter(dir.join("adapter"), lora, spec, "some/base", &mut views, dir, Existing::Refuse)
}

fn config_of(dir: &Path) -> Value {
    serde_json::from_str(&fs_err::read_to_string(dir.join("adapter/adapter_config.json")).unwrap()).unwrap()
}

fn open_with(dir: &Path, changes: &[(&str, Value)]) -> Result<AdapterFolder, ModelError> {
    let path = dir.join("adapter/adapter_config.json");
    let honest = fs_err::read_to_string(&path).unwrap();
    fs_err::write(&path, changed(config_of(dir), changes).to_string()).unwrap();
    let opened = AdapterFolder::open(dir.join("adapter"));
    fs_err::write(&path, honest).unwrap();
    opened
}

#[test]
fn an_adapter_comes_back_as_it_was_saved_with_the_tokenizer_beside_it() {
    let (dir, spec) = folder_with_adapter();
    let adapter = AdapterFolder::open(dir.path().join("adapter")).unwrap();
    adapter.check(&spec).unwrap();
    assert_eq!((adapter.lora(), adapter.base()), (&lora(), Some("some/base")));
    let params = adapter_params(&spec, &lora()).unwrap();
    for (param, data) in params.iter().zip(numbers(&params)) {
        let mut out = vec![0.0; data.len()];
        adapter.weights().fill(&param.name, &mut out).unwrap();
        assert_eq!(out, data, "{}", param.name);
    }
    let mut names: Vec<_> =
        fs_err::read_dir(adapter.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = ["adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json"];
    assert_eq!(names, expected);
    assert!(matches!(save(dir.path(), &lora(), &spec), Err(ModelError::Exists { .. })));
    assert_eq!(config_of(dir.path())["lora_alpha"], json!(3));
    assert_eq!(config_of(dir.path())["fan_in_fan_out"], json!(false));
}

#[test]
fn what_we_cannot_do_is_refused_by_the_key_that_asks_for_it() {
    let (dir, _) = folder_with_adapter();
    let absent = [
        ("alora_invocation_tokens", json!([1])),
        ("alpha_pattern", json!({"q_proj": 4})),
        ("arrow_config", json!({"top_k": 1})),
        ("exclude_modules", json!(["q_proj"])),
        ("kasa_config", json!({"x": 1})),
        ("layer_replication", json!([[0, 1]])),
        ("layers_to_transform", json!(0)),
        ("lora_bias", json!(true)),
        ("megatron_config", json!({"x": 1})),
        ("modules_to_save", json!(["lm_head"])),
        ("monteclora_config", json!({"x": 1})),
        ("rank_pattern", json!({"q_proj": 4})),
        ("target_parameters", json!(["x"])),
        ("trainable_token_indices", json!([1])),
        ("use_bdlora", json!({"x": 1})),
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("velora_config", json!({"x": 1})),
    ];
    let others = [
        ("peft_type", json!("ADALORA"), "`LORA`", "ADALORA"),
        ("peft_type", json!("absent"), "`LORA`", "nothing"),
        ("bias", json!("all"), "`none`", "all"),
        ("task_type", json!("SEQ_CLS"), "`CAUSAL_LM` or `SEQ_2_SEQ_LM`", "SEQ_CLS"),
        ("init_lora_weights", json!("pissa"), "`gaussian` or `orthogonal` or `eva`", "pissa"),
        ("init_lora_weights", json!("olora"), "`gaussian` or `orthogonal` or `eva`", "olora"),
        ("r", json!(0), "a whole number from 1 to 65536", "0"),
        ("lora_alpha", json!(0), "a number above 0", "0"),
        ("lora_dropout", json!(1.0), "a number from 0 up to, not including, 1", "1.0"),
        ("use_rslora", json!("yes"), "`true` or `false`", "\"yes\""),
        ("target_modules", json!(".*proj"), "a list of names of modules", "\".*proj\""),
        ("target_modules", json!("absent"), "a list of names of modules", "null"),
        ("target_modules", json!([]), "a list of names of modules", "[]"),
        ("target_modules", json!([1]), "a list of names of modules", "[1]"),
        ("base_model_name_or_path", json!(5), "a text", "5"),
    ];
    let absent = absent.iter().map(|(key, value)| (*key, value.clone(), "absent", value.to_string()));
    let others = others.iter().map(|(key, value, expected, found)| (*key, value.clone(), *expected, found.to_string()));
    for (key, value, expected, found) in absent.chain(others) {
        match open_with(dir.path(), &[(key, value.clone())]) {
            Err(ModelError::ConfigKey { path, key: k, expected: e, found: f }) => {
                assert!(path.ends_with("adapter_config.json"));
                assert_eq!((k, e.as_str(), f), (key, expected, found));
            }
            other => panic!("{key} = {value}: {other:?}"),
        }
    }
    let error = open_with(dir.path(), &[("use_next_years_trick", json!(true))]).unwrap_err();
    assert!(matches!(&error, ModelError::AdapterKey { key, .. } if key == "use_next_years_trick"), "{error}");
    let harmless =
        [("use_next_years_trick", json!(false)), ("peft_version", json!("9")), ("eva_config", json!({"rho": 2}))];
    open_with(dir.path(), &harmless).unwrap();
}

#[test]
fn files_that_are_missing_or_hold_something_else_are_named() {
    let (dir, spec) = folder_with_adapter();
    let adapter = dir.path().join("adapter");
    let weights = adapter.join("adapter_model.safetensors");
    let params = adapter_params(&spec, &lora()).unwrap();
    let data = numbers(&params);
    let named: Vec<String> = params.iter().map(|p| format!("base_model.model.{}", p.name)).collect();
    let tensors: Vec<TensorView<'_>> = params
        .iter()
        .zip(&named)
        .zip(&data)
        .map(|((p, name), data)| TensorView { name, shape: &p.shape, data })
        .collect();
    let open = || AdapterFolder::open(&adapter).and_then(|opened| opened.check(&spec));
    write_file(&weights, &tensors);
    open().unwrap();

    let with = |name: &'static str| [&tensors[..], &[TensorView { name, shape: &[1], data: &[0.0] }]].concat();
    for name in [
        "base_model.model.lm_head.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight",
        "model.layers.0.self_attn.o_proj.lora_A.weight",
    ] {
        write_file(&weights, &with(name));
        match open() {
            Err(ModelError::TrainedExtras { tensors, .. }) => assert_eq!(tensors, [name]),
            other => panic!("{name}: {other:?}"),
        }
    }
    write_file(&weights, &tensors[1..]);
    assert!(matches!(open(), Err(ModelError::TensorMissing { missing: 1, .. })));
    let turned = TensorView { shape: &[8, 2], ..tensors[0] };
    write_file(&weights, &[&[turned], &tensors[1..]].concat());
    assert!(matches!(open(), Err(ModelError::Shape { .. })));
    raw_file(&weights, r#"{"base_model.model.a.lora_A.weight":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#, 3);
    assert!(matches!(open(), Err(ModelError::FileTruncated { .. })));
    for file in ["adapter_model.safetensors", "adapter_config.json"] {
        fs_err::remove_file(adapter.join(file)).unwrap();
        assert!(matches!(open(), Err(ModelError::AdapterMissing { file: missing, .. }) if missing == file));
    }
}

#[test]
fn an_adapter_for_no_module_of_the_model_is_refused() {
    let (dir, spec) = folder_with_adapter();
    for target in ["lm_head", "embed_tokens", "c_attn", "proj"] {
        let lora = LoraSpec { targets: vec![target.into()], ..lora() };
        let error = save(dir.path(), &lora, &spec).unwrap_err();
        assert!(matches!(&error, ModelError::NoSuchModules { targets } if targets == &[target]), "{error}");
    }
}

#[test]
fn a_merge_adds_the_scaled_product_to_the_targets_and_nothing_to_the_others() {
    let (dir, spec) = folder_with_adapter();
    let (base, weights) = ModelFolder::open_with_weights(dir.path()).unwrap();
    let adapter = AdapterFolder::open(dir.path().join("adapter")).unwrap();
    let out = dir.path().join("merged");
    merge(&base, &weights, &adapter, &out, Dtype::F32, Existing::Refuse).unwrap();
    let (_, merged) = ModelFolder::open_with_weights(&out).unwrap();
    let read = |files: &plimsoll_model::WeightFiles, name: &str| {
        let mut out = vec![0.0; files.shape(name).unwrap().iter().product()];
        files.fill(name, &mut out).unwrap();
        out
    };
    for param in spec.params() {
        let mut expected = read(&weights, &param.name);
        if param.name.ends_with("q_proj.weight") || param.name.ends_with("v_proj.weight") {
            let module = param.name.strip_suffix(".weight").unwrap();
            let [a, b] = plimsoll_plan::trained::factor_names(module).map(|name| read(adapter.weights(), &name));
            let inputs = param.shape[1];
            for (i, weight) in expected.iter_mut().enumerate() {
                let (row, col) = (i / inputs, i % inputs);
                *weight += 1.5 * (b[2 * row] * a[col] + b[2 * row + 1] * a[inputs + col]);
            }
        }
        assert_eq!(read(&merged, &param.name), expected, "{}", param.name);
    }
}
