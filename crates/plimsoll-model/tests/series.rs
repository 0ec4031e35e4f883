//! Models of series: folders and descriptions, whole, wrong and mutilated.

mod folders;

use std::io::Write;
use std::path::{Path, PathBuf};

use folders::{raw_file, views};
use half::f16;
use plimsoll_model::{
    Existing, ModelError, ModelFolder, NORMALISATION_LIMIT, SeriesInput, Views, WeightFiles, WriteText, init,
    save_model, save_series,
};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::spec::{ModelSpec, Param, SeriesAttention, SeriesSpec, series_params};
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as FileDtype, TensorView};
use serde_json::{Value, json};

const NORMALISATION: &str = r#"{"mean": [0.1, 2.5e-3]}"#;

fn small() -> SeriesSpec {
    let mut spec = SeriesSpec { window: 9, ..SeriesSpec::hybrid_v2(5) };
    spec.conv.iter_mut().for_each(|block| block.channels = 4);
    spec.lstm.hidden = 4;
    spec
}

/// Numbers for all parameters; counts are whole.
fn drawn(spec: &SeriesSpec) -> (Vec<Param>, Vec<Vec<f32>>) {
    let params = series_params(spec);
    let draw = |param: &Param| {
        let mut out = vec![0.0; param.elements()];
        init::fill_random(param, 3, &mut out);
        if param.name.ends_with("num_batches_tracked") {
            out.fill(16_777_216.0);
        }
        out
    };
    let data = params.iter().map(draw).collect();
    (params, data)
}

fn save(dir: &Path, spec: &SeriesSpec, normalisation: Option<&str>) -> Result<Vec<Vec<f32>>, ModelError> {
    let (params, data) = drawn(spec);
    let mut tensors = Views::new(&params, &views(&params, &data))?;
    let text = normalisation.unwrap_or_default();
    let write = |out: &mut dyn Write| out.write_all(text.as_bytes());
    let normalisation = normalisation.is_some().then_some(&write as WriteText<'_>);
    save_series(dir, spec, Dtype::F32, &mut tensors, normalisation, Existing::Refuse)?;
    Ok(data)
}

fn read_all(weights: &WeightFiles, spec: &SeriesSpec) -> Vec<Vec<u32>> {
    let read = |param: &Param| {
        let mut out = vec![f32::NAN; param.elements()];
        weights.fill(&param.name, &mut out).unwrap();
        out.iter().map(|x| x.to_bits()).collect()
    };
    series_params(spec).iter().map(read).collect()
}

fn bits(data: &[Vec<f32>]) -> Vec<Vec<u32>> {
    data.iter().map(|values| values.iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn a_folder_comes_back_to_the_bit_and_again_when_it_is_saved_from_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a"), dir.path().join("b"));
    for (nth, spec) in [small(), SeriesSpec { confidence: None, ..small() }].into_iter().enumerate() {
        let (first, second) = (first.join(nth.to_string()), second.join(nth.to_string()));
        let data = save(&first, &spec, Some(NORMALISATION)).unwrap();
        let (folder, weights) = ModelFolder::open_with_weights(&first).unwrap();
        assert_eq!(folder.spec(), &ModelSpec::Series(spec.clone()));
        assert_eq!(read_all(&weights, &spec), bits(&data));
        assert_eq!(weights.float_dtype(), Some(Dtype::F32));
        assert_eq!(folder.normalisation().unwrap().as_deref(), Some(NORMALISATION));

        let (config, model) = (folder.config(), folder.spec());
        save_model(&second, config, model, Dtype::F32, &mut &weights, folder.dir(), Existing::Refuse).unwrap();
        for name in ["config.json", "model.safetensors", "normalisation.json"] {
            let [a, b] = [&first, &second].map(|dir| fs_err::read(dir.join(name)).unwrap());
            assert!(a == b, "{name}");
        }
        let mut names: Vec<_> = fs_err::read_dir(&second).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "model.safetensors", "normalisation.json"]);
    }
}

#[test]
fn a_normalisation_of_thousands_of_series_is_written_and_read_and_a_longer_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // More than any other small file of a folder may have.
    let long = format!("{{\"means\": [{}0]}}", "0.125, ".repeat(3 << 20));
    assert!(long.len() > 16 << 20);
    save(&dir.path().join("long"), &small(), Some(&long)).unwrap();
    let folder = ModelFolder::open(dir.path().join("long")).unwrap();
    assert!(folder.normalisation().unwrap().as_ref() == Some(&long));

    let path = dir.path().join("long/normalisation.json");
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().set_len(NORMALISATION_LIMIT + 1).unwrap();
    assert!(matches!(folder.normalisation(), Err(ModelError::FileTooLarge { .. })));
}

