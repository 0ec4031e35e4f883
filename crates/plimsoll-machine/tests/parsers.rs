//! Whatever bytes a file holds, a parser answers or refuses; it never panics and never invents more than it read.

use std::path::Path;

use plimsoll_machine::{
    Bytes, CgroupVersion, MemoryStat, Root, SimdLevel, headroom, own_memory, parse_cpu_list, parse_cpuinfo,
    parse_identity, parse_limits, parse_membership, parse_meminfo, parse_memory_stat, parse_mountinfo, parse_pressure,
    parse_status, parse_vmstat, probe, reclaimable,
};
use proptest::prelude::*;

const FILE: &str = "/proc/x";

/// Lines that begin like real ones, since noise alone seldom gets past the first key.
fn near_text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "MemTotal:",
        "MemAvailable:",
        "SwapTotal:",
        "VmRSS:",
        "VmHWM:",
        "Threads:",
        "Name:",
        "Pid:",
        "PPid:",
        "NSpid:",
        "oom_kill ",
        "pswpin ",
        "Cpus_allowed_list:",
        "0::",
        "4:memory:",
        "/",
        "/..",
        "active_file",
        "inactive_file",
        "file",
        "total_cache",
        "some",
        "full",
        "avg10=",
        "avg60=",
        "kB",
        "max",
        "18446744073709551615",
        "-1",
        "0",
        "7",
        "0-3,8",
        "-",
        "cgroup2",
        "cgroup",
        "rw,memory",
        "\\040",
        "\\777",
        "\\",
        "Max locked memory",
        "unlimited",
        "flags",
        ":",
        "é",
        "NaN",
        "inf",
        "1e999",
        "\t",
        "\n",
        "\n",
        " ",
        " ",
        " ",
    ]);
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

fn parse_all(text: &str) {
    let path = Path::new(FILE);
    let _ = parse_meminfo(path, text);
    let _ = parse_status(path, text);
    let _ = parse_limits(path, text);
    let _ = parse_membership(path, text);
    let _ = parse_mountinfo(path, text);
    let _ = parse_cpu_list(path, 1, text);
    let _ = parse_vmstat(path, text, Bytes::kib(4));
    if let Ok(identity) = parse_identity(path, text) {
        assert!(identity.comm.len() <= text.len());
    }
    if let Ok(pressure) = parse_pressure(path, text) {
        assert!(pressure.some.avg10.is_finite() && pressure.full.avg60 >= 0.0);
    }
    let (_, flags) = parse_cpuinfo(text);
    let _ = SimdLevel::of_flags(flags.unwrap_or(""));
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        if let Ok(stat) = parse_memory_stat(path, version, text) {
            let _ = reclaimable(&stat);
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        parse_all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn text_near_the_real_one_never_panics(text in near_text()) {
        parse_all(&text);
    }

    #[test]
    fn what_can_be_dropped_is_never_more_than_the_lists_and_the_slab(
        active in 0u64..1 << 50, inactive in 0u64..1 << 50, cache in 0u64..1 << 51, shmem in 0u64..1 << 50,
        dirty in 0u64..1 << 50, slab in 0u64..1 << 50,
    ) {
        let text = format!(
            "active_file {active}\ninactive_file {inactive}\nfile {cache}\nshmem {shmem}\nfile_dirty {dirty}\n\
             slab_reclaimable {slab}\n"
        );
        let stat: MemoryStat = parse_memory_stat(Path::new(FILE), CgroupVersion::V2, &text).unwrap();
        let dropped = reclaimable(&stat).0;
        prop_assert!(dropped >= slab && dropped <= active + inactive + slab);
        prop_assert!(dropped - slab <= cache.saturating_sub(shmem));
    }

    #[test]
    fn a_whole_tree_of_noise_is_answered_or_refused(
        memory in near_text(), membership in near_text(), mounts in near_text(), status in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("proc/self")).unwrap();
        fs_err::write(dir.path().join("proc/meminfo"), memory).unwrap();
        fs_err::write(dir.path().join("proc/self/cgroup"), membership).unwrap();
        fs_err::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        fs_err::write(dir.path().join("proc/self/status"), status).unwrap();
        let root = Root::at(dir.path());
        let _ = (probe(&root, Path::new("/")), headroom(&root), own_memory(&root));
    }
}
