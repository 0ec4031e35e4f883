//! Variables that must be set before a trainer starts, and the file that sets them.
//!
//! A variable that does nothing on a platform is not written: torch ignores expandable segments outside of Linux.

use std::collections::BTreeMap;

use super::WriteError;
use crate::estimate::Device;

/// What the variables follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Where the model computes.
    pub device: Device,
    /// Whether this is Linux.
    pub linux: bool,
    /// Torch's version, where known; the allocator's variable was renamed in 2.9.
    pub torch: Option<(u32, u32)>,
    /// Whether segments should grow.
    pub expandable: bool,
    /// Threads of each rank, where they are to be set.
    pub threads: Option<u64>,
    /// Whether DeepSpeed runs on the CPU.
    pub deepspeed_on_cpu: bool,
}

impl Environment {
    /// The variables.
    pub fn variables(&self) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::new();
        if self.device == Device::Cuda {
            // NVML counts cards in bus order; CUDA's own default is the fastest first.
            variables.insert("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_string());
            if self.expandable && self.linux {
                let new = self.torch.is_none_or(|version| version >= (2, 9));
                let name = if new { "PYTORCH_ALLOC_CONF" } else { "PYTORCH_CUDA_ALLOC_CONF" };
                variables.insert(name, "expandable_segments:True".to_string());
            }
        }
        if let Some(threads) = self.threads {
            variables.insert("OMP_NUM_THREADS", threads.max(1).to_string());
        }
        if self.deepspeed_on_cpu {
            variables.insert("DS_ACCELERATOR", "cpu".to_string());
        }
        variables
    }
}

/// Lines of `NAME=value`, as shells, Docker and systemd read them alike: values need no quotes or are refused.
pub fn env_file<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<String, WriteError> {
    let mut text = String::new();
    for (name, value) in variables {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/+@%=".contains(c);
        if value.is_empty() || !value.chars().all(plain) {
            let why = "shells, Docker and systemd would read it differently";
            return Err(WriteError::Unwritable { key: name.to_string(), value: value.to_string(), why });
        }
        text.push_str(&format!("{name}={value}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: Environment = Environment {
        device: Device::Cuda,
        linux: true,
        torch: None,
        expandable: true,
        threads: Some(4),
        deepspeed_on_cpu: false,
    };

    #[test]
    fn expandable_segments_are_asked_for_where_they_work_alone() {
        assert_eq!(CUDA.variables()["PYTORCH_ALLOC_CONF"], "expandable_segments:True");
        let old = Environment { torch: Some((2, 4)), ..CUDA }.variables();
        assert!(old.contains_key("PYTORCH_CUDA_ALLOC_CONF") && !old.contains_key("PYTORCH_ALLOC_CONF"));
        for nowhere in [Environment { linux: false, ..CUDA }, Environment { device: Device::Cpu, ..CUDA }] {
            assert!(!nowhere.variables().keys().any(|name| name.contains("ALLOC_CONF")), "{nowhere:?}");
        }
    }

    #[test]
    fn cards_are_counted_in_bus_order() {
        assert_eq!(CUDA.variables()["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
        assert_eq!(CUDA.variables()["OMP_NUM_THREADS"], "4");
    }

    #[test]
    fn a_value_that_readers_disagree_on_is_refused() {
        assert_eq!(env_file([("A", "1"), ("B", "x:y")]).unwrap(), "A=1\nB=x:y\n");
        for value in ["", "two words", "$HOME", "a\nb", "'q'"] {
            assert!(env_file([("A", value)]).is_err(), "{value}");
        }
    }
}