#[test]
fn what_is_no_normalisation_is_not_saved_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m");
    for text in ["", "{", "{} {}", "mean"] {
        let error = save(&out, &small(), Some(text)).unwrap_err();
        assert!(matches!(&error, ModelError::Json { path, .. } if path.ends_with("m/normalisation.json")), "{error}");
    }
    let (params, data) = drawn(&small());
    let mut tensors = Views::new(&params, &views(&params, &data)).unwrap();
    let write = |_: &mut dyn Write| Err(std::io::Error::other("no more room"));
    let saved = save_series(&out, &small(), Dtype::F32, &mut tensors, Some(&write), Existing::Refuse);
    assert!(saved.unwrap_err().to_string().contains("no more room"));
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_count_of_batches_is_a_whole_number_of_64_bits_at_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m");
    save(&out, &small(), None).unwrap();
    let file = fs_err::read(out.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for (name, view) in tensors.tensors() {
        let at = view.data().as_ptr() as usize - file.as_ptr() as usize;
        let (dtype, bytes) =
            if name.ends_with("num_batches_tracked") { (FileDtype::I64, 8) } else { (FileDtype::F32, 4) };
        assert_eq!((view.dtype(), at % bytes), (dtype, 0), "{name}");
        if dtype == FileDtype::I64 {
            assert_eq!((view.shape(), view.data()), (&[][..], &(1i64 << 24).to_le_bytes()[..]));
        }
    }
    assert!(!out.join("normalisation.json").exists());
}

#[test]
fn a_count_that_is_none_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let (params, data) = drawn(&small());
    for wrong in [f32::NAN, -1.0, 0.5, f32::INFINITY] {
        let data: Vec<Vec<f32>> = params
            .iter()
            .zip(&data)
            .map(|(p, values)| if p.name.ends_with("tracked") { vec![wrong] } else { values.clone() })
            .collect();
        let mut tensors = Views::new(&params, &views(&params, &data)).unwrap();
        let out = dir.path().join("m");
        let error = save_series(&out, &small(), Dtype::F32, &mut tensors, None, Existing::Refuse).unwrap_err();
        assert!(matches!(&error, ModelError::CountGiven { tensor, .. } if tensor.ends_with("tracked")), "{error}");
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}

/// A tensor as somebody else writes it.
type Given = (FileDtype, Vec<usize>, Vec<u8>);

