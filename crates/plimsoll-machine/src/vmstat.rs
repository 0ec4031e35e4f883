//! `/proc/vmstat`: what the whole machine swapped and whom its kernel killed, counted since it booted.
//!
//! Meant to be read every second, so it reads once into a buffer on the stack. The counters are of everybody on the
//! machine, in any container; whose they are is not to be learnt here.

use std::path::Path;

use crate::lines::keyed_number;
use crate::{Bytes, MachineError, Root};

const VMSTAT: &str = "/proc/vmstat";

/// Counters of the machine since it booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmStat {
    /// Processes that the kernel killed for want of memory (kernel 4.13).
    pub oom_kill: Option<u64>,
    /// Read from swap; `None` on a kernel without swap.
    pub swapped_in: Option<Bytes>,
    /// Written to swap.
    pub swapped_out: Option<Bytes>,
}

/// Reads the text of `/proc/vmstat`, which counts swap in pages of `page`; `path` is only for the messages.
pub fn parse_vmstat(path: &Path, text: &str, page: Bytes) -> Result<VmStat, MachineError> {
    let swapped = |key| Ok(keyed_number(path, text, key)?.map(|pages| Bytes(pages.saturating_mul(page.0))));
    Ok(VmStat {
        oom_kill: keyed_number(path, text, "oom_kill")?,
        swapped_in: swapped("pswpin")?,
        swapped_out: swapped("pswpout")?,
    })
}

impl VmStat {
    /// The counters now.
    pub fn read(root: &Root) -> Result<VmStat, MachineError> {
        // 4 to 5 KiB in practice.
        let mut buffer = [0u8; 16 << 10];
        let text = root.read_into(Path::new(VMSTAT), &mut buffer)?;
        let text = String::from_utf8_lossy(text);
        parse_vmstat(&root.join(VMSTAT), &text, Bytes(rustix::param::page_size() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "nr_free_pages 5\npswpin 3\npswpout 4\npswpinx 9\noom_kill 2\noom_kill_x 7\n";

    #[test]
    fn pages_become_bytes_and_keys_are_whole_words() {
        let found = parse_vmstat(Path::new(VMSTAT), TEXT, Bytes::kib(4)).unwrap();
        let (swapped_in, swapped_out) = (Some(Bytes::kib(12)), Some(Bytes::kib(16)));
        assert_eq!(found, VmStat { oom_kill: Some(2), swapped_in, swapped_out });
    }

    #[test]
    fn what_an_old_kernel_lacks_is_none_and_a_wrong_number_is_named() {
        assert_eq!(parse_vmstat(Path::new(VMSTAT), "nr_free_pages 5\n", Bytes::kib(4)).unwrap(), VmStat::default());
        let error = parse_vmstat(Path::new(VMSTAT), "a 1\noom_kill two\n", Bytes::kib(4)).unwrap_err().to_string();
        assert_eq!(error, "`/proc/vmstat` line 2: expected `key number`, found `oom_kill two`");
    }
}
