//! Whole runs on a card: their losses beside the CPU's, and a run that was killed beside one that was not. Without a card
//! each test says so and passes.
#![allow(clippy::print_stdout)] // how far apart they are is worth seeing

mod support_run;

use plimsoll_engine::cuda::Card;
use rustix::process::{Signal, kill_process};
use support_run::decoder::{Rows, tiny};
use support_run::model::{Family, Model};
use support_run::series::{SERIES, SeriesJob, V2};
use support_run::trainer::{Trainer, resumed_from};
use support_run::{Result, Workshop};

const STEPS: usize = 200;
/// How far apart two plans of the CPU may be.
const CONTROL: f64 = 2e-5;
const COURSE: &str = "steps = 200\nsave_every = 25\nclip_norm = 1.0\n\
                      optimizer = { name = \"adamw\", lr = 3e-4 }\n";

fn no_card() -> bool {
    let Err(why) = Card::open(0) else { return false };
    assert!(std::env::var_os("PLIMSOLL_CARD").is_none(), "{why}");
    println!("skipped: {why}");
    true
}

fn qwen() -> Workshop {
    // A head that the kernels of tensor cores take.
    let model = Model { d_model: 128, d_head: 64, heads: 2, kv_heads: 1, d_ff: 256, ..tiny(Family::Qwen2) };
    let workshop = Workshop::of_model(&model, Rows::Chats);
    workshop.decoder_job("", "", COURSE);
    workshop
}

fn t5() -> Workshop {
    let workshop = Workshop::new();
    workshop.job(&format!("effective_batch = 8\n{COURSE}"));
    workshop
}

/// With all that its loss may have, dropout, and what is saved between evaluations.
fn series() -> Workshop {
    let workshop = Workshop::of_series();
    let train = format!("effective_batch = 64\neval_every = 30\n{COURSE}");
    workshop.series_job(SeriesJob { model: V2, series: SERIES, train: &train });
    workshop
}

fn losses(workshop: &Workshop, run: &str, flags: &[&str]) -> Vec<f64> {
    // CUDA's libraries are RAM too.
    let train = ["train", "job.toml", "--out", run, "--ram", "2GiB"];
    workshop.plimsoll(&[&train, flags].concat()).must(0, &["done: 200 steps"]);
    let result = Result::of(&workshop.path(run));
    assert_eq!(result.losses.len(), STEPS);
    result.losses.iter().map(|(_, loss)| f64::from_bits(*loss)).collect()
}

/// The largest relative difference of two courses, step by step.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

#[test]
fn two_hundred_steps_have_the_losses_of_the_cpu() {
    for (name, workshop) in [("qwen2", qwen()), ("t5", t5())] {
        let here = losses(&workshop, "cpu", &["--micro-batch", "8"]);
        // Sums in another order: a course that this changes would say nothing of a card.
        let control = apart(&losses(&workshop, "control", &["--micro-batch", "1"]), &here);
        println!("{name}: loss {} to {}; another micro-batch is {control:.1e} apart", here[0], here[STEPS - 1]);
        assert!(control <= CONTROL, "{name}: rounding grows to {control:e}");
        if no_card() {
            continue;
        }
        for (form, most) in [("f32", 1e-4), ("bf16", 1e-2), ("f16", 1e-2)] {
            let there = losses(&workshop, form, &["--device", "cuda", "--compute", form]);
            let apart = apart(&there, &here);
            println!("{name}: {form} is {apart:.1e} apart at most over {STEPS} steps");
            assert!(apart <= most, "{name}: {form} is {apart:e} apart");
        }
    }
}