/// Writes the model's tensors as somebody else would; what has no bytes is left out.
fn write_as(path: &Path, spec: &SeriesSpec, change: impl Fn(&str, Vec<f32>) -> Option<Given>) {
    let (params, data) = drawn(spec);
    let list: Vec<(String, Given)> = params
        .iter()
        .zip(data)
        .filter_map(|(p, values)| {
            let plain = || (FileDtype::F32, p.shape.clone(), values.iter().flat_map(|x| x.to_le_bytes()).collect());
            let count = || (FileDtype::I64, vec![], (values[0] as i64).to_le_bytes().to_vec());
            let usual = if p.name.ends_with("tracked") { count() } else { plain() };
            match change(&p.name, values.clone()) {
                None => Some((p.name.clone(), usual)),
                Some((_, _, bytes)) if bytes.is_empty() => None,
                Some(other) => Some((p.name.clone(), other)),
            }
        })
        .collect();
    let views = list
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs_err::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

const CONV: &str = "cnn_blocks.1.conv.weight";
const COUNT: &str = "cnn_blocks.0.batch_norm.num_batches_tracked";

#[test]
fn a_folder_that_lacks_a_tensor_or_has_a_wrong_one_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let spec = small();
    save(&dir.path().join("m"), &spec, None).unwrap();
    let open = || ModelFolder::open_with_weights(dir.path().join("m")).map(drop);
    let path = dir.path().join("m/model.safetensors");
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();

    write_as(&path, &spec, |name, _| (name == CONV).then_some((FileDtype::F32, vec![], vec![])));
    assert!(matches!(open(), Err(ModelError::TensorMissing { tensor, missing: 1, .. }) if tensor == CONV));

    write_as(&path, &spec, |name, values| (name == CONV).then(|| (FileDtype::F32, vec![values.len()], bytes(&values))));
    assert!(matches!(open(), Err(ModelError::Shape { tensor, expected, .. })
        if tensor == CONV && expected == [4, 4, 5]));

    write_as(&path, &spec, |name, values| {
        let wide = || values.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect();
        (name == CONV).then(|| (FileDtype::F64, vec![4, 4, 5], wide()))
    });
    assert!(matches!(open(), Err(ModelError::DtypeRefused { tensor, .. }) if tensor == CONV));

    // A whole number is only believed where one is expected.
    write_as(&path, &spec, |name, values| {
        let whole = || values.iter().flat_map(|x| (*x as i64).to_le_bytes()).collect();
        (name == CONV).then(|| (FileDtype::I64, vec![4, 4, 5], whole()))
    });
    assert!(matches!(open(), Err(ModelError::DtypeRefused { tensor, .. }) if tensor == CONV));

    write_as(&path, &spec, |name, _| (name == COUNT).then(|| (FileDtype::I64, vec![1], 7i64.to_le_bytes().to_vec())));
    assert!(matches!(open(), Err(ModelError::Shape { tensor, .. }) if tensor == COUNT));

    write_as(&path, &SeriesSpec { classes: spec.values.clone().map(|h| named(h, "other")), ..spec.clone() }, |_, _| {
        None
    });
    let error = open().unwrap_err();
    assert!(
        matches!(&error, ModelError::TensorMissing { tensor, .. } if tensor == "direction_head.0.weight"),
        "{error}"
    );

    let more = SeriesSpec { confidence: None, ..spec.clone() };
    let config = json!({"model_type": "cnn-lstm"});
    let mut config: serde_json::Map<String, Value> = serde_json::from_value(config).unwrap();
    config.extend(serde_json::to_value(&more).unwrap().as_object().unwrap().clone());
    fs_err::write(dir.path().join("m/config.json"), Value::Object(config).to_string()).unwrap();
    write_as(&path, &spec, |_, _| None);
    let error = open().unwrap_err();
    assert!(
        matches!(&error, ModelError::TrainedExtras { tensors, .. }
        if tensors[0] == "confidence_head.0.bias" && tensors.len() == 4),
        "{error}"
    );
}

fn named(head: plimsoll_plan::spec::HeadSpec, name: &str) -> plimsoll_plan::spec::HeadSpec {
    plimsoll_plan::spec::HeadSpec { name: name.into(), ..head }
}

#[test]
fn a_count_below_nothing_is_refused_when_it_is_read_and_a_float_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let spec = small();
    save(&dir.path().join("m"), &spec, None).unwrap();
    let path = dir.path().join("m/model.safetensors");
    let mut out = [0.0];
    write_as(&path, &spec, |name, _| (name == COUNT).then(|| (FileDtype::I64, vec![], (-1i64).to_le_bytes().to_vec())));
    let (_, weights) = ModelFolder::open_with_weights(dir.path().join("m")).unwrap();
    let error = weights.fill(COUNT, &mut out).unwrap_err();
    assert!(error.to_string().ends_with("must count from 0, found -1"), "{error}");

    // As checkpoints hold it; and everything else as f16.
    write_as(&path, &spec, |name, values| {
        let half = || values.iter().flat_map(|x| f16::from_f32(*x).to_bits().to_le_bytes()).collect();
        let shape = series_params(&spec).into_iter().find(|p| p.name == name).unwrap().shape;
        Some(match name == COUNT {
            true => (FileDtype::F32, vec![], 12f32.to_le_bytes().to_vec()),
            false if name.ends_with("tracked") => (FileDtype::I64, vec![], 5i64.to_le_bytes().to_vec()),
            false => (FileDtype::F16, shape, half()),
        })
    });
    let (_, weights) = ModelFolder::open_with_weights(dir.path().join("m")).unwrap();
    weights.fill(COUNT, &mut out).unwrap();
    assert_eq!((out, weights.float_dtype()), ([12.0], Some(Dtype::F16)));
    weights.fill_part("cnn_blocks.1.batch_norm.num_batches_tracked", 0, &mut out).unwrap();
    assert_eq!(out, [5.0]);
}

fn described(text: &str, data: Option<SeriesInput>) -> Result<SeriesSpec, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hybrid.toml");
    fs_err::write(&path, text).unwrap();
    let shown = format!("{}/", dir.path().display());
    let folder = ModelFolder::open_for(&path, data).map_err(|error| error.to_string().replace(&shown, ""))?;
    assert_eq!(folder.dir(), dir.path());
    assert_eq!(folder.normalisation().unwrap(), None);
    Ok(folder.spec().series().unwrap().clone())
}

