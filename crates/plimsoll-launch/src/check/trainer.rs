//! Points about the trainer: what it must be able to import, which programs it starts, what its command says.
//!
//! Each stands for a run that failed minutes in, or went on silently as something else than was asked for.

use serde::{Deserialize, Serialize};

use super::Item;
use crate::command::recognise::name_of;
use crate::command::{doubled, flags};

/// The trainer and its command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerCheck {
    /// Modules that it imports, some of them only in the first step.
    pub modules: Vec<Module>,
    /// The command.
    pub argv: Vec<String>,
    /// Whether it steps its optimizers itself (Lightning's manual optimization; Piper).
    pub manual_optimization: bool,
    /// Micro-batches per update that it is set to.
    pub accumulation: Option<u64>,
    /// Whether gradient clipping by the framework is set.
    pub clips: bool,
    /// Whether it saves by a figure that it downloads a network for (Piper's `val_mos`).
    pub watches_mos: bool,
    /// Whether that network can be reached or is in the cache.
    pub mos_reachable: Option<bool>,
    /// Whether it runs DeepSpeed.
    pub deepspeed: bool,
    /// DeepSpeed's ops that it needs and that are not built yet.
    pub unbuilt_ops: Option<Vec<String>>,
    /// Whether Hugging Face's trainer was told to use processors (`use_cpu`) and given a DeepSpeed file.
    pub deepspeed_with_use_cpu: bool,
    /// Programs on the path.
    pub programs: Programs,
}

/// A Python module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Whether it can be imported; `None` where that was not tried.
    #[serde(default)]
    pub importable: Option<bool>,
}

/// Whether programs are on the path; `None` where that was not looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Programs {
    /// `numactl`.
    pub numactl: Option<bool>,
    /// `ninja`.
    pub ninja: Option<bool>,
    /// A C++ compiler.
    pub compiler: Option<bool>,
}

pub(super) fn items(trainer: &TrainerCheck) -> Vec<Item> {
    let mut out: Vec<Item> = trainer.modules.iter().map(module).collect();
    out.extend(mos(trainer));
    out.extend(manual(trainer));
    out.push(twice(trainer));
    out.extend(accelerate(&trainer.argv));
    out.extend(deepspeed(trainer));
    out
}

fn module(module: &Module) -> Item {
    let name = "module";
    let told = &module.name;
    let cure = if told.starts_with("piper.train.vits.monotonic_align") {
        "Piper's package lacks its aligner, and imports it only in the first step: build `monotonic_align` from Piper's \
         source repository into that place"
            .to_string()
    } else {
        format!("install what provides `{told}`")
    };
    match module.importable {
        Some(true) => Item::pass(name, format!("`{told}` can be imported")),
        Some(false) => Item::fail(name, format!("`{told}` cannot be imported"), cure),
        None => Item::unknown(name, format!("whether `{told}` can be imported was not tried"), cure),
    }
}

fn mos(trainer: &TrainerCheck) -> Option<Item> {
    let name = "score for saving";
    if !trainer.watches_mos {
        return None;
    }
    let cure = "leave the second `ModelCheckpoint` (`val_mos`) out of Piper's default callbacks: without the figure the \
                first epoch ends in an error";
    Some(match trainer.mos_reachable {
        Some(true) => Item::pass(name, "the network that gives `val_mos` can be loaded"),
        Some(false) => Item::fail(name, "`val_mos` needs a network that cannot be downloaded here", cure),
        None => Item::unknown(name, "whether the network that gives `val_mos` can be loaded was not tried", cure),
    })
}

fn manual(trainer: &TrainerCheck) -> Option<Item> {
    let name = "accumulation";
    let steps = trainer.accumulation.unwrap_or(1);
    if !trainer.manual_optimization || (steps == 1 && !trainer.clips) {
        return None;
    }
    let what = if steps == 1 { "gradient clipping" } else { "accumulation" };
    Some(Item::fail(
        name,
        format!("{what} is set, and the trainer steps its optimizers itself: Lightning refuses to start"),
        format!("take {what} out; a smaller batch changes the result, and shorter clips save more"),
    ))
}

