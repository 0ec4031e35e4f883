//! The machine that the tests run on: a real cgroup with a real limit, and the processor asked both ways.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use plimsoll_machine::{
    Bytes, CgroupVersion, DiskKind, Headroom, MachineError, Root, SimdLevel, own_memory, probe, process_memory,
};
use serde_json::{Value, json};

const SCRATCH: &str = "PLIMSOLL_TEST_SCRATCH";
const FILE_SIZE: Bytes = Bytes::mib(64);

#[test]
fn the_kernel_and_the_processor_agree_about_vector_instructions_and_cores() {
    let machine = probe(&Root::system(), Path::new(".")).unwrap();
    assert_eq!(machine.cpu.simd, SimdLevel::detected());
    // The standard library rounds a quota down where we round it up.
    let cores = machine.cpu.cores;
    assert!(cores.usable.abs_diff(thread::available_parallelism().unwrap().get()) <= cores.quota.iter().count());
}

#[test]
fn the_figures_of_this_machine_are_consistent() {
    let machine = probe(&Root::system(), Path::new(".")).unwrap();
    assert!(machine.usable > Bytes::ZERO && machine.usable <= machine.ram.available);
    assert!(machine.ram.available <= machine.ram.total && machine.swap.usable <= machine.swap.total);
    assert!(machine.disk.space.total > Bytes::ZERO);
    assert!(machine.kernel.page >= Bytes::kib(4));
    // Printing and serialising hold for whatever this machine has.
    assert!(machine.to_string().starts_with("usable now"));
    assert!(serde_json::to_value(&machine).unwrap()["usable"].is_u64());
}

#[test]
fn a_touched_arena_shows_in_the_own_memory_and_a_child_is_seen_until_it_ends() {
    let root = Root::system();
    let before = own_memory(&root).unwrap();
    let arena = vec![1u8; 64 << 20];
    let after = own_memory(&root).unwrap();
    assert!(std::hint::black_box(&arena).len() == 64 << 20);
    assert!(after.rss_anon >= before.rss_anon + Bytes::mib(48), "{before:?} {after:?}");
    assert!(after.peak >= after.rss_anon && after.page_tables > Bytes::ZERO && after.threads >= 1);

    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    assert_eq!(process_memory(&root, pid).unwrap().threads, 1);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(matches!(process_memory(&root, pid), Err(MachineError::NoProcess { pid: p }) if p == pid));
}

/// Two cgroups, one in the other, removed when dropped.
struct Nested {
    outer: PathBuf,
    inner: PathBuf,
    limit_file: &'static str,
}

impl Nested {
    /// Below the own memory cgroup; the reason where that may not be.
    fn create(outer_limit: Bytes, inner_limit: Bytes) -> Result<Nested, String> {
        let machine = probe(&Root::system(), Path::new(".")).map_err(|e| e.to_string())?;
        let own = machine.cgroup.seen().ok_or("there is no memory cgroup")?;
        let parent = &own.levels.first().ok_or("the own cgroup has no memory files")?.dir;
        let outer = parent.join(format!("plimsoll-machine-test-{}", std::process::id()));
        let limit_file = match own.version {
            CgroupVersion::V1 => "memory.limit_in_bytes",
            CgroupVersion::V2 => "memory.max",
        };
        fs_err::create_dir(&outer).map_err(|e| e.to_string())?;
        let nested = Nested { inner: outer.join("inner"), outer, limit_file };
        if own.version == CgroupVersion::V2 {
            // Only below the own cgroup: a child beside it would be outside of the limits that hold for this process.
            let given = fs_err::read_to_string(nested.outer.join("cgroup.controllers")).map_err(|e| e.to_string())?;
            if !given.split_ascii_whitespace().any(|word| word == "memory") {
                return Err(format!("`{}` does not hand the memory controller down", parent.display()));
            }
            fs_err::write(nested.outer.join("cgroup.subtree_control"), "+memory").map_err(|e| e.to_string())?;
        }
        fs_err::create_dir(&nested.inner).map_err(|e| e.to_string())?;
        for (dir, limit) in [(&nested.outer, outer_limit), (&nested.inner, inner_limit)] {
            if !dir.join(limit_file).exists() {
                return Err(format!("`{}` has no `{limit_file}`", dir.display()));
            }
            fs_err::write(dir.join(limit_file), limit.0.to_string()).map_err(|e| e.to_string())?;
        }
        Ok(nested)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        // The kernel lets go of a cgroup a moment after its last process.
        for dir in [&self.inner, &self.outer] {
            for _ in 0..200 {
                match fs_err::remove_dir(dir) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => thread::sleep(Duration::from_millis(10)),
                    _ => break,
                }
            }
        }
    }
}

