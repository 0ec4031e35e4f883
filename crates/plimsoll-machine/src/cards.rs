//! Cards that are watched: how full each is and by whom, cheap enough for once a second.
//!
//! NVML is opened once and kept. Its process numbers are those of the machine's first PID namespace; a process that
//! shows both as computing and as drawing counts once, with the larger figure. Managed memory is not in the figures.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use serde::Serialize;

use crate::{Bytes, GpuMemory, Sighting};

/// NVML, held open.
#[derive(Debug)]
pub struct Cards {
    nvml: Nvml,
}

/// One card at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CardUse {
    /// Its identity, by which CUDA knows it too.
    pub uuid: String,
    /// Its memory.
    pub memory: GpuMemory,
    /// Memory by process, as NVML numbers them; unknown shares are left out.
    pub processes: BTreeMap<u32, Bytes>,
}

impl Cards {
    /// Opens NVML; unseen where there is none, or no card.
    pub fn open() -> Sighting<Cards> {
        match Nvml::init() {
            Ok(nvml) => match nvml.device_count() {
                Ok(0) => Sighting::unseen("NVML shows no card"),
                Ok(_) => Sighting::Seen(Cards { nvml }),
                Err(error) => Sighting::unseen(format!("NVML does not answer: {error}")),
            },
            Err(error) => Sighting::unseen(format!("no NVML: {error}")),
        }
    }

    /// All cards that answer, in PCI order.
    pub fn look(&self) -> Vec<CardUse> {
        let count = self.nvml.device_count().unwrap_or(0);
        (0..count).filter_map(|index| self.look_at(index)).collect()
    }

    fn look_at(&self, index: u32) -> Option<CardUse> {
        let card = self.nvml.device_by_index(index).ok()?;
        let memory = card.memory_info().ok()?;
        let computing = card.running_compute_processes().unwrap_or_default();
        let drawing = card.running_graphics_processes().unwrap_or_default();
        let mut processes = BTreeMap::new();
        for process in computing.iter().chain(&drawing) {
            if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
                let share = processes.entry(process.pid).or_insert(Bytes::ZERO);
                *share = (*share).max(Bytes(bytes));
            }
        }
        Some(CardUse {
            uuid: card.uuid().ok()?,
            memory: GpuMemory {
                total: Bytes(memory.total),
                reserved: Bytes(memory.reserved),
                used: Bytes(memory.used),
                free: Bytes(memory.free),
            },
            processes,
        })
    }
}
