//! Claims about whole checkpoints on a real file system.

use std::io::{self, Read, Write};
use std::path::Path;

use fs_err as fs;
use plimsoll_machine::Bytes;
use plimsoll_recover::RecoverError;
use plimsoll_recover::checkpoint::{BUFFER, State, Writer, clean_leftovers, latest_complete, list, retain, verify};
use serde_json::json;

/// No process has this pid: it is above the kernel's largest.
const DEAD: u32 = 4_194_305;

fn save(dir: &Path, step: u64) {
    let mut writer = Writer::begin(dir, step).unwrap();
    writer.file("weights.safetensors", |sink| sink.write_all(format!("weights of {step}").as_bytes())).unwrap();
    writer.file("optimizer.bin", |sink| sink.write_all(&step.to_le_bytes())).unwrap();
    assert_eq!(writer.finish(json!({"cursor": step * 3})).unwrap(), dir.join(format!("step-{step}")));
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn latest_step(dir: &Path) -> Option<u64> {
    latest_complete(dir).unwrap().manifest.map(|manifest| manifest.step)
}

#[test]
fn what_is_saved_is_read_back() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run/checkpoints");
    save(&dir, 12);
    let manifest = latest_complete(&dir).unwrap().manifest.unwrap();
    assert_eq!((manifest.step, &manifest.facts["cursor"]), (12, &json!(36)));
    assert_eq!(manifest.bytes(), Bytes("weights of 12".len() as u64 + 8));
    let mut text = String::new();
    manifest.open_file("weights.safetensors").unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "weights of 12");
    assert!(matches!(manifest.open_file("other"), Err(RecoverError::FileUnlisted { .. })));
    assert_eq!(names(&dir), ["step-12"]);
}

#[test]
fn a_file_larger_than_every_buffer_arrives_whole_however_it_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..(21 << 20) + 7).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let room = BUFFER.0 as usize;
    for (step, cut) in [(1, content.len()), (2, room), (3, room - 1), (4, room + 1), (5, 70_001)] {
        let mut writer = Writer::begin(dir.path(), step).unwrap();
        let write = |sink: &mut dyn Write| content.chunks(cut).try_for_each(|piece| sink.write_all(piece));
        assert_eq!(writer.file("weights", write).unwrap(), Bytes(content.len() as u64));
        let path = writer.finish(json!(null)).unwrap();
        assert_eq!(verify(&path).unwrap().files["weights"].crc32, crc32fast::hash(&content));
        assert!(fs::read(path.join("weights")).unwrap() == content, "cut at {cut}");
    }
}

#[test]
fn an_unfinished_writer_leaves_nothing_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1);
    let mut writer = Writer::begin(dir.path(), 1).unwrap();
    writer.file("weights.safetensors", |sink| sink.write_all(b"half")).unwrap();
    assert_eq!(names(dir.path()).len(), 2);
    drop(writer);
    assert_eq!(names(dir.path()), ["step-1"]);
    assert_eq!(latest_step(dir.path()), Some(1));
}

#[test]
fn a_writer_that_stops_at_any_byte_costs_no_older_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1);
    for stop in 0..40 {
        let mut writer = Writer::begin(dir.path(), 1).unwrap();
        let failed = writer.file("weights.safetensors", |sink| {
            sink.write_all(&[7; 40][..stop])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(matches!(failed, Err(RecoverError::NotWritten { .. })));
        drop(writer);
        assert_eq!(latest_step(dir.path()), Some(1));
    }
    assert_eq!(names(dir.path()), ["step-1"]);
}

#[test]
fn a_full_disk_is_an_error_even_if_the_producer_ignores_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::begin(dir.path(), 1).unwrap();
    let device = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path().join("weights");
    std::os::unix::fs::symlink("/dev/full", device).unwrap();
    let big = vec![1; BUFFER.0 as usize];
    let failed = writer.file("weights", |sink| {
        let _ = sink.write_all(&big);
        Ok(())
    });
    assert!(matches!(failed, Err(RecoverError::NotWritten { .. })), "{failed:?}");
}

#[test]
fn saving_a_step_again_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    let mut writer = Writer::begin(dir.path(), 5).unwrap();
    writer.file("weights.safetensors", |sink| sink.write_all(b"better")).unwrap();
    writer.finish(json!({})).unwrap();
    assert_eq!(names(dir.path()), ["step-5"]);
    assert_eq!(fs::read(dir.path().join("step-5/weights.safetensors")).unwrap(), b"better");
    assert_eq!(verify(&dir.path().join("step-5")).unwrap().files.len(), 1);
}

#[test]
fn names_that_lead_elsewhere_and_names_given_twice_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::begin(dir.path(), 1).unwrap();
    for name in ["../out", "a/b", "", ".hidden", "manifest.json"] {
        assert!(matches!(writer.file(name, |_| Ok(())), Err(RecoverError::FileName { .. })), "{name}");
    }
    writer.file("a", |_| Ok(())).unwrap();
    assert!(matches!(writer.file("a", |_| Ok(())), Err(RecoverError::FileTwice { .. })));
}