#[test]
fn a_run_over_series_learns_what_it_learns_on_the_cpu() {
    let workshop = series();
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
    fs_err::write(workshop.path("job.toml"), job.replace("256MiB", "2GiB")).unwrap();
    let last = |run: &str, flags: &[&str]| {
        workshop.plimsoll(&[&["train", "job.toml", "--out", run], flags].concat()).must(0, &["done: 200 steps"]);
        let summary = workshop.json(&format!("{run}/summary.json"));
        let eval = summary["evals"].as_array().unwrap().last().unwrap().clone();
        (eval["loss"].as_f64().unwrap(), eval["scores"]["accuracy"].as_f64().unwrap())
    };
    let here = last("cpu", &[]);
    println!("cnn-lstm: on the CPU, loss {:.4} and accuracy {:.3} at the end", here.0, here.1);
    if no_card() {
        return;
    }
    // Which step of a pool gets the gradient may turn on a last bit, so courses part; where they lead to does not.
    for form in ["f32", "bf16", "f16"] {
        let there = last(form, &["--device", "cuda", "--compute", form]);
        println!("cnn-lstm: {form}, loss {:.4} and accuracy {:.3}", there.0, there.1);
        let near = (there.0 / here.0 - 1.0).abs() < 0.1 && (there.1 - here.1).abs() < 0.06;
        assert!(near, "{form}: {there:?} on the card, {here:?} on the CPU");
    }
}

/// Runs of a job in each form: one whole, one killed on its way.
fn killed_and_whole_are_the_same(name: &str, workshop: &Workshop) {
    if no_card() {
        return;
    }
    for form in ["f32", "bf16", "f16"] {
        let job = workshop.path("job.toml");
        let text = fs_err::read_to_string(&job).unwrap();
        let told = format!("device = \"cuda\"\ncompute = \"{form}\"\n{COURSE}");
        fs_err::write(&job, text.replace(COURSE, &told).replace("256MiB", "2GiB")).unwrap();
        let (whole, killed) = (format!("whole-{form}"), format!("killed-{form}"));
        Trainer::train(workshop, &whole).end().must(0, &["done: 200 steps"]);
        let mut trainer = Trainer::train(workshop, &killed);
        kill_process(trainer.wait_for_step(60).worker(), Signal::KILL).unwrap();
        trainer.end().must(0, &["going on after step", "done: 200 steps"]);
        assert_eq!(resumed_from(&workshop.path(&killed)).len(), 1, "{name}, {form}");
        let (whole, killed) = (Result::of(&workshop.path(&whole)), Result::of(&workshop.path(&killed)));
        killed.must_equal(&whole, &format!("{name}, {form}, killed"));
        println!("{name}, {form}: killed and gone on, to the same bits");
        fs_err::write(&job, text).unwrap();
    }
}

#[test]
fn a_run_that_was_killed_ends_as_one_that_was_not() {
    killed_and_whole_are_the_same("qwen2", &qwen());
    killed_and_whole_are_the_same("t5", &t5());
}

#[test]
fn a_run_over_series_that_was_killed_ends_as_one_that_was_not() {
    killed_and_whole_are_the_same("cnn-lstm", &series());
}

#[test]
fn a_job_on_a_card_is_deployed_with_one_and_with_cudas_libraries() {
    if no_card() {
        return;
    }
    let workshop = t5();
    for (device, on_card) in [("cuda", true), ("cpu", false)] {
        let deploy = |target| {
            let said = workshop.plimsoll(&["deploy", target, "job.toml", "--device", device, "--ram", "2GiB"]);
            said.must(0, &["memory limit"]).stdout.clone()
        };
        let (compose, slurm, k8s) = (deploy("compose"), deploy("slurm"), deploy("k8s"));
        let image = format!("image: \"plimsoll:{}-cuda\"\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((compose.contains(&image), k8s.contains(&image)), (on_card, on_card), "{compose}\n{k8s}");
        assert_eq!(compose.contains("              count: 1\n"), on_card, "{compose}");
        assert_eq!(slurm.contains("#SBATCH --gres=gpu:1\n"), on_card, "{slurm}");
        assert_eq!(k8s.contains("nvidia.com/gpu: 1\n"), on_card, "{k8s}");
    }
}
