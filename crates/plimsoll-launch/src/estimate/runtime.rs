//! What Python and its libraries cost before a model is there, and what the launchers around the ranks cost.
//!
//! A caller that has measured gives its figures; the rest are labelled defaults, measured on torch 2.15, transformers 5.22,
//! lightning 2.6, deepspeed 0.19 (CPU builds) by importing them in one process: `RssAnon` is each process's own,
//! `RssFile` is shared by all of them.

use plimsoll_machine::Bytes;
use serde::Serialize;

use super::table::Figure;
use crate::Launcher;

/// Which libraries a rank imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Software {
    /// PyTorch alone, or with accelerate.
    Torch,
    /// transformers' Trainer and PEFT.
    HfTrainer,
    /// Lightning.
    Lightning,
    /// Piper on Lightning.
    Piper,
    /// DeepSpeed without transformers.
    DeepSpeed,
    /// transformers' Trainer with DeepSpeed.
    HfDeepSpeed,
}

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Saving {
    /// Tensor by tensor into the file: `torch.save`, safetensors.
    Streamed,
    /// Into a buffer in memory first: Lightning.
    Buffered,
}

/// What a rank's process costs without a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Runtime {
    /// Each process's own memory after its imports.
    pub private: Figure,
    /// Library pages that all processes share.
    pub shared: Figure,
    /// What the first steps add: thread stacks, compiled kernels, engines.
    pub first_step: Figure,
    /// What a CUDA context takes of host memory, each rank.
    pub cuda_host: Figure,
    /// What a CUDA context takes of a card.
    pub context: Figure,
    /// Workspaces of cuBLAS and cuDNN.
    pub workspaces: Figure,
    /// Whether the training loop still names the logits when the backward pass begins.
    pub names_logits: bool,
    /// How checkpoints are written.
    pub saving: Saving,
}

impl Runtime {
    /// Our defaults for these libraries.
    pub fn of(software: Software) -> Runtime {
        let (private, shared, first) = match software {
            Software::Torch => (290, 240, 50),
            Software::HfTrainer => (442, 326, 60),
            Software::Lightning => (465, 341, 60),
            Software::Piper => (483, 382, 50),
            Software::DeepSpeed => (308, 240, 230),
            Software::HfDeepSpeed => (458, 329, 240),
        };
        let lightning = matches!(software, Software::Lightning | Software::Piper);
        Runtime {
            private: Figure::default_of(Bytes::mib(private)),
            shared: Figure::default_of(Bytes::mib(shared)),
            first_step: Figure::default_of(Bytes::mib(first)),
            // Measured with torch 2.11 and CUDA 13 on an H200 (`bench/card`, 2026-11-15): resident 491 MiB after the import,
            // 613 with a context, 865 after products in fp32 and bf16.
            cuda_host: Figure::default_of(Bytes::mib(374)),
            // There too: 619 MiB with a context, 721 after the products. Smaller cards have smaller contexts (300 to 500 MB).
            context: Figure::default_of(Bytes::mib(619)),
            workspaces: Figure::default_of(Bytes::mib(102)),
            names_logits: !matches!(software, Software::HfTrainer | Software::HfDeepSpeed),
            saving: if lightning { Saving::Buffered } else { Saving::Streamed },
        }
    }
}

/// What the processes of a launcher have of their own, together: torchrun's agent, or accelerate around the ranks, has
/// imported torch (562 MiB resident, half its own); `deepspeed` has a runner and a launcher (550 MiB resident each).
pub fn launcher(launcher: Launcher) -> Figure {
    Figure::default_of(match launcher {
        Launcher::None | Launcher::Mpi => Bytes::ZERO,
        Launcher::Torchrun | Launcher::Accelerate => Bytes::mib(292),
        Launcher::DeepSpeed => Bytes::mib(2 * 308),
    })
}

/// What DeepSpeed compiles when it is first used, outside of any limit: the largest tree seen (PSS of two compilers).
pub fn first_use(offload: bool) -> Figure {
    Figure::default_of(Bytes::mib(if offload { 5838 } else { 4206 }))
}
