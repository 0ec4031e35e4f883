//! Samples, normalisation and scores against numpy and sklearn, on files that pyarrow wrote. Skipped where there is no Python with them.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_data::series::*;

use crate::fixture::*;

/// The Python beside us, with numpy, sklearn and pyarrow, or why not.
fn python() -> Result<PathBuf, String> {
    let python = match std::env::var_os("PLIMSOLL_PYTHON") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python"),
    };
    let import = Command::new(&python).args(["-c", "import numpy, sklearn, pyarrow"]).output();
    match import.is_ok_and(|o| o.status.success()) {
        true => Ok(python),
        false => Err(format!("no Python at `{}` with numpy, sklearn and pyarrow", python.display())),
    }
}

fn run(python: &Path, what: &str, out: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/series/peer.py");
    let ran = Command::new(python).arg(script).arg(what).arg(out).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

fn words(path: PathBuf) -> Vec<u32> {
    fs_err::read(path).unwrap().chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn numbers(path: PathBuf) -> Vec<f32> {
    words(path).into_iter().map(f32::from_bits).collect()
}

fn asked() -> SeriesSpec {
    SeriesSpec {
        features: ["close", "volume", "spread", "flat"].map(String::from).to_vec(),
        window: 24,
        horizon: 5,
        stride: 3,
        class: Some(ClassTarget::Direction { column: "close".into(), of: Of::Return, flat: 0.004 }),
        values: vec![ValueTarget { column: "close".into(), of: Of::Return }],
        validation: fraction(0.25, 7),
        ..spec()
    }
}

#[test]
fn samples_are_those_of_numpy_to_the_bit_and_scores_those_of_sklearn() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    run(&python, "make", out);
    let mut told = false;
    for name in ["zstd.parquet", "snappy.parquet", "none.parquet", "lz4.feather", "plain.arrow", "a.csv"] {
        let path = out.join(name);
        let series = open(&path, asked()).unwrap();
        if !std::mem::replace(&mut told, true) {
            let text = serde_json::json!({ "cut": series.facts().cut, "normalisation": series.normalisation() });
            fs_err::write(out.join("told.json"), text.to_string()).unwrap();
            run(&python, "expect", out);
        }
        for (part, words_of) in [(Part::Training, "training"), (Part::Validation, "validation")] {
            let samples = in_order(open(&path, asked()).unwrap(), part);
            let flat = |of: fn(&Sample) -> &[u32]| samples.iter().flat_map(of).copied().collect::<Vec<u32>>();
            assert!(samples.len() > 40);
            assert!(flat(|s| &s.inputs) == words(out.join(format!("{words_of}.inputs"))), "{name}, {words_of}");
            assert_eq!(
                samples.iter().map(|s| s.class).collect::<Vec<_>>(),
                words(out.join(format!("{words_of}.classes")))
            );
            assert!(flat(|s| &s.values) == words(out.join(format!("{words_of}.values"))), "{name}, {words_of}");
        }
    }

    let figures: serde_json::Value =
        serde_json::from_str(&fs_err::read_to_string(out.join("figures.json")).unwrap()).unwrap();
    let mut scores = Scores::new(Some(5), &[Scale::NONE; 2]);
    let (truths, answers) = (words(out.join("truths.bin")), numbers(out.join("numbers.bin")));
    let (values, guesses) = (numbers(out.join("values.bin")), numbers(out.join("guesses.bin")));
    // In batches that do not divide what there is.
    for (truths, answers) in truths.chunks(64).zip(answers.chunks(64 * 5)) {
        scores.add_classes(truths, answers).unwrap();
    }
    for (values, guesses) in values.chunks(64).zip(guesses.chunks(64)) {
        scores.add_values(values, guesses).unwrap();
    }
    let score = scores.score();
    let close = |ours: Option<f64>, theirs: &serde_json::Value| {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours.unwrap() - theirs).abs() < 1e-12, "{ours:?} {theirs}");
    };
    close(score.accuracy, &figures["accuracy"]);
    close(score.macro_f1, &figures["macro_f1"]);
    for which in 0..2 {
        close(score.mae[which], &figures["mae"][which]);
        close(score.rmse[which], &figures["rmse"][which]);
    }
    let confusion = score.confusion.unwrap();
    for (truth, answer) in (0..5).flat_map(|truth| (0..5).map(move |answer| (truth, answer))) {
        assert_eq!(Some(confusion.count(truth, answer)), figures["confusion"][truth][answer].as_u64());
    }
}