fn twice(trainer: &TrainerCheck) -> Item {
    let name = "flags";
    let found = doubled(&trainer.argv);
    if found.is_empty() {
        return Item::pass(name, "no flag is given twice");
    }
    let told: Vec<String> = found.iter().map(|(flag, values)| format!("`{flag}` ({})", values.join(", "))).collect();
    Item::fail(
        name,
        format!("given more than once: {}", told.join("; ")),
        "keep one: most parsers take the last in silence",
    )
}

/// `accelerate launch --cpu --num_processes 2` starts one process, and says nothing.
fn accelerate(argv: &[String]) -> Option<Item> {
    let name = "processes";
    if !argv.iter().any(|word| ["accelerate", "accelerate-launch"].contains(&name_of(word))) {
        return None;
    }
    let find = |flag: &str| flags::find(argv, 0..argv.len(), flag).pop();
    let asked = find("--num_processes")?.value?.parse::<u64>().ok()?;
    let on_processors = find("--cpu").or_else(|| find("--use_cpu")).is_some();
    let several = find("--multi_gpu").or_else(|| find("--use_deepspeed")).is_some();
    Some(if on_processors && asked > 1 {
        let found = format!("`--cpu` with {asked} processes: accelerate starts one, and does not say so");
        Item::fail(name, found, "use `torchrun --nproc_per_node`, or `--multi_gpu` with `use_cpu` in the script")
    } else if asked > 1 && !several {
        let found = format!("{asked} processes are asked for; accelerate's own file decides how they are started");
        Item::unknown(name, found, "say it on the command line: `--multi_gpu`")
    } else {
        Item::pass(name, format!("{asked} asked for"))
    })
}

fn deepspeed(trainer: &TrainerCheck) -> Vec<Item> {
    let mut out = Vec::new();
    if trainer.argv.iter().any(|word| word == "--bind_cores_to_rank") {
        let cure = "install `numactl`, or take `--bind_cores_to_rank` out";
        out.push(match trainer.programs.numactl {
            Some(true) => Item::pass("numactl", "it is there for `--bind_cores_to_rank`"),
            Some(false) => Item::fail("numactl", "`--bind_cores_to_rank` starts it, and it is not installed", cure),
            None => Item::unknown("numactl", "`--bind_cores_to_rank` starts it; it was not looked for", cure),
        });
    }
    if trainer.deepspeed_with_use_cpu {
        out.push(Item::fail(
            "DeepSpeed",
            "Hugging Face's trainer with `use_cpu` ignores its DeepSpeed file, and does not say so",
            "start it with `accelerate launch --use_deepspeed`, or take `use_cpu` out",
        ));
    }
    if !trainer.deepspeed {
        return out;
    }
    let ops = trainer.unbuilt_ops.as_deref();
    let name = "first use";
    out.push(match ops {
        Some([]) => Item::pass(name, "DeepSpeed's ops are built already"),
        Some(ops) => Item::fail(
            name,
            format!("{} will be compiled inside the training, about 2 GiB a compiler and one a rank", ops.join(", ")),
            "run it once for a step outside any memory limit, with one rank; what was built is kept",
        ),
        None => Item::unknown(
            name,
            "whether DeepSpeed's ops are built was not looked at",
            "run it once for a step outside any memory limit; what was built is kept",
        ),
    });
    if ops.is_none_or(|ops| !ops.is_empty()) {
        for (name, there) in [("ninja", trainer.programs.ninja), ("C++ compiler", trainer.programs.compiler)] {
            let cure = format!("install the {name} where the trainer's environment finds it");
            out.push(match there {
                Some(true) => Item::pass(name, "it is there to build DeepSpeed's ops"),
                Some(false) => Item::fail(name, "DeepSpeed's ops cannot be built without it", cure),
                None => Item::unknown(name, "it was not looked for", cure),
            });
        }
    }
    out
}
