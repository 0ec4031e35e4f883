//! The probe on recorded machines: each test states what may be used, and how that comes about.

use std::path::{Path, PathBuf};

use plimsoll_machine::{
    Bound, Bytes, Cgroup, CgroupVersion, DiskKind, Headroom, HugePages, Overcommit, Probe, Root, Sighting, SimdLevel,
    Stall, headroom, own_memory, probe,
};

fn tree(name: &str) -> Root {
    Root::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees").join(name))
}

fn look(name: &str, disk: &str) -> Probe {
    let root = tree(name);
    let machine = probe(&root, Path::new(disk)).unwrap();
    // The cheap figure is the same figure.
    assert_eq!(headroom(&root).unwrap(), machine.usable);
    let bound = Headroom::find(&root).unwrap().read_bound().unwrap();
    assert_eq!((bound.bytes, &bound.bound), (machine.usable, &machine.bound));
    machine
}

fn cgroup(machine: &Probe) -> &Cgroup {
    machine.cgroup.seen().unwrap()
}

fn limit(machine: &Probe) -> Option<(Bytes, &Path)> {
    cgroup(machine).limit.as_ref().map(|limit| (limit.bytes, limit.file.as_path()))
}

#[test]
fn a_laptop_without_limits_gives_what_is_available() {
    let machine = look("laptop", "/home/anna/runs/first");
    // MemAvailable 9437184 kB; every memory.max and memory.high up to the root says `max`.
    assert_eq!(machine.usable, Bytes::gib(9));
    assert_eq!(machine.bound, Bound::Ram);
    assert_eq!(machine.ram.total, Bytes::kib(16329984));
    assert_eq!((cgroup(&machine).version, limit(&machine)), (CgroupVersion::V2, None));
    // Five levels below v2's root, which has no memory.current and is none.
    assert_eq!(cgroup(&machine).levels.len(), 5);
    assert_eq!(cgroup(&machine).current, Bytes::mib(300));
    // 80 active + 100 inactive - 1 dirty + 12 slab
    assert_eq!(cgroup(&machine).reclaimable, Bytes::mib(191));
    assert_eq!(cgroup(&machine).pressure.seen().unwrap().some, Stall { avg10: 0.5, avg60: 0.1 });
    assert_eq!(machine.pressure.seen().unwrap().full, Stall { avg10: 0.75, avg60: 0.2 });
    assert_eq!((machine.swap.total, machine.swap.usable), (Bytes::kib(8388604), Bytes::gib(7)));
    let cores = &machine.cpu.cores;
    assert_eq!((cores.online, cores.allowed, cores.physical, cores.quota, cores.usable), (8, 8, Some(4), None, 8));
    assert_eq!(machine.cpu.simd, SimdLevel::Avx2);
    assert_eq!(machine.cpu.model, "Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz");
    // The run folder does not exist yet; its nearest ancestor lies on the second disk.
    assert_eq!(machine.disk.path, Path::new("/home/anna"));
    assert_eq!((machine.disk.fs.as_deref(), machine.disk.mount.as_deref()), (Some("btrfs"), Some(Path::new("/home"))));
    // A tmpfs mounted without a size is half of the RAM.
    assert_eq!(machine.shm.seen().unwrap().total, Bytes::kib(16329984 / 2));
    assert_eq!(machine.limits.memlock, Some(Bytes(2090254336)));
    assert_eq!(
        (machine.kernel.overcommit, machine.kernel.huge_pages),
        (Some(Overcommit::Heuristic), Some(HugePages::Madvise))
    );
    assert!(!machine.kernel.wsl);
}

