//! Beside PyTorch: windows that numpy makes by docs/series.md, a module of the same build, the same settings, several seeds each.
//!
//! Python is `$PLIMSOLL_PYTHON`, or the workspace's `.venv`; without it the test says so and passes.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support_run::series::{SERIES, SeriesJob, V1, market_of, write_csv};
use crate::support_run::{Workshop, python};

const SEEDS: [&str; 3] = ["1", "2", "3"];
/// Rows of each series: enough that an accuracy is known to a percent.
const TIMES: usize = 1500;
const STEPS: usize = 320;
/// Two ways to train differ by less than this where nothing is wrong, beside twice their standard error.
const APART: f64 = 0.01;

/// Mean, and variance of the mean.
fn mean(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let spread = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, spread / count)
}

#[test]
fn a_model_learns_as_much_as_its_pytorch_module_does_and_pytorch_judges_ours_as_we_do() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let workshop = Workshop::of_series();
    write_csv(&workshop.path("market.csv"), &market_of(9, TIMES), |_| false);
    let train = format!(
        "effective_batch = 32\nsteps = {STEPS}\neval_every = {STEPS}\nclip_norm = 1.0\n\
         optimizer = {{ name = \"adamw\", lr = 3e-3 }}\n"
    );
    workshop.series_job(SeriesJob { model: V1, series: SERIES, train: &train });
    for seed in SEEDS {
        workshop.trained(seed, &["--seed", seed]);
    }
    let asked = json!({
        "features": ["close", "signal", "noise"], "window": 12, "horizon": 1, "flat": 0.001, "fraction": 0.2,
        "batch": 32, "steps": STEPS, "lr": 3e-3, "clip": 1.0, "runs": SEEDS,
    });
    fs_err::write(workshop.path("asked.json"), asked.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/series/peer.py");
    let out = Command::new(python).arg(script).arg(workshop.path("")).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let judged = workshop.json("judged.json");

    let inspected = workshop.plimsoll(&["data", "inspect", "--job", "job.toml", "--json"]);
    let inspected = inspected.must(0, &[]).json();
    for (part, ours) in [("training", "training_samples"), ("validation", "validation_samples")] {
        assert_eq!(judged[part], inspected[ours], "windows of {part}");
    }
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {judged:#}"));
    let of = |side: &str| -> Vec<f64> {
        judged[side].as_array().unwrap().iter().map(|judged| number(&judged["accuracy"])).collect()
    };
    // What our model answers in PyTorch, on windows that numpy made, is what it answers here.
    for (nth, seed) in SEEDS.iter().enumerate() {
        let summary = workshop.json(&format!("{seed}/summary.json"));
        let (here, there) = (&summary["evals"][0], &judged["ours"][nth]);
        let (loss, theirs) = (number(&here["loss"]), number(&there["loss"]));
        assert!((loss - theirs).abs() <= 1e-4 * theirs, "seed {seed}: our loss is {loss}, PyTorch's {theirs}");
        let (right, theirs) = (number(&here["scores"]["accuracy"]), number(&there["accuracy"]));
        // One answer may be at the very edge.
        let one = 1.5 / number(&judged["validation"]);
        assert!((right - theirs).abs() <= one, "seed {seed}: our accuracy is {right}, PyTorch's {theirs}");
    }
    let ((ours, our_noise), (theirs, their_noise)) = (mean(&of("ours")), mean(&of("theirs")));
    let noise = (our_noise + their_noise).sqrt();
    println!("accuracy: ours {ours:.4} {:?}, PyTorch's {theirs:.4} {:?}, {noise:.4}", of("ours"), of("theirs"));
    assert!(theirs > 0.7, "PyTorch learns nothing here: {theirs}");
    assert!((ours - theirs).abs() <= 2.0 * noise + APART, "ours {ours}, PyTorch's {theirs}, standard error {noise}");
}
