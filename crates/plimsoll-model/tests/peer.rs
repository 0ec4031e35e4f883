//! transformers makes folders, we read and rewrite them, transformers reads ours: the same tensors, the same logits.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it the test says so and passes.

mod folders;

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::{Existing, ModelFolder, init, save_model};
use plimsoll_plan::spec::t5_params;

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

fn run(python: &Path, verb: &str, root: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/models.py");
    let out = Command::new(python).arg(script).arg(verb).arg(root).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{verb}: {}\n{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn what_transformers_made_and_we_rewrote_computes_the_same_in_transformers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = tempfile::tempdir().unwrap();
    run(&python, "make", root.path());

    let mut cases = 0;
    for entry in fs_err::read_dir(root.path()).unwrap() {
        let case = entry.unwrap().path();
        let source = case.join("source");
        let facts: serde_json::Value =
            serde_json::from_str(&fs_err::read_to_string(case.join("facts.json")).unwrap()).unwrap();
        let (folder, weights) = ModelFolder::open_with_weights(&source).unwrap();
        let spec = folder.spec();
        assert_eq!(facts["tied"], spec.tied, "{}", case.display());
        assert_eq!(facts["scale_head"], spec.scale_head, "{}", case.display());
        assert_eq!((spec.encoder_layers, spec.decoder_layers), (2, 3));

        let params = t5_params(spec);
        let mut data: Vec<Vec<f32>> = params.iter().map(|p| vec![f32::NAN; p.elements()]).collect();
        for (param, out) in params.iter().zip(&mut data) {
            weights.fill(&param.name, out).unwrap();
        }
        let save = |name: &str, data: &[Vec<f32>]| {
            let views = folders::views(&params, data);
            save_model(case.join(name), folder.config(), spec, &views, &source, Existing::Refuse).unwrap();
        };
        save("rewritten", &data);
        let (again, _) = ModelFolder::open_with_weights(case.join("rewritten")).unwrap();
        assert_eq!(again.spec(), spec, "{}", case.display());

        for (param, out) in params.iter().zip(&mut data) {
            init::fill_random(param, 11, out);
        }
        save("random", &data);
        cases += 1;
    }
    assert_eq!(cases, 10);
    run(&python, "judge", root.path());
}