#[test]
fn a_v1_container_obeys_the_limit_of_an_ancestor_it_cannot_see() {
    let machine = look("container-v1", "/data");
    // memory.limit_in_bytes 4096 MiB, but hierarchical_memory_limit 3072 MiB, which nothing under the mount sets.
    // 3072 - 1536 used + (384 active + 512 inactive - 48 dirty - 16 writeback = 832) = 2368
    assert_eq!(machine.usable, Bytes::mib(2368));
    assert_eq!(limit(&machine), Some((Bytes::gib(3), Path::new("/sys/fs/cgroup/memory/memory.stat"))));
    assert_eq!(cgroup(&machine).version, CgroupVersion::V1);
    assert_eq!(cgroup(&machine).levels.len(), 1);
    // memsw 6144 - memory 4096 = 2048 of swap; 1792 - 1536 = 256 of it in use; the machine has 2048 free.
    assert_eq!((cgroup(&machine).swap_limit, machine.swap.usable), (Some(Bytes::gib(2)), Bytes::mib(1792)));
    // A quota of 2.5 of the 16 cores.
    assert_eq!((machine.cpu.cores.quota, machine.cpu.cores.usable), (Some(2.5), 3));
    assert_eq!(machine.cpu.simd, SimdLevel::Avx512);
    assert_eq!((machine.disk.fs.as_deref(), machine.disk.kind), (Some("nfs4"), DiskKind::Network));
    assert_eq!(machine.shm.seen().unwrap().total, Bytes::mib(64));
    assert!(matches!(&machine.pressure, Sighting::Unseen { reason } if reason.contains("/proc/pressure/memory")));
    assert_eq!(machine.kernel.huge_pages, Some(HugePages::Always));
}

#[test]
fn in_nested_v2_limits_the_pod_full_of_siblings_binds_and_not_the_smallest_limit() {
    let machine = look("container-v2-nested", "/scratch space");
    // The smallest limit is the container's memory.high of 6 GiB (its memory.max is 8, the pod's 7, all pods' 60).
    let pod = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7c1e.slice";
    let high = PathBuf::from(pod).join("cri-containerd-91ab.scope/memory.high");
    assert_eq!(limit(&machine), Some((Bytes::gib(6), high.as_path())));
    // Container: 6144 - 2048 + (384 + 512 - 32 - 8 + 24 = 880) = 4976.
    // Pod:       7168 - 6656 + (512 + 768 - 32 - 8 + 40 = 1280) = 1792, the least.
    assert_eq!(machine.usable, Bytes::mib(1792));
    let Bound::Cgroup { room } = &machine.bound else { panic!("{:?}", machine.bound) };
    assert_eq!((room.limit.bytes, &room.limit.file), (Bytes::gib(7), &PathBuf::from(pod).join("memory.max")));
    assert_eq!((room.current, room.reclaimable), (Bytes::mib(6656), Bytes::mib(1280)));
    // The machine has 8 GiB of swap; the container may use none of it.
    assert_eq!((machine.swap.free, machine.swap.usable), (Bytes::kib(8388604), Bytes::ZERO));
    // 16 of 32 by affinity, 6 by the pod's quota, which is below the container's 8.
    let cores = &machine.cpu.cores;
    assert_eq!((cores.online, cores.allowed, cores.physical, cores.usable), (32, 16, Some(8), 6));
    assert_eq!(cgroup(&machine).pressure.seen().unwrap().full, Stall { avg10: 9.75, avg60: 6.5 });
    // The blank in the mount point is written as an escape in the mount table.
    assert_eq!((machine.disk.fs.as_deref(), machine.disk.path.as_path()), (Some("xfs"), Path::new("/scratch space")));
    assert_eq!(machine.limits.memlock, None);
}

#[test]
fn a_cgroup_full_of_page_cache_still_gives_what_can_be_dropped() {
    let machine = look("page-cache-full", "/");
    // memory.current is memory.max. Droppable: 512 active + 1024 inactive - 64 dirty - 16 writeback + 20 slab = 1476;
    // the 256 MiB of shared memory are inside `file` (1792) but on neither list, and are not counted.
    assert_eq!(machine.usable, Bytes::mib(1476));
    let Bound::Cgroup { room } = &machine.bound else { panic!("{:?}", machine.bound) };
    assert_eq!((room.limit.bytes, room.current), (Bytes::gib(2), Bytes::gib(2)));
    // 512 allowed - 128 used
    assert_eq!(machine.swap.usable, Bytes::mib(384));
    // CPUs 0 and 2 of four, and a processor without AVX2.
    assert_eq!((machine.cpu.cores.online, machine.cpu.cores.usable), (4, 2));
    assert_eq!(machine.cpu.simd, SimdLevel::Baseline);
    assert!(matches!(&machine.shm, Sighting::Unseen { reason } if reason == "`/dev/shm` is not mounted"));
    assert!(machine.kernel.wsl);
}

