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
            ("in-backward", &["--optimizer-in-backward", "off", "--loss-chunk", "5"]),
            ("free", &[]),
        ];
        for (name, flags) in others {
            workshop.trained(name, flags).must_equal(&held, name);
        }
        let smallest = workshop.plimsoll(&["plan", "job.toml", "--json"]).must(0, &[]).json()["smallest"].as_u64();
        let budget = (smallest.unwrap() + (1 << 20)).to_string();
        workshop.trained("smallest", &["--ram", &budget]).must_equal(&held, "the smallest budget");
    }
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
