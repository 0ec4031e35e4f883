//! Choices that leave the result alone do so to the bit; how a batch is cut does to rounding, where nothing looks across samples.

use crate::support_run::series::{SERIES, SeriesJob, V1, V2};
use crate::support_run::{Result, Workshop};

const COURSE: &str = "effective_batch = 24\nsteps = 40\neval_every = 16\nsave_every = 7\nclip_norm = 1.0\n\
                      optimizer = { name = \"adamw\", lr = 3e-3 }\n";
const HELD: [&str; 6] = ["--recompute", "none", "--loader-threads", "1", "--snapshot", "on"];

fn workshop(model: &str) -> Workshop {
    let workshop = Workshop::of_series();
    workshop.series_job(SeriesJob { model, series: SERIES, train: COURSE });
    workshop
}

#[test]
fn recompute_threads_snapshots_and_a_smaller_budget_change_no_bit() {
    for model in [V1, V2] {
        let workshop = workshop(model);
        let held = workshop.trained("held", &HELD);
        let others: [(&str, &[&str]); 7] = [
            ("recompute-all", &["--recompute", "all"]),
            ("recompute-one", &["--recompute", "1"]),
            ("loaders", &["--recompute", "none", "--loader-threads", "2"]),
            ("one-thread", &["--recompute", "none", "--threads", "1"]),
            ("no-snapshot", &["--recompute", "none", "--snapshot", "off"]),
            ("in-backward", &["--optimizer-in-backward", "off"]),
            ("free", &[]),
        ];
        for (name, flags) in others {
            workshop.trained(name, flags).must_equal(&held, name);
        }
        let smallest = workshop.plimsoll(&["plan", "job.toml", "--json"]).must(0, &[]).json()["smallest"].as_u64();
        // What a start takes is measured anew by each: on a machine that had just built the program two were 1.3 MiB apart.
        let budget = (smallest.unwrap() + (2 << 20)).to_string();
        workshop.trained("smallest", &["--ram", &budget]).must_equal(&held, "the smallest budget");
    }
}

#[test]
fn an_lstm_that_is_walked_in_stretches_changes_no_bit_and_is_taken_where_memory_is_short() {
    // 144 steps: two whole blocks and a part.
    let model = V2.replace("preset = \"hybrid-v2\"", "preset = \"hybrid-v2\"\npool = 1");
    let model = model.replace("hidden = 10 }", "hidden = 32 }");
    let workshop = Workshop::of_series();
    let series = SERIES.replace("window = 12", "window = 48").replace("fraction = 0.2", "fraction = 0.3");
    let course = COURSE.replace("steps = 40", "steps = 9");
    workshop.series_job(SeriesJob { model: &model, series: &series, train: &course });
    let held = workshop.trained("held", &["--lstm-every", "0", "--recompute", "none"]);
    let every = |run: &str| workshop.json(&format!("{run}/plan.json"))["choices"]["lstm_every"].as_u64();
    assert_eq!(every("held"), Some(0));
    for (asked, taken) in [("1", 64), ("64", 64), ("100", 128), ("144", 0), ("9999", 0)] {
        workshop.trained(asked, &["--lstm-every", asked]).must_equal(&held, asked);
        assert_eq!(every(asked), Some(taken), "{asked}");
    }
    // Half way between what it takes with stretches and without: they are the only way to fit.
    let peak = |every: &str| {
        let flags = ["plan", "job.toml", "--json", "--recompute", "all", "--snapshot", "off", "--lstm-every", every];
        workshop.plimsoll(&flags).must(0, &[]).json()["ram"]["peak"].as_u64().unwrap()
    };
    let budget = ((peak("64") + peak("0")) / 2).to_string();
    workshop.trained("tight", &["--ram", &budget]).must_equal(&held, "a tight budget");
    assert_eq!(every("tight"), Some(64));
}

#[test]
fn without_batch_norm_the_micro_batch_changes_nothing_but_rounding() {
    let model = V1.replace("layout = \"channels\"", "layout = \"channels\"\nnorm = \"none\"");
    let workshop = workshop(&model);
    let losses = |result: &Result| result.losses.iter().map(|(_, bits)| f64::from_bits(*bits)).collect::<Vec<_>>();
    let whole = losses(&workshop.trained("whole", &["--micro-batch", "24"]));
    for micro in ["12", "6", "1"] {
        let cut = losses(&workshop.trained(micro, &["--micro-batch", micro]));
        assert_eq!(cut.len(), whole.len());
        for (step, (a, b)) in cut.iter().zip(&whole).enumerate() {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "micro-batch {micro}, step {}: {a} and {b}", step + 1);
        }
    }
}
