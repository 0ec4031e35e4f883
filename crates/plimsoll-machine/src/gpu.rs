//! GPUs, by NVIDIA's management library where it is installed.
//!
//! The library is opened when asked for and need not be there: then the reason is reported. Memory comes from the
//! second version of its query, which tells reserved from used. NVML counts in PCI order and CUDA by default does not,
//! so a card is to be matched by its UUID, never by its index.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::Serialize;

use crate::{Bytes, Root, Sighting};

/// The memory of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// Installed.
    pub total: Bytes,
    /// Kept by the driver.
    pub reserved: Bytes,
    /// In use by anybody.
    pub used: Bytes,
    /// Left.
    pub free: Bytes,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its identity, by which CUDA knows it too.
    pub uuid: String,
    /// Its place on the bus.
    pub pci: String,
    /// CUDA's compute capability, major and minor.
    pub compute: Option<(i32, i32)>,
    /// Its memory; unseen where it shares the machine's RAM.
    pub memory: Sighting<GpuMemory>,
}

/// The cards, and what drives them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpus {
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA that the driver runs, as `13.0`.
    pub cuda: Option<String>,
    /// The cards, in PCI order; one that cannot be asked has its reason.
    pub cards: Vec<Sighting<Gpu>>,
}

pub(crate) fn read(root: &Root) -> Sighting<Gpus> {
    if !root.is_system() {
        return Sighting::unseen("a recorded tree has no NVML to ask");
    }
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => {
            return Sighting::unseen("no NVML: `libnvidia-ml.so.1` is not installed");
        }
        Err(error) => return Sighting::unseen(format!("no NVML: {error}")),
    };
    match ask(&nvml) {
        Ok(gpus) => Sighting::Seen(gpus),
        Err(error) => Sighting::unseen(format!("NVML does not answer: {error}")),
    }
}

/// What is in use of the card with this identity now, by anybody.
pub fn gpu_memory_used(uuid: &str) -> Option<Bytes> {
    let gpus = read(&Root::system());
    let card = gpus.seen()?.cards.iter().filter_map(Sighting::seen).find(|card| card.uuid == uuid)?;
    card.memory.seen().map(|memory| memory.used)
}

fn ask(nvml: &Nvml) -> Result<Gpus, NvmlError> {
    let cards = (0..nvml.device_count()?).map(|index| {
        ask_card(nvml, index)
            .map_or_else(|error| Sighting::unseen(format!("card {index} does not answer: {error}")), Sighting::Seen)
    });
    Ok(Gpus {
        driver: nvml.sys_driver_version()?,
        cuda: nvml.sys_cuda_driver_version().ok().map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        cards: cards.collect(),
    })
}

fn ask_card(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let card = nvml.device_by_index(index)?;
    Ok(Gpu {
        name: card.name()?,
        uuid: card.uuid()?,
        pci: card.pci_info()?.bus_id,
        compute: card.cuda_compute_capability().ok().map(|compute| (compute.major, compute.minor)),
        memory: match card.memory_info() {
            Ok(memory) => Sighting::Seen(GpuMemory {
                total: Bytes(memory.total),
                reserved: Bytes(memory.reserved),
                used: Bytes(memory.used),
                free: Bytes(memory.free),
            }),
            Err(NvmlError::NotSupported) => Sighting::unseen("the card has no memory of its own: it shares the RAM"),
            Err(NvmlError::FailedToLoadSymbol(_)) => Sighting::unseen("the driver is older than 510"),
            Err(error) => Sighting::unseen(error.to_string()),
        },
    })
}