#[test]
fn a_process_in_a_real_cgroup_sees_its_limit_its_cache_and_its_shared_memory() {
    let (tight, loose) = (Bytes::mib(320), Bytes::mib(512));
    let cgroup = match Nested::create(tight, loose) {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            println!("skipped: no memory cgroup may be created here: {reason}");
            return;
        }
    };
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The shell moves itself into the cgroup, then becomes this test binary, which runs `inside` alone.
    let script = r#"echo $$ > "$0/cgroup.procs" && exec "$1" --exact inside --ignored --nocapture"#;
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(&cgroup.inner)
        .arg(std::env::current_exe().unwrap())
        .env(SCRATCH, scratch.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("inside: ")).expect(&text).1;
    let seen: Value = serde_json::from_str(line).unwrap();
    let bytes = |key: &str| seen[key].as_u64().unwrap_or_else(|| panic!("{key} in {line}"));

    // The outer limit is the smaller one, and its file is named.
    assert_eq!(bytes("limit"), tight.0, "{line}");
    assert_eq!(seen["file"].as_str().unwrap(), cgroup.outer.join(cgroup.limit_file).to_str().unwrap());
    assert!(bytes("start") <= tight.0 && bytes("start") > tight.0 / 2, "{line}");
    if seen["on_disk"] == json!(true) {
        // 64 MiB of clean page cache are charged to the cgroup and cost no room.
        assert!(bytes("charged_by_file") >= FILE_SIZE.0 - (8 << 20), "{line}");
        assert!(bytes("start").abs_diff(bytes("after_file")) < 16 << 20, "{line}");
    }
    if seen["shm"] == json!(true) {
        // 64 MiB of shared memory cost 64 MiB: once, not twice.
        let cost = bytes("after_file").saturating_sub(bytes("after_shm"));
        assert!(cost.abs_diff(FILE_SIZE.0) < 16 << 20, "{line}");
    }
}

#[test]
#[ignore = "run in a cgroup by another test"]
fn inside() {
    let scratch = PathBuf::from(std::env::var_os(SCRATCH).expect("only of use when another test runs it"));
    let machine = probe(&Root::system(), &scratch).unwrap();
    let own = machine.cgroup.seen().unwrap();
    let limit = own.limit.as_ref().unwrap();
    let watch = Headroom::find(&Root::system()).unwrap();
    let charged = || probe(&Root::system(), &scratch).unwrap().cgroup.seen().unwrap().current;
    let fill = |path: &Path| {
        use std::io::Write;
        let mut file = fs_err::File::create(path).unwrap();
        let block = vec![7u8; 1 << 20];
        (0..FILE_SIZE.0 >> 20).for_each(|_| file.write_all(&block).unwrap());
        file.sync_all().unwrap();
    };

    let (start, charged_before) = (watch.read().unwrap(), charged());
    fill(&scratch.join("cached"));
    let (after_file, charged_after) = (watch.read().unwrap(), charged());
    let shared = PathBuf::from(format!("/dev/shm/plimsoll-machine-test-{}", std::process::id()));
    let shm = machine.shm.seen().is_some_and(|shm| shm.available > FILE_SIZE * 2);
    if shm {
        fill(&shared);
    }
    let after_shm = watch.read().unwrap();
    if shm {
        fs_err::remove_file(&shared).unwrap();
    }
    let seen = json!({
        "limit": limit.bytes, "file": limit.file, "start": start, "after_file": after_file, "after_shm": after_shm,
        "charged_by_file": charged_after.saturating_sub(charged_before),
        "on_disk": machine.disk.kind == DiskKind::Local, "shm": shm,
    });
    println!("inside: {seen}");
}