#[test]
fn without_swap_the_machine_binds_where_it_has_less_than_the_cgroup_allows() {
    let machine = look("no-swap", "/");
    // Cgroup: 1024 - 200 + (16 + 24 + 4 = 44) = 868; MemAvailable 524288 kB = 512.
    assert_eq!(machine.usable, Bytes::mib(512));
    assert_eq!(machine.bound, Bound::Ram);
    assert_eq!(cgroup(&machine).room.as_ref().unwrap().bytes, Bytes::mib(868));
    assert_eq!((machine.swap.total, machine.swap.usable), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(machine.kernel.huge_pages, None);
    assert!(machine.to_string().contains("\nswap         none\n"), "{machine}");
}

#[test]
fn in_a_hybrid_the_hierarchy_with_the_memory_files_counts() {
    let machine = look("hybrid", "/");
    let (bytes, file) = limit(&machine).unwrap();
    // The slice's own file is named, not the hierarchical figure that repeats it.
    assert_eq!((bytes, file), (Bytes::gib(5), Path::new("/sys/fs/cgroup/memory/system.slice/memory.limit_in_bytes")));
    assert_eq!(cgroup(&machine).version, CgroupVersion::V1);
    // Service: 8192 - 1024 + 256 = 7424. Slice: 5120 - 3072 + (384 + 512 - 32 = 864) = 2912, the least.
    // Strict overcommit would leave 20617212 - 8388608 kB = 11942 MiB, and 24576 MiB are available.
    assert_eq!(machine.usable, Bytes::mib(2912));
    assert_eq!(machine.kernel.overcommit, Some(Overcommit::Strict));
    // No swap limit: the machine's 4194300 kB are ours.
    assert_eq!((cgroup(&machine).swap_limit, machine.swap.usable), (None, Bytes::kib(4194300)));
    assert_eq!(machine.cpu.cores.quota, None);
}

#[test]
fn a_parent_that_does_not_count_its_children_does_not_bind_them() {
    // The hybrid tree, on a kernel where `system.slice` has use_hierarchy 0.
    let dir = copy_of("hybrid");
    let slice = dir.path().join("sys/fs/cgroup/memory/system.slice");
    fs_err::write(slice.join("memory.use_hierarchy"), "0\n").unwrap();
    let stat = slice.join("train.service/memory.stat");
    let text = fs_err::read_to_string(&stat).unwrap().replace("limit 5368709120", "limit 8589934592");
    fs_err::write(&stat, text).unwrap();
    // Service alone: 8192 - 1024 + 256 = 7424.
    assert_eq!(headroom(&Root::at(dir.path())).unwrap(), Bytes::mib(7424));
}

#[test]
fn strict_overcommit_binds_where_it_leaves_least() {
    let dir = copy_of("no-swap");
    fs_err::write(dir.path().join("proc/sys/vm/overcommit_memory"), "2\n").unwrap();
    // CommitLimit 2007932 kB is below Committed_AS 3221312 kB: nothing is left.
    let machine = probe(&Root::at(dir.path()), Path::new("/")).unwrap();
    assert_eq!((machine.usable, machine.bound), (Bytes::ZERO, Bound::Commit));
}

#[test]
fn a_machine_without_cgroups_says_so_and_gives_its_ram() {
    let dir = copy_of("no-swap");
    fs_err::remove_file(dir.path().join("proc/self/cgroup")).unwrap();
    let machine = probe(&Root::at(dir.path()), Path::new("/")).unwrap();
    assert_eq!(machine.usable, Bytes::mib(512));
    assert!(machine.to_string().contains("cgroup       none: the kernel has no memory controller"), "{machine}");
}

#[test]
fn a_limit_changed_after_the_search_is_seen() {
    let dir = copy_of("page-cache-full");
    let watch = Headroom::find(&Root::at(dir.path())).unwrap();
    assert_eq!(watch.read().unwrap(), Bytes::mib(1476));
    fs_err::write(dir.path().join("sys/fs/cgroup/memory.high"), "1610612736\n").unwrap();
    // 1536 - 2048 + 1476 = 964
    assert_eq!(watch.read().unwrap(), Bytes::mib(964));
}

#[test]
fn the_memory_of_the_own_process_is_read() {
    let memory = own_memory(&tree("laptop")).unwrap();
    assert_eq!((memory.rss, memory.peak), (Bytes::kib(251904), Bytes::kib(268432)));
    assert_eq!(
        (memory.rss_anon, memory.rss_file, memory.rss_shmem),
        (Bytes::kib(239616), Bytes::kib(12264), Bytes::kib(24))
    );
    assert_eq!((memory.swap, memory.page_tables, memory.threads), (Bytes::ZERO, Bytes::kib(712), 5));
}

#[test]
fn the_words_give_the_answer_first_and_its_arithmetic() {
    let text = look("page-cache-full", "/").to_string();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("disk ")).collect();
    assert_eq!(
        lines,
        [
            "usable now   1.44 GiB, set by cgroup: 2.00 GiB (/sys/fs/cgroup/memory.max) - 2.00 GiB used + 1.44 GiB reclaimable",
            "RAM          6.00 GiB available of 7.67 GiB",
            "swap         384 MiB usable, 2.00 GiB free of 2.00 GiB",
            "cgroup       v2 /: limit 2.00 GiB (/sys/fs/cgroup/memory.max)",
            "  own use    2.00 GiB, of it 1.44 GiB reclaimable",
            "  room       1.44 GiB = 2.00 GiB (/sys/fs/cgroup/memory.max) - 2.00 GiB used + 1.44 GiB reclaimable",
            "  swap       512 MiB allowed",
            "  pressure   some 0.50 % / 0.25 %, full 0.00 % / 0.00 % of the last 10 s / 60 s",
            "pressure     some 0.00 % / 0.00 %, full 0.00 % / 0.00 % of the last 10 s / 60 s",
            "CPU          Intel(R) Xeon(R) CPU E5-2620 0 @ 2.00GHz, neither AVX2 with FMA nor AVX-512",
            "cores        2 usable: 2 allowed of 4",
            "/dev/shm     none: `/dev/shm` is not mounted",
            "GPU          none: a recorded tree has no NVML to ask",
            "memlock      64.0 MiB",
            "kernel       5.15.153.1-microsoft-standard-WSL2 (WSL), overcommit heuristic, huge pages never, page size 4096",
        ]
    );
}

