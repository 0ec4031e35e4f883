//! Settings as arguments of Hugging Face's `TrainingArguments` and of `LightningCLI`.
//!
//! What these have no argument for (a length, LoRA, how many processes) comes back in `left`, so that the caller can put it
//! where it belongs or say that it is not set.

use super::WriteError;
use crate::knob::{Knob, Settings};

/// Arguments, and the knobs that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// One string an argument.
    pub argv: Vec<String>,
    /// Not passed by these.
    pub left: Vec<Knob>,
}

impl Arguments {
    fn add(&mut self, flag: &str, value: impl ToString) {
        self.argv.push(flag.to_string());
        self.argv.push(value.to_string());
    }
}

/// For `HfArgumentParser` with `TrainingArguments`.
pub fn hf(settings: &Settings) -> Result<Arguments, WriteError> {
    let mut arguments = Arguments::default();
    let workers = settings.get(&Knob::Workers).and_then(|value| value.count()).unwrap_or(0);
    for (&knob, value) in settings {
        let flag = match knob {
            Knob::Batch => "--per_device_train_batch_size",
            Knob::EvalBatch => "--per_device_eval_batch_size",
            Knob::Accumulation => "--gradient_accumulation_steps",
            Knob::Workers => "--dataloader_num_workers",
            // Refused by transformers where the rank loads itself.
            Knob::Prefetch if workers > 0 => "--dataloader_prefetch_factor",
            Knob::PinMemory => "--dataloader_pin_memory",
            Knob::PersistentWorkers => "--dataloader_persistent_workers",
            Knob::Checkpointing => "--gradient_checkpointing",
            Knob::Optimizer => "--optim",
            Knob::SaveEvery => "--save_steps",
            Knob::Resume => "--resume_from_checkpoint",
            Knob::Output => "--output_dir",
            Knob::Precision => {
                match value.to_string().as_str() {
                    "fp32" => {}
                    "bf16-mixed" => arguments.add("--bf16", "True"),
                    "fp16-mixed" => arguments.add("--fp16", "True"),
                    // The dtype of the loaded model, not an argument of the trainer.
                    _ => arguments.left.push(knob),
                }
                continue;
            }
            _ => {
                arguments.left.push(knob);
                continue;
            }
        };
        match knob {
            Knob::PinMemory | Knob::PersistentWorkers | Knob::Checkpointing => {
                let on = value.on().ok_or_else(|| no_form(knob, "`true` or `false`", value))?;
                arguments.add(flag, if on { "True" } else { "False" });
            }
            _ => arguments.add(flag, value),
        }
    }
    Ok(arguments)
}

/// For `LightningCLI`: `--trainer.*`, and for batches and workers `--data.*` as data modules name them.
pub fn lightning(settings: &Settings) -> Result<Arguments, WriteError> {
    let mut arguments = Arguments::default();
    for (&knob, value) in settings {
        let flag = match knob {
            Knob::Batch => "--data.batch_size",
            Knob::Workers => "--data.num_workers",
            Knob::Accumulation => "--trainer.accumulate_grad_batches",
            Knob::Processes => "--trainer.devices",
            Knob::SanitySteps => "--trainer.num_sanity_val_steps",
            Knob::Resume => "--ckpt_path",
            Knob::Output => "--trainer.default_root_dir",
            Knob::Precision => {
                let precision = match value.to_string().as_str() {
                    "fp32" => "32-true",
                    "bf16-mixed" => "bf16-mixed",
                    "fp16-mixed" => "16-mixed",
                    "bf16" => "bf16-true",
                    "fp16" => "16-true",
                    _ => return Err(no_form(knob, "`fp32`, `bf16-mixed`, `fp16-mixed`, `bf16` or `fp16`", value)),
                };
                arguments.add("--trainer.precision", precision);
                continue;
            }
            Knob::SaveEvery => {
                let callback = "lightning.pytorch.callbacks.ModelCheckpoint";
                arguments.argv.push(format!("--trainer.callbacks+={callback}"));
                arguments.argv.push(format!("--trainer.callbacks.every_n_train_steps={value}"));
                arguments.argv.push("--trainer.callbacks.save_top_k=-1".to_string());
                continue;
            }
            _ => {
                arguments.left.push(knob);
                continue;
            }
        };
        arguments.add(flag, value);
    }
    Ok(arguments)
}

fn no_form(knob: Knob, expected: &'static str, value: &crate::knob::Value) -> WriteError {
    WriteError::NoForm { knob, expected, found: value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::Value;

    fn settings(pairs: &[(Knob, Value)]) -> Settings {
        pairs.iter().cloned().collect()
    }

    #[test]
    fn nothing_is_dropped_silently() {
        let all: Settings = Knob::ALL.into_iter().map(|knob| (knob, Value::from(1))).collect();
        let all = Settings::from_iter(
            all.into_iter()
                .map(|(knob, value)| (knob, if knob == Knob::Precision { Value::from("fp16-mixed") } else { value })),
        );
        for (name, arguments) in [("hf", hf(&all).unwrap()), ("lightning", lightning(&all).unwrap())] {
            let flags = arguments.argv.iter().filter(|a| a.starts_with("--")).count();
            let extra = if name == "lightning" { 2 } else { 0 };
            assert_eq!(flags - extra + arguments.left.len(), Knob::ALL.len(), "{name}: {arguments:?}");
        }
    }

    #[test]
    fn hugging_face_gets_words_that_its_parser_reads() {
        let given = settings(&[
            (Knob::Batch, 4.into()),
            (Knob::Checkpointing, true.into()),
            (Knob::Precision, "bf16-mixed".into()),
            (Knob::Prefetch, 2.into()),
            (Knob::Length, 512.into()),
        ]);
        let arguments = hf(&given).unwrap();
        assert_eq!(
            arguments.argv,
            ["--per_device_train_batch_size", "4", "--bf16", "True", "--gradient_checkpointing", "True"]
        );
        assert_eq!(arguments.left, [Knob::Prefetch, Knob::Length]);
    }

    #[test]
    fn lightning_saves_by_a_callback() {
        let arguments = lightning(&settings(&[(Knob::SaveEvery, 4.into()), (Knob::Workers, 0.into())])).unwrap();
        assert!(arguments.argv.contains(&"--trainer.callbacks.every_n_train_steps=4".to_string()));
        assert!(arguments.argv.ends_with(&["--trainer.callbacks.save_top_k=-1".to_string()]));
    }
}