#[test]
fn each_kind_of_damage_is_named_and_the_next_older_one_is_taken() {
    type Damage = fn(&Path);
    let kinds: [(&str, Damage); 6] = [
        ("is not there; a checkpoint without it", |at| fs::remove_file(at.join("manifest.json")).unwrap()),
        ("is not there; the manifest lists it with 8 bytes", |at| fs::remove_file(at.join("optimizer.bin")).unwrap()),
        ("expected 8 bytes, found 3", |at| fs::write(at.join("optimizer.bin"), b"abc").unwrap()),
        ("optimizer.bin`: expected checksum", |at| fs::write(at.join("optimizer.bin"), b"12345678").unwrap()),
        ("manifest.json` line 1: expected", |at| fs::write(at.join("manifest.json"), b"{}").unwrap()),
        ("the folder's name says step 9", |at| {
            fs::copy(at.with_file_name("step-8/manifest.json"), at.join("manifest.json")).unwrap();
        }),
    ];
    for (message, damage) in kinds {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 8);
        save(dir.path(), 9);
        damage(&dir.path().join("step-9"));
        let latest = latest_complete(dir.path()).unwrap();
        assert_eq!(latest.manifest.unwrap().step, 8, "{message}");
        assert_eq!(latest.skipped.len(), 1);
        assert_eq!((latest.skipped[0].step, latest.skipped[0].path.clone()), (9, dir.path().join("step-9")));
        let said = latest.skipped[0].reason.to_string();
        assert!(said.contains(message), "{said}");
        assert!(said.contains("step-9"), "{said}");
    }
}

#[test]
fn the_list_is_by_step_and_says_what_is_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    for step in [100, 20, 3] {
        save(dir.path(), step);
    }
    fs::write(dir.path().join("step-20/optimizer.bin"), b"cut").unwrap();
    fs::write(dir.path().join("notes.txt"), b"not ours").unwrap();
    let found = list(dir.path()).unwrap();
    assert_eq!(found.iter().map(|one| one.step).collect::<Vec<_>>(), [3, 20, 100]);
    assert_eq!((&found[0].state, &found[2].state), (&State::Complete, &State::Complete));
    assert!(matches!(&found[1].state, State::Incomplete(reason) if reason.contains("expected 8 bytes, found 3")));
    assert!(list(&dir.path().join("nowhere")).unwrap().is_empty());
    assert_eq!(latest_step(&dir.path().join("nowhere")), None);
}

#[test]
fn retention_deletes_the_old_and_keeps_the_protected() {
    let dir = tempfile::tempdir().unwrap();
    (1..=6).for_each(|step| save(dir.path(), step));
    assert_eq!(retain(dir.path(), 2, &[3]).unwrap(), [1, 2, 4]);
    assert_eq!(names(dir.path()), ["step-3", "step-5", "step-6"]);
    assert_eq!(retain(dir.path(), 0, &[]).unwrap(), [3, 5]);
    assert_eq!(names(dir.path()), ["step-6"]);
}

#[test]
fn leftovers_of_the_dead_and_of_our_own_pid_go_and_those_of_the_living_stay() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1);
    let (ours, parent) = (std::process::id(), std::os::unix::process::parent_id());
    for name in [
        format!(".tmp-step-2-{DEAD}"),
        format!(".old-step-0-{DEAD}"),
        format!(".tmp-step-3-{ours}"),
        format!(".tmp-step-4-{parent}"),
        ".somebody-else".to_string(),
    ] {
        fs::create_dir(dir.path().join(&name)).unwrap();
        fs::write(dir.path().join(&name).join("weights"), b"half").unwrap();
    }
    assert_eq!(clean_leftovers(dir.path()).unwrap().len(), 3);
    assert_eq!(
        names(dir.path()),
        [".somebody-else".to_string(), format!(".tmp-step-4-{parent}"), "step-1".to_string()]
    );
}

#[test]
fn a_zombies_leftovers_go_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    fs::create_dir(dir.path().join(format!(".tmp-step-2-{}", child.id()))).unwrap();
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
    clean_leftovers(dir.path()).unwrap();
    assert!(names(dir.path()).is_empty());
    child.wait().unwrap();
}

#[test]
fn a_checkpoint_that_stood_aside_when_the_kill_came_is_found_and_gets_its_name_back() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 7);
    fs::rename(dir.path().join("step-7"), dir.path().join(format!(".aside-step-7-{DEAD}"))).unwrap();
    assert_eq!(latest_step(dir.path()), Some(7));
    clean_leftovers(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["step-7"]);
    assert_eq!(latest_step(dir.path()), Some(7));
}
