//! A card's report that its memory ran out, in every spelling that PyTorch, its back ends and the drivers have used.
//!
//! Total: any text gives an answer. `Tried to allocate more than 1EB` is what a corrupted length looks like after a
//! timeout; it is reported as such and never as a full card. Figures larger than the card (a container that cannot see
//! its own number prints 17179869184 GiB) are left out.

use std::sync::LazyLock;

use plimsoll_machine::Bytes;
use regex::{Captures, Regex};
use serde::{Deserialize, Serialize};

/// Share of the card from which on reserved but unused memory counts as fragments.
const FRAGMENTS: f64 = 0.05;
/// Share of the card that a neighbour must hold to be worth a word; desktops hold a little everywhere.
const NEIGHBOUR: f64 = 0.05;

/// Who reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardForm {
    /// PyTorch's allocator, with figures.
    Allocator,
    /// The driver or a library, without.
    Driver,
    /// A library's error that a full card often looks like.
    Masked,
    /// A request of more than an exbibyte: a corrupted length.
    Corrupt,
}

/// What a card said when an allocation failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CudaReport {
    /// Who reported it.
    pub form: CardForm,
    /// `CUDA`, `HIP`, `XPU`, `NPU` or `MPS`.
    pub backend: String,
    /// Which card, as the process counts them.
    pub gpu: Option<u32>,
    /// What was asked for.
    pub requested: Option<Bytes>,
    /// The card's memory.
    pub total: Option<Bytes>,
    /// What was free.
    pub free: Option<Bytes>,
    /// What this process might use at most, where that was set.
    pub allowed: Option<Bytes>,
    /// What PyTorch's tensors held.
    pub allocated: Option<Bytes>,
    /// What PyTorch held in all.
    pub reserved: Option<Bytes>,
    /// What PyTorch held and did not use.
    pub unallocated: Option<Bytes>,
    /// What this process held, context and libraries included.
    pub this_process: Option<Bytes>,
    /// What others held on that card.
    pub others: Vec<Neighbour>,
}

/// Another process on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its number, as the driver says.
    pub pid: u32,
    /// What it holds.
    pub held: Bytes,
}

macro_rules! pattern {
    ($name:ident, $text:expr) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).expect("a pattern that is a constant"));
    };
}

pattern!(
    ASKED,
    r"(CUDA|HIP|XPU|NPU|GPU) out of memory[.;] Tried to allocate (more than 1EB|[0-9.]+ (?:bytes|[KMGT]iB))"
);
pattern!(BARE, r"(CUDA|HIP|XPU|NPU|MPS backend) out of memory");
pattern!(
    OLD,
    r"\(GPU (\d+); ([0-9.]+ \w+) total capacity; ([0-9.]+ \w+) already allocated; ([0-9.]+ \w+) free;(?: ([0-9.]+ \w+) allowed;)? ([0-9.]+ \w+) (?:reserved in total by PyTorch|cached)"
);
pattern!(NEW, r"GPU (\d+) has a total capaci?ty of ([0-9.]+ \w+)(?: of which ([0-9.]+ \w+) is free)?");
pattern!(OTHER, r"Process (\d+) has ([0-9.]+ \w+) memory in use");
pattern!(THIS, r"this process has ([0-9.]+ \w+) memory in use");
pattern!(ALLOWED, r"([0-9.]+ [KMGT]iB) allowed[;.]");
pattern!(HELD, r"Of the allocated memory ([0-9.]+ \w+) is allocated by PyTorch");
pattern!(UNUSED, r"([0-9.]+ \w+) is reserved by PyTorch but unallocated");
pattern!(
    DRIVER,
    r"(?:CUDA|HIP|XPU) (?:driver |runtime )?error(?: \d+)?: (?:an illegal value or )?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|[Cc]uda failure (?:2 )?'out of memory'|OUT_OF_DEVICE_MEMORY|^Error out of memory at line \d+|cuda runtime error \(2\) ?: out of memory"
);
pattern!(
    MASKED,
    r"CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_(?:ALLOC_FAILED|NOT_SUPPORTED|NOT_INITIALIZED)|ncclUnhandledCudaError|unhandled cuda error|unable to find an engine to execute this computation|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error"
);

impl CudaReport {
    /// Reads a line; `None` where it is not about a card's memory.
    pub fn parse(text: &str) -> Option<CudaReport> {
        let told = |form, backend: &str| CudaReport {
            form,
            backend: backend.to_string(),
            gpu: None,
            requested: None,
            total: None,
            free: None,
            allowed: None,
            allocated: None,
            reserved: None,
            unallocated: None,
            this_process: None,
            others: Vec::new(),
        };
        if let Some(found) = ASKED.captures(text) {
            let asked = found.get(2).map_or("", |asked| asked.as_str());
            let form = if asked.starts_with("more than") { CardForm::Corrupt } else { CardForm::Allocator };
            let backend = found.get(1).map_or("CUDA", |name| name.as_str());
            return Some(CudaReport { requested: amount(asked), ..told(form, backend) }.with_figures(text));
        }
        if let Some(found) = BARE.captures(text) {
            let backend = found.get(1).map_or("CUDA", |name| name.as_str().trim_end_matches(" backend"));
            return Some(told(CardForm::Allocator, backend).with_figures(text));
        }
        let backend = if text.contains("hip") || text.contains("HIP") { "HIP" } else { "CUDA" };
        if DRIVER.is_match(text) {
            return Some(told(CardForm::Driver, backend));
        }
        MASKED.is_match(text).then(|| told(CardForm::Masked, backend))
    }

