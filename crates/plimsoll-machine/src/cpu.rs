//! The processor: its name, its vector instructions, and how many of its cores are ours.
//!
//! Cores are counted after affinity (`taskset`, cpusets) and CPU quota. The vector level is what the kernel lists,
//! so that a recorded tree gives its own; `SimdLevel::detected` asks the processor itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::lines::misread;
use crate::{MachineError, Mount, Root, cgroup};

const CPUINFO: &str = "/proc/cpuinfo";
const STATUS: &str = "/proc/self/status";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The vector instructions that the engine's kernels come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SimdLevel {
    /// Neither of the others.
    Baseline,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL.
    Avx512,
}

impl SimdLevel {
    /// The level that a list of the kernel's flag names allows.
    pub fn of_flags(flags: &str) -> SimdLevel {
        let has = |wanted: &[&str]| wanted.iter().all(|w| flags.split_ascii_whitespace().any(|flag| flag == *w));
        if !has(&["avx2", "fma"]) {
            SimdLevel::Baseline
        } else if has(&["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]) {
            SimdLevel::Avx512
        } else {
            SimdLevel::Avx2
        }
    }

    /// The level of the processor that runs this.
    pub fn detected() -> SimdLevel {
        #[cfg(target_arch = "x86_64")]
        {
            use std::is_x86_feature_detected as has;
            if !(has!("avx2") && has!("fma")) {
                return SimdLevel::Baseline;
            }
            let wide = has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
            if wide { SimdLevel::Avx512 } else { SimdLevel::Avx2 }
        }
        #[cfg(not(target_arch = "x86_64"))]
        SimdLevel::Baseline
    }
}

/// How many cores there are, and are ours.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cores {
    /// Switched on in the machine.
    pub online: usize,
    /// This process may run on these.
    pub allowed: usize,
    /// Of the allowed ones, those that are cores of their own and not a second thread of one; where the machine says.
    pub physical: Option<usize>,
    /// Cores' worth of time that the cgroups give; `None` without a quota.
    pub quota: Option<f64>,
    /// Threads worth starting.
    pub usable: usize,
}

/// The processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cpu {
    /// Its name.
    pub model: String,
    /// Its vector instructions.
    pub simd: SimdLevel,
    /// Its cores.
    pub cores: Cores,
}

/// Threads worth starting: the allowed cores, or the quota rounded up where that is less; at least one.
///
/// Up, because two threads under a quota of 1.5 get 1.5 cores of work done, and one gets 1.
pub fn usable_cores(allowed: usize, quota: Option<f64>) -> usize {
    let by_quota = quota.map_or(usize::MAX, |quota| quota.ceil() as usize);
    allowed.min(by_quota).max(1)
}

/// The name and the flags of the first processor in the text of `/proc/cpuinfo`.
pub fn parse_cpuinfo(text: &str) -> (Option<&str>, Option<&str>) {
    let value = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(k, _)| k.trim_end() == key).map(|(_, value)| value.trim())
    };
    (value("model name"), value("flags"))
}

/// The numbers in a list such as `0-3,8,10-11`; `path` is only for the messages.
pub fn parse_cpu_list(path: &Path, line: usize, text: &str) -> Result<Vec<usize>, MachineError> {
    const MOST: usize = 1 << 16; // more than any machine has; a wrong line must not fill memory
    let wrong = || misread(path, line, "a list of CPUs like `0-3,8`", text);
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.trim().parse().map_err(|_| wrong())?;
        let last: usize = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last >= MOST || cpus.len() + (last - first) >= MOST {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

pub(crate) fn read(root: &Root, mounts: &[Mount]) -> Result<Cpu, MachineError> {
    // The first processor's entry is enough, and on a machine with hundreds the whole file takes the kernel long.
    let mut buffer = [0u8; 8192];
    let text = String::from_utf8_lossy(root.read_into(Path::new(CPUINFO), &mut buffer)?).into_owned();
    let (model, flags) = parse_cpuinfo(&text);
    let allowed = read_allowed(root)?;
    let online = match root.read_if_there(ONLINE)? {
        Some(text) => parse_cpu_list(&root.join(ONLINE), 1, &text)?.len(),
        None => allowed.len(),
    };
    let quota = cgroup::read_quota(root, mounts)?;
    Ok(Cpu {
        model: model.unwrap_or("unknown").to_string(),
        simd: SimdLevel::of_flags(flags.unwrap_or("")),
        cores: Cores {
            online,
            allowed: allowed.len(),
            physical: read_physical(root, &allowed)?,
            quota,
            usable: usable_cores(allowed.len(), quota),
        },
    })
}

fn read_allowed(root: &Root) -> Result<Vec<usize>, MachineError> {
    const FIELD: &str = "Cpus_allowed_list";
    let text = root.read(STATUS)?;
    let path = root.join(STATUS);
    let line = text.lines().enumerate().find_map(|(at, line)| {
        line.strip_prefix(FIELD).and_then(|rest| rest.strip_prefix(':')).map(|list| (at + 1, list))
    });
    let (at, list) = line.ok_or(MachineError::NoField { path: path.clone(), field: FIELD })?;
    parse_cpu_list(&path, at, list)
}

/// Threads of one core share a list of siblings: as many cores as there are different lists.
fn read_physical(root: &Root, allowed: &[usize]) -> Result<Option<usize>, MachineError> {
    let mut cores = BTreeSet::new();
    for cpu in allowed {
        let file = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        match root.read_if_there(file)? {
            Some(siblings) => cores.insert(siblings.trim().to_string()),
            None => return Ok(None),
        };
    }
    Ok(Some(cores.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avx512_needs_all_five_parts_and_avx2_needs_fma() {
        let all = "fpu avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl";
        assert_eq!(SimdLevel::of_flags(all), SimdLevel::Avx512);
        for part in ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"] {
            assert_eq!(SimdLevel::of_flags(&all.replace(part, "")), SimdLevel::Avx2, "without {part}");
        }
        assert_eq!(SimdLevel::of_flags("avx avx2"), SimdLevel::Baseline);
        assert_eq!(SimdLevel::of_flags("avx fma fma4 avx2x"), SimdLevel::Baseline);
    }

    #[test]
    fn a_quota_rounds_up_and_never_to_nothing() {
        assert_eq!(usable_cores(8, None), 8);
        assert_eq!(usable_cores(8, Some(1.5)), 2);
        assert_eq!(usable_cores(2, Some(6.0)), 2);
        assert_eq!(usable_cores(8, Some(0.0)), 1);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        let list = |text| parse_cpu_list(Path::new(STATUS), 1, text);
        assert_eq!(list("\t0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        for wrong in ["3-1", "a", "0-", "0-18446744073709551615", "-1"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn name_and_flags_come_from_the_first_processor() {
        let text =
            "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(parse_cpuinfo(text), (Some("AMD EPYC"), Some("fpu avx2")));
        assert_eq!(parse_cpuinfo(""), (None, None));
    }
}