#[test]
fn json_has_plain_bytes_and_a_reason_for_what_is_unseen() {
    let json = serde_json::to_value(look("container-v1", "/data")).unwrap();
    assert_eq!(json["usable"], 2368u64 << 20);
    assert_eq!(json["bound"]["by"], "cgroup");
    assert_eq!(json["cgroup"]["version"], "v1");
    assert_eq!(json["cgroup"]["limit"]["file"], "/sys/fs/cgroup/memory/memory.stat");
    assert_eq!(json["cpu"]["simd"], "avx512");
    assert_eq!(json["gpus"]["unseen"], "a recorded tree has no NVML to ask");
    assert_eq!(json["disk"]["kind"], "network");
}

fn copy_of(name: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        fs_err::create_dir_all(to).unwrap();
        for entry in fs_err::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else {
                fs_err::copy(entry.path(), target).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    copy(&tree(name).join("/"), dir.path());
    dir
}

#[test]
fn a_missing_or_broken_file_is_named_with_place_expected_and_found() {
    let broken = |file: &str, text: Option<&str>| {
        let dir = copy_of("container-v2-nested");
        match text {
            Some(text) => fs_err::write(dir.path().join(file), text).unwrap(),
            None => fs_err::remove_file(dir.path().join(file)).unwrap(),
        }
        let error = probe(&Root::at(dir.path()), Path::new("/")).unwrap_err().to_string();
        error.replace(dir.path().to_str().unwrap(), "")
    };
    let pod = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7c1e.slice";
    assert_eq!(broken("proc/meminfo", None), "`/proc/meminfo` does not exist");
    assert_eq!(broken("proc/self/mountinfo", None), "`/proc/self/mountinfo` does not exist");
    assert_eq!(broken(&format!("{pod}/memory.stat"), None), format!("`/{pod}/memory.stat` does not exist"));
    assert_eq!(
        broken(&format!("{pod}/memory.max"), Some("7G\n")),
        format!("`/{pod}/memory.max` line 1: expected a number of bytes or `max`, found `7G`")
    );
    assert_eq!(
        broken(&format!("{pod}/memory.current"), Some("")),
        format!("`/{pod}/memory.current` line 1: expected a number, found ``")
    );
    assert_eq!(
        broken("proc/self/status", Some("Name:\tx\nCpus_allowed_list:\t0-\n")),
        "`/proc/self/status` line 2: expected a list of CPUs like `0-3,8`, found `\t0-`"
    );
    assert_eq!(broken("proc/self/status", Some("Name:\tx\n")), "`/proc/self/status` has no `Cpus_allowed_list` line");
}