const INPUT: SeriesInput = SeriesInput { features: 112, window: 48 };

#[test]
fn a_preset_is_the_known_build_and_what_is_given_stands_over_it() {
    let spec = |text: &str| described(text, None).unwrap();
    let head = "family = 'cnn-lstm'\n";
    assert_eq!(spec(&format!("{head}preset = 'hybrid-v1'\nfeatures = 110")), SeriesSpec::hybrid_v1(110));
    assert_eq!(spec(&format!("{head}preset = 'hybrid-v2'\nfeatures = 112")), SeriesSpec::hybrid_v2(112));

    let v2 = SeriesSpec::hybrid_v2(7);
    let text = format!(
        "{head}preset = 'hybrid-v2'\nfeatures = 7\nwindow = 30\nconv = [{{ channels = 8, kernel = 3 }}]\n\
         attention = {{ heads = 2 }}\n[lstm]\nhidden = 64\n[classes]\noutputs = 5\n[loss]\nfocal_gamma = 2\n"
    );
    let made = spec(&text);
    assert_eq!((made.window, made.conv.len(), made.lstm.hidden), (30, 1, 64));
    assert_eq!(made.lstm, plimsoll_plan::spec::LstmSpec { hidden: 64, ..v2.lstm.clone() });
    let heads = SeriesAttention::MultiHead { heads: 2, dropout: 0.1, layer_norm: true, positions: 256 };
    assert_eq!(made.attention, heads);
    assert_eq!(made.classes, v2.classes.clone().map(|head| plimsoll_plan::spec::HeadSpec { outputs: 5, ..head }));
    assert_eq!((made.loss.focal_gamma, made.loss.confidence), (2.0, 0.5));
    assert_eq!((made.residual, &made.values), (true, &v2.values));

    // Attention of another kind has nothing of the preset's.
    let made =
        spec(&format!("{head}preset = 'hybrid-v2'\nfeatures = 7\nattention = {{ kind = 'additive', units = 3 }}"));
    assert_eq!(made.attention, SeriesAttention::Additive { units: 3 });
}

#[test]
fn heads_of_a_preset_can_be_taken_away() {
    let spec = |text: &str| described(text, None).unwrap();
    let head = "family = 'cnn-lstm'\npreset = 'hybrid-v2'\nfeatures = 7\n";
    let whole = SeriesSpec::hybrid_v2(7);
    assert_eq!(spec(&format!("{head}values = 'none'")), SeriesSpec { values: None, ..whole.clone() });
    let values = SeriesSpec { classes: None, confidence: None, ..whole };
    assert_eq!(spec(&format!("{head}classes = 'none'\nconfidence = 'none'")), values);
    // Where the preset has none, nothing is taken away.
    let own =
        "family = 'cnn-lstm'\nfeatures = 2\nwindow = 9\nlstm = { hidden = 4 }\nclasses = { outputs = 2, name = 'c' }\n";
    assert_eq!(spec(&format!("values = 'none'\n{own}")), spec(own));
    let told = described(&format!("{head}values = 'no'"), None).unwrap_err();
    assert_eq!(told, "`hybrid.toml:4:10`: key `values` must be a table, or `none`, found `no`");
}

#[test]
fn a_description_without_a_preset_says_all_that_has_no_default() {
    let text = "family = 'cnn-lstm'\nfeatures = 3\nwindow = 12\nlstm = { hidden = 5 }\n\
                values = { name = 'out', outputs = 2 }\n";
    let spec = described(text, None).unwrap();
    assert_eq!((spec.conv.len(), spec.lstm.layers, spec.pool), (0, 1, 2));
    assert_eq!(
        described("family = 'cnn-lstm'\nfeatures = 3\nwindow = 12\n", None).unwrap_err(),
        "`hybrid.toml:1:1` is not valid: missing field `lstm`"
    );
}

