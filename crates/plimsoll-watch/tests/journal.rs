//! Claims about the journal as a file.

use std::path::{Path, PathBuf};

use fs_err as fs;
use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Journal, Record, SaveReason, WatchError, losses, read};
use proptest::prelude::*;

fn step(step: u64, loss: f64) -> Event {
    Event::Step {
        step,
        loss,
        lr: 1e-3,
        grad_norm: Some(0.5),
        tokens: 2048,
        data_seconds: 0.25,
        seconds: 0.25,
        tokens_per_second: 8192.0,
        ram_bytes: Bytes::mib(212),
    }
}

fn every_kind() -> Vec<Event> {
    vec![
        Event::RunStarted {
            version: "0.1.0".into(),
            plan: "a1b2".into(),
            total_steps: 400,
            effective_batch: 64,
            threads: 2,
            simd: "avx512".into(),
            planned_ram_bytes: Bytes::mib(240),
            planned_vram_bytes: Bytes::ZERO,
            facts: serde_json::json!({"seed": 1}),
        },
        step(1, 4.0),
        Event::Eval { step: 1, loss: 3.5, bleu: Some(12.5), exact: None, scores: None, seconds: 1.0 },
        Event::Saved {
            step: 1,
            path: "checkpoints/step-1".into(),
            bytes: Bytes::mib(9),
            seconds: 0.1,
            waited_seconds: 0.05,
            reason: SaveReason::BeforeEval,
        },
        Event::Resumed { step: 1, from: "checkpoints/step-1".into() },
        Event::Warning { step: 1, message: "swap in use".into() },
        Event::Stopped { step: 1, reason: "signal".into() },
        Event::Finished {
            steps: 400,
            final_loss: f64::NAN,
            seconds: 100.0,
            peak_ram_bytes: Bytes::mib(230),
            early: Some("enough".into()),
        },
    ]
}

fn written(path: &Path, events: &[Event]) {
    let mut journal = Journal::append(path).unwrap();
    events.iter().for_each(|event| journal.record(event).unwrap());
    journal.sync().unwrap();
}

fn events(path: &Path) -> Vec<Event> {
    read(path).unwrap().records.into_iter().map(|record: Record| record.event).collect()
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.jsonl");
    (dir, path)
}

#[test]
fn every_kind_of_event_is_one_line_and_is_read_back() {
    let (_dir, path) = place();
    written(&path, &every_kind());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), every_kind().len());
    assert!(text.lines().nth(1).unwrap().contains("\"event\":\"step\",\"step\":1,\"loss\":4.0"), "{text}");
    // NaN is unlike itself, so the comparison is on the text.
    assert_eq!(format!("{:?}", events(&path)), format!("{:?}", every_kind()));
    assert!(read(&path).unwrap().records[0].unix_ms > 1_700_000_000_000);
}

#[test]
fn a_new_journal_never_overwrites_one() {
    let (_dir, path) = place();
    Journal::create(&path).unwrap().record(&step(1, 1.0)).unwrap();
    assert!(matches!(Journal::create(&path), Err(WatchError::File(_))));
    assert_eq!(events(&path).len(), 1);
}

#[test]
fn a_cut_at_any_byte_costs_only_the_last_record_and_the_journal_goes_on() {
    let (_dir, path) = place();
    written(&path, &[step(1, 1.0), step(2, 2.0)]);
    let whole = fs::read(&path).unwrap();
    let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    for length in first..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let reading = read(&path).unwrap();
        assert_eq!(reading.records.len(), 1);
        let cut = reading.cut.map(|cut| (cut.line, cut.bytes.0 as usize));
        assert_eq!(cut, (length > first).then_some((2, length - first)));
        written(&path, &[step(2, 5.0)]);
        assert_eq!(events(&path), [step(1, 1.0), step(2, 5.0)]);
    }
}

#[test]
fn a_cut_line_longer_than_a_block_is_removed_whole() {
    let (_dir, path) = place();
    written(&path, &[step(1, 1.0)]);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend(vec![0; 10_000]);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read(&path).unwrap().cut.unwrap().bytes, Bytes(10_000));
    written(&path, &[step(2, 2.0)]);
    assert_eq!(events(&path).len(), 2);
    fs::write(&path, vec![b'x'; 9_000]).unwrap();
    written(&path, &[step(3, 3.0)]);
    assert_eq!(events(&path), [step(3, 3.0)]);
}

#[test]
fn a_broken_line_is_named() {
    let (_dir, path) = place();
    written(&path, &[step(1, 1.0)]);
    let good = fs::read_to_string(&path).unwrap();
    for (line, word) in
        [("not json", "not json"), ("{\"unix_ms\":1,\"event\":\"step\"}", "missing field"), ("\u{0}", "")]
    {
        fs::write(&path, format!("{good}{line}\n{good}")).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(&error, WatchError::NotARecord { line: 2, .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn an_event_of_a_later_version_does_not_hide_the_others() {
    let (_dir, path) = place();
    written(&path, &[step(1, 1.0)]);
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{{\"unix_ms\":5,\"event\":\"dreamt\",\"cause\":[1]}}\n{good}")).unwrap();
    assert_eq!(events(&path), [Event::Unknown, step(1, 1.0)]);
}

#[test]
fn losses_are_those_of_the_run_as_it_stands() {
    let (_dir, path) = place();
    let resumed = |step| Event::Resumed { step, from: format!("checkpoints/step-{step}").into() };
    written(&path, &[step(1, 9.0), step(2, 8.0), step(3, 7.0), step(4, 6.0), resumed(2), step(3, 7.5)]);
    assert_eq!(losses(&path).unwrap(), [(1, 9.0), (2, 8.0), (3, 7.5)]);
    written(&path, &every_kind()[..2]);
    assert_eq!(losses(&path).unwrap(), [(1, 4.0)]);
}

#[test]
fn two_writers_do_not_mix_their_lines() {
    let (_dir, path) = place();
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let path = &path;
            scope.spawn(move || {
                let mut journal = Journal::append(path).unwrap();
                (0..200).for_each(|at| journal.record(&step(writer * 1000 + at, 1.0)).unwrap());
            });
        }
    });
    assert_eq!(losses(&path).unwrap().len(), 800);
}

proptest! {
    #[test]
    fn a_loss_comes_back_bit_by_bit(bits: u32) {
        let (_dir, path) = place();
        let loss = f64::from(f32::from_bits(bits));
        written(&path, &[step(1, loss)]);
        let back = losses(&path).unwrap()[0].1;
        prop_assert!(back.to_bits() == loss.to_bits() || (back.is_nan() && loss.is_nan()), "{} {}", back, loss);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_dir, path) = place();
        fs::write(&path, &bytes).unwrap();
        let _ = read(&path);
        let _ = losses(&path);
        drop(Journal::append(&path).unwrap());
        prop_assert!(fs::read(&path).unwrap().last().is_none_or(|&byte| byte == b'\n'));
    }
}
