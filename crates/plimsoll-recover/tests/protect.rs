//! What protecting oneself does to a real process: it runs in a process of its own, which stays locked to its end.

use std::process::{Command, Stdio};

use plimsoll_machine::{Bytes, Root, own_memory};
use plimsoll_recover::protect::{OOM_SCORE, protect_self};

const CHILD: &str = "PLIMSOLL_TEST_PROTECT";

fn locked() -> Bytes {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    Bytes::kib(line.trim().trim_end_matches("kB").trim().parse().unwrap())
}

#[test]
#[ignore = "the process that protects itself"]
fn protected_process() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let root = Root::system();
    let before = own_memory(&root).unwrap().rss;
    let protection = protect_self();
    let score: i32 = fs_err::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    match &protection.score {
        Ok(now) => assert_eq!((*now, score), (OOM_SCORE, OOM_SCORE)),
        Err(_) => assert_eq!(score, protection.score_before),
    }
    // Locked as soon as they are there; in RAM when they are touched.
    let reserved = Vec::<u8>::with_capacity(64 << 20);
    let after = own_memory(&root).unwrap().rss;
    assert!(after < before + Bytes::mib(2), "{before} before, {after} after");
    let all = locked();
    match &protection.locked {
        Ok(how) => {
            assert!(all > Bytes::ZERO);
            println!("locked: {how:?}, {all} of address space");
        }
        Err(why) => {
            assert_eq!(all, Bytes::ZERO);
            println!("not locked: {why}");
        }
    }
    println!(
        "score: {:?}; {before} resident before, {after} after, {} reserved",
        protection.score,
        reserved.capacity()
    );
    println!("protected");
}

#[test]
fn protection_locks_only_what_is_touched_and_says_what_was_refused() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "protected_process", "--nocapture", "--test-threads=1"]);
    let output = child.env(CHILD, "1").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success() && said.contains("protected\n"), "{}", String::from_utf8_lossy(&output.stderr));
}