#[test]
fn what_a_description_leaves_open_the_data_say_and_nothing_may_differ() {
    let open = "family = 'cnn-lstm'\npreset = 'hybrid-v2'\n";
    let spec = described(open, Some(INPUT)).unwrap();
    assert_eq!((spec.features, spec.window), (112, 48));
    assert_eq!(
        described(open, None).unwrap_err(),
        "`hybrid.toml:1:1`: key `features` must be a whole number, where no data say it, found `nothing`"
    );
    assert_eq!(
        described(&format!("{open}window = 60\n"), Some(INPUT)).unwrap_err(),
        "`hybrid.toml` describes a model with window = 60, the data have 48"
    );

    let dir = tempfile::tempdir().unwrap();
    save(&dir.path().join("m"), &small(), None).unwrap();
    let error = ModelFolder::open_for(dir.path().join("m"), Some(INPUT)).unwrap_err();
    assert!(
        error.to_string().ends_with("m/config.json` describes a model with features = 5, the data have 112"),
        "{error}"
    );
    ModelFolder::open_for(dir.path().join("m"), Some(SeriesInput { features: 5, window: 9 })).unwrap();
}

#[test]
fn what_is_wrong_in_a_description_is_told_with_its_place() {
    let head = "family = 'cnn-lstm'\npreset = 'hybrid-v2'\nfeatures = 112\n";
    for (text, expected) in [
        ("[lstm]\nhiden = 3\n", "`hybrid.toml:5:1` is not valid: unknown field `hiden`, expected one of"),
        ("pool = 'two'\n", "`hybrid.toml:4:8` is not valid: invalid type: string \"two\", expected usize"),
        (
            "[lstm]\nhidden = 0\n",
            "`hybrid.toml:5:10`: key `lstm.hidden` must be a whole number from 1 to 65536, found `0`",
        ),
        (
            "conv = [\n  { channels = 8, kernel = 3 },\n  { channels = 8, kernel = 4 },\n]\n",
            "`hybrid.toml:6:28`: key `conv.1.kernel` must be an odd number from 1 to 4095, found `4`",
        ),
        // The file says nothing of heads: it is named without a place.
        (
            "lstm.hidden = 3\n",
            "`hybrid.toml`: key `attention.heads` must be a divisor of 6, the width of the LSTM's output, found `4`",
        ),
        ("pool = 2\npool = 3\n", "`hybrid.toml:5:1` is not valid: duplicate key"),
        ("pool = = 3\n", "`hybrid.toml:4:8` is not valid: "),
    ] {
        let error = described(&format!("{head}{text}"), None).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    for (text, expected) in [
        ("features = 3\n", "`hybrid.toml:1:1`: key `family` must be `cnn-lstm`, found `nothing`"),
        ("family = 'lstm'\n", "`hybrid.toml:1:10`: key `family` must be `cnn-lstm`, found `lstm`"),
        ("family = 3\n", "`hybrid.toml:1:10`: key `family` must be a text, found `integer`"),
        (
            "family = 'cnn-lstm'\npreset = 'hybrid-v3'\n",
            "`hybrid.toml:2:10`: key `preset` must be `hybrid-v1` or `hybrid-v2`, found `hybrid-v3`",
        ),
    ] {
        assert_eq!(described(text, None).unwrap_err(), expected);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.toml");
    fs_err::write(&path, head).unwrap();
    let error = ModelFolder::open_with_weights(&path).unwrap_err();
    assert!(matches!(error, ModelError::DescriptionWithoutWeights { .. }), "{error}");
    fs_err::write(&path, b"family = '\xff'").unwrap();
    assert!(matches!(ModelFolder::open(&path), Err(ModelError::NotText { .. })));
}

fn config_of(spec: &SeriesSpec) -> String {
    let dir = tempfile::tempdir().unwrap();
    save(&dir.path().join("m"), spec, None).unwrap();
    fs_err::read_to_string(dir.path().join("m/config.json")).unwrap()
}

fn config_error(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs_err::write(dir.path().join("config.json"), text).unwrap();
    let shown = format!("{}/", dir.path().display());
    ModelFolder::open(dir.path()).map(drop).unwrap_err().to_string().replace(&shown, "")
}

#[test]
fn a_config_has_the_keys_of_the_description_and_says_where_one_is_wrong() {
    let text = config_of(&small());
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["model_type"], &value["torch_dtype"]), (&json!("cnn-lstm"), &json!("float32")));
    // The shortest decimal, not that of a double.
    assert_eq!((&value["conv_dropout"], &value["lstm"]["hidden"]), (&json!(0.4), &json!(4)));

    let wrong = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        config_error(&text.replacen(from, to, 1))
    };
    let error = wrong("\"pool\": 2", "\"pol\": 2");
    assert!(
        error.starts_with("`config.json` is not valid: unknown field `pol`") && error.contains("at line"),
        "{error}"
    );
    let error = wrong("\"pool\": 2", "\"pool\": \"two\"");
    assert!(error.contains("invalid type: string \"two\"") && error.contains("at line"), "{error}");
    let error = wrong("\"pool\": 2", "\"pool\": 0");
    assert_eq!(error, "`config.json`: key `pool` must be a whole number from 1 to 1048576, found `0`");
    let error = wrong("\"pool\": 2", "\"pool\": 2, \"pool\": 3");
    assert!(error.contains("duplicate field `pool`"), "{error}");
}