    /// The figures that stand behind the request.
    fn with_figures(mut self, text: &str) -> CudaReport {
        let size = |found: &Captures<'_>, at: usize| found.get(at).and_then(|part| amount(part.as_str()));
        let number = |found: &Captures<'_>| found.get(1).and_then(|part| part.as_str().parse().ok());
        if let Some(found) = OLD.captures(text) {
            self.gpu = number(&found);
            (self.total, self.allocated, self.free) = (size(&found, 2), size(&found, 3), size(&found, 4));
            (self.allowed, self.reserved) = (size(&found, 5), size(&found, 6));
            // torch before 1.4 says `cached`: what is held beside the tensors.
            if text.contains(" cached)") {
                self.unallocated = self.reserved.take();
            }
        } else if let Some(found) = NEW.captures(text) {
            self.gpu = number(&found);
            (self.total, self.free) = (size(&found, 2), size(&found, 3));
        }
        let first = |pattern: &Regex| pattern.captures(text).and_then(|found| size(&found, 1));
        self.allowed = self.allowed.or_else(|| first(&ALLOWED));
        self.allocated = self.allocated.or_else(|| first(&HELD));
        self.unallocated = self.unallocated.or_else(|| first(&UNUSED));
        self.unallocated = self.unallocated.or_else(|| Some(self.reserved?.saturating_sub(self.allocated?)));
        self.reserved = self.reserved.or_else(|| Some(self.allocated?.saturating_add(self.unallocated?)));
        let possible = |held: &Bytes| self.total.is_none_or(|total| *held <= total);
        self.this_process = first(&THIS).filter(possible);
        self.others = OTHER
            .captures_iter(text)
            .filter_map(|found| Some(Neighbour { pid: number(&found)?, held: size(&found, 2)? }))
            .filter(|other| possible(&other.held))
            .collect();
        self
    }

    /// What the processes of others held, `ours` left out.
    pub fn held_by_others(&self, ours: &[u32]) -> Bytes {
        let others = self.others.iter().filter(|other| !ours.contains(&other.pid));
        others.fold(Bytes::ZERO, |sum, other| sum.saturating_add(other.held))
    }

    /// Whether the request would have fitted without the processes of others.
    pub fn is_for_a_neighbour(&self, ours: &[u32]) -> bool {
        let held = self.held_by_others(ours);
        let (Some(asked), Some(total)) = (self.requested, self.total) else { return false };
        held.0 as f64 > total.0 as f64 * NEIGHBOUR && held.saturating_add(self.free.unwrap_or_default()) >= asked
    }

    /// Whether others held more of the card than this process.
    pub fn is_mostly_anothers(&self, ours: &[u32]) -> bool {
        self.this_process.or(self.reserved).is_some_and(|own| self.held_by_others(ours) > own)
    }

    /// Whether PyTorch itself held enough unused memory for the request.
    pub fn had_it_in_pieces(&self) -> bool {
        matches!((self.unallocated, self.requested), (Some(unused), Some(asked)) if unused >= asked && asked.0 > 0)
    }

    /// Whether the memory was there, but not in one piece, or not for this process.
    pub fn is_fragmented(&self) -> bool {
        let pieces = match (self.unallocated, self.total) {
            (Some(unused), Some(total)) => total.0 > 0 && unused.0 as f64 > total.0 as f64 * FRAGMENTS,
            _ => false,
        };
        pieces || self.had_more_free()
    }

    /// Whether more was free than was asked for: another accounting (Windows), or pieces. Where the process was given a
    /// share of the card, only what is left of that share is free to it.
    pub fn had_more_free(&self) -> bool {
        let share = self.allowed.zip(self.reserved).map(|(allowed, held)| allowed.saturating_sub(held));
        let free = match (self.free, share) {
            (Some(free), Some(share)) => Some(free.min(share)),
            (free, share) => free.or(share),
        };
        matches!((free, self.requested), (Some(free), Some(asked)) if free > asked)
    }
}

/// `2.00 GiB`, `20.00 MiB`, `512 bytes`.
fn amount(text: &str) -> Option<Bytes> {
    let text = text.trim().trim_end_matches('.');
    match text.strip_suffix(" bytes") {
        Some(number) => number.trim().parse().ok().map(Bytes),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
#[path = "cuda_test.rs"]
mod tests;
