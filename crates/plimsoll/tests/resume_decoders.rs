//! Stopped by any means and resumed, a run ends as the one that was never stopped, to the bit: adapters over packed
//! chats, sweeps over the parts of a batch, and weights and moments in fewer bits.

mod support_run;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use support_run::decoder::Rows;
use support_run::model::Family;
use support_run::trainer::{Trainer, any_of, resumed_from};
use support_run::{Result, Workshop, tree};

const STEPS: u64 = 24;
const COURSE: &str = "steps = 24\nsave_every = 5\neval_every = 7\nkeep = 2\nclip_norm = 1.0\n";
/// Every choice is held, so that two runs that are planned apart are equal to the bit.
const PINS: &str = "recompute = 1\nloss_chunk = 64\nloader_threads = 2\n";

/// A way to train.
struct Way {
    told: &'static str,
    family: Family,
    rows: Rows,
    model: &'static str,
    data: &'static str,
    optimizer: &'static str,
    pins: &'static str,
}

const WAYS: [Way; 3] = [
    Way {
        told: "LoRA over packed chats",
        family: Family::Qwen2,
        rows: Rows::Chats,
        model: "train = { lora = { r = 4, dropout = 0.1 } }\nbase = \"nf4\"",
        data: "packed = true",
        optimizer: "{ name = \"adamw\", lr = 3e-3 }",
        pins: "micro_batch = 4\noptimizer_in_backward = false",
    },
    Way {
        told: "a sweep",
        family: Family::Gpt2,
        rows: Rows::Texts,
        model: "train = \"all\"",
        data: "kind = \"text\"",
        optimizer: "{ name = \"adafactor\", lr = 3e-3 }",
        pins: "micro_batch = 2\noptimizer_in_backward = true",
    },
    Way {
        told: "bf16 weights and 8-bit moments",
        family: Family::Qwen3,
        rows: Rows::Instructions,
        model: "train = { freeze = [\"model.layers.0\"] }",
        data: "packed = true",
        optimizer: "{ name = \"adamw8bit\", lr = 3e-3, weight_decay = 0.01 }",
        pins: "micro_batch = 2\noptimizer_in_backward = false",
    },
];

impl Way {
    fn workshop(&self) -> Workshop {
        let workshop = Workshop::of_decoder(self.family, self.rows);
        let precision = if self.optimizer.contains("8bit") { "bf16" } else { "f32" };
        let train =
            format!("{COURSE}precision = \"{precision}\"\noptimizer = {}\n[pin]\n{PINS}{}", self.optimizer, self.pins);
        workshop.decoder_job(self.model, self.data, &train);
        workshop
    }
}

/// How a run is ended before its time.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Stopped(Signal),
    WorkerKilled,
    BothKilled,
}

impl Blow {
    /// Strikes after `step`; whether the run has to be resumed.
    fn strike(self, trainer: &mut Trainer, step: u64) -> bool {
        let worker = trainer.wait_for_step(step).worker();
        match self {
            Blow::Stopped(signal) => {
                trainer.signal(signal);
                true
            }
            Blow::WorkerKilled => {
                kill_process(worker, Signal::KILL).unwrap();
                false
            }
            Blow::BothKilled => {
                // Halted first, so that the worker cannot save when it sees its supervisor go.
                kill_process(worker, Signal::STOP).unwrap();
                trainer.signal(Signal::KILL);
                kill_process(worker, Signal::KILL).unwrap();
                true
            }
        }
    }
}

/// Every file of the final model.
fn model(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = run.join("model");
    tree(&root).into_iter().map(|(path, content)| (path.strip_prefix(&root).unwrap().to_path_buf(), content)).collect()
}

#[test]
fn however_it_is_stopped_a_run_of_any_way_ends_as_the_one_that_was_not() {
    let blows = [Blow::Stopped(Signal::INT), Blow::Stopped(Signal::TERM), Blow::WorkerKilled, Blow::BothKilled];
    for way in &WAYS {
        let workshop = way.workshop();
        let done = format!("done: {STEPS} steps");
        Trainer::train(&workshop, "whole").end().must(0, &[&done]);
        let whole = workshop.path("whole");
        let reference = Result::of(&whole);
        assert_eq!(reference.losses.len() as u64, STEPS, "{}", way.told);
        assert!(resumed_from(&whole).is_empty());
        for (nth, blow) in blows.into_iter().enumerate() {
            let (run, step) = (format!("run-{nth}"), any_of(1..=16));
            let told = format!("{}, {blow:?} after step {step}", way.told);
            let mut trainer = Trainer::train(&workshop, &run);
            let again = blow.strike(&mut trainer, step);
            let ended = trainer.end();
            if again {
                assert_ne!(ended.code, Some(0), "{told}: {}", ended.stderr);
                Trainer::resume(&workshop, &run).end().must(0, &[&done]);
            } else {
                // From its last checkpoint, or, where it had none yet, from the beginning.
                ended.must(0, &[&done]);
                let told_how = ["going on after step", "beginning again at step 1"];
                assert!(told_how.iter().any(|how| ended.stderr.contains(how)), "{told}: {}", ended.stderr);
            }
            let run = workshop.path(&run);
            Result::of(&run).must_equal(&reference, &told);
            assert!(model(&run) == model(&whole), "{told}: the files of the model differ");
        }
    }
}