#[test]
fn a_normalisation_that_is_not_json_is_refused_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let out: PathBuf = dir.path().join("m");
    assert!(matches!(save(&out, &small(), Some("{")), Err(ModelError::Json { .. })));
    save(&out, &small(), None).unwrap();
    fs_err::write(out.join("normalisation.json"), "[").unwrap();
    let folder = ModelFolder::open(&out).unwrap();
    assert!(
        matches!(folder.normalisation(), Err(ModelError::Json { path, .. }) if path.ends_with("normalisation.json"))
    );
}

/// Texts that reach past the parsers.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("0".to_string()),
        Just("1e400".to_string()),
        Just("18446744073709551615".to_string()),
        Just("-1".to_string()),
        Just("null".to_string()),
        Just("nan".to_string()),
        Just("[".repeat(200)),
        Just("kind = 'none'".to_string()),
        "[ -~]{0,8}",
        any::<u64>().prop_map(|n| n.to_string()),
    ]
}

fn edited(text: &str, edits: Vec<(usize, usize, String)>) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (at, removed, text) in edits {
        let at = at % (bytes.len() + 1);
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, text.into_bytes());
    }
    bytes
}

const DESCRIPTION: &str = "family = 'cnn-lstm'\npreset = 'hybrid-v2'\nfeatures = 5\nwindow = 20\npool = 2\n\
    conv = [{ channels = 4, kernel = 3 }]\nattention = { kind = 'multi-head', heads = 2 }\n\
    [lstm]\nhidden = 4\nlayers = 1\ndropout = 0.1\n[classes]\nname = 'direction'\noutputs = 3\n\
    hidden = [{ width = 4, dropout = 0.2 }]\n[loss]\nclass_weights = [1.0, 2.0, 0.5]\nmixup = { alpha = 0.2, probability = 0.5 }\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn a_mutated_description_or_config_never_panics_and_what_is_believed_is_a_model(
        edits in prop::collection::vec((any::<usize>(), 0usize..6, piece()), 1..4),
        json in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = match json {
            true => dir.path().to_path_buf(),
            false => dir.path().join("m.toml"),
        };
        let text = if json { config_text() } else { DESCRIPTION };
        let file = if json { path.join("config.json") } else { path.clone() };
        fs_err::write(&file, edited(text, edits)).unwrap();
        if let Ok(folder) = ModelFolder::open(&path) && let Some(spec) = folder.spec().series() {
            prop_assert_eq!(spec.check(), Ok(()));
        }
    }

    #[test]
    fn a_mutated_file_of_weights_never_panics(edits in prop::collection::vec((any::<usize>(), 0usize..6, piece()), 1..3)) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("config.json"), config_text()).unwrap();
        let header = header_text();
        let data = small_bytes();
        raw_file(&dir.path().join("model.safetensors"), &String::from_utf8_lossy(&edited(header, edits)), data);
        if let Ok((folder, weights)) = ModelFolder::open_with_weights(dir.path()) {
            read_all(&weights, folder.spec().series().unwrap());
        }
    }
}

/// The config of the small model, made once.
fn config_text() -> &'static str {
    static TEXT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    TEXT.get_or_init(|| config_of(&small()))
}

/// The header of its weights, and how many bytes follow it.
fn header_of_small() -> &'static (String, usize) {
    static HEADER: std::sync::OnceLock<(String, usize)> = std::sync::OnceLock::new();
    HEADER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        save(&dir.path().join("m"), &small(), None).unwrap();
        let file = fs_err::read(dir.path().join("m/model.safetensors")).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        (String::from_utf8(file[8..8 + length].to_vec()).unwrap(), file.len() - 8 - length)
    })
}

fn header_text() -> &'static str {
    &header_of_small().0
}

fn small_bytes() -> usize {
    header_of_small().1
}
