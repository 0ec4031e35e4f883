//! A journal on disk that is followed while it grows, is cut, shrinks or is replaced.

use std::io::Write;
use std::path::PathBuf;

use plimsoll_machine::Bytes;
use plimsoll_watch::view::Status;
use plimsoll_watch::{Event, Journal, Record, Tail, View, read};
use proptest::prelude::*;

fn step(step: u64) -> Event {
    Event::Step {
        step,
        loss: 1.0 / step as f64,
        lr: 1e-3,
        grad_norm: None,
        tokens: 10,
        seconds: 0.5,
        data_seconds: 0.0,
        tokens_per_second: 20.0,
        ram_bytes: Bytes::mib(10),
    }
}

struct Folder {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        Folder { path: dir.path().join("journal.jsonl"), _dir: dir }
    }

    fn write(&self, bytes: &[u8]) {
        let mut file = fs_err::OpenOptions::new().append(true).create(true).open(&self.path).unwrap();
        file.write_all(bytes).unwrap();
    }
}

fn line(event: Event) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Record { unix_ms: 1, event }).unwrap();
    line.push(b'\n');
    line
}

#[test]
fn what_is_appended_is_seen_and_a_half_line_waits_until_it_is_whole() {
    let folder = Folder::new();
    let mut tail = Tail::new(&folder.path, Vec::new());
    assert!(!tail.advance().unwrap() && !tail.found());
    let mut journal = Journal::create(&folder.path).unwrap();
    journal.record(&step(1)).unwrap();
    assert!(tail.advance().unwrap() && tail.found());
    assert!(!tail.advance().unwrap(), "nothing was added");
    let second = line(step(2));
    let (begin, end) = second.split_at(40);
    folder.write(begin);
    assert!(!tail.advance().unwrap());
    assert_eq!(tail.view(0, true).step, 1);
    folder.write(end);
    assert!(tail.advance().unwrap());
    let view = tail.view(0, true);
    assert_eq!((view.step, view.counts.unreadable), (2, 0));
}

#[test]
fn a_half_line_that_is_removed_when_the_run_goes_on_leaves_no_trace() {
    let folder = Folder::new();
    Journal::create(&folder.path).unwrap().record(&step(1)).unwrap();
    folder.write(b"{\"unix_ms\":12,\"event\":\"st");
    let mut tail = Tail::new(&folder.path, Vec::new());
    tail.advance().unwrap();
    Journal::append(&folder.path).unwrap().record(&step(2)).unwrap();
    assert!(tail.advance().unwrap());
    let view = tail.view(0, true);
    assert_eq!((view.step, view.losses.len(), view.counts.unreadable), (2, 2, 0));
}

#[test]
fn a_journal_that_shrank_was_replaced_or_went_away_is_read_anew() {
    let folder = Folder::new();
    folder.write(&[line(step(1)), line(step(2)), line(step(3))].concat());
    let mut tail = Tail::new(&folder.path, Vec::new());
    tail.advance().unwrap();
    fs_err::write(&folder.path, line(step(7))).unwrap();
    assert!(tail.advance().unwrap());
    assert_eq!((tail.view(0, true).step, tail.view(0, true).losses.len()), (7, 1));
    let other = folder.path.with_extension("other");
    fs_err::write(&other, [line(step(4)), line(step(5))].concat()).unwrap();
    fs_err::rename(&other, &folder.path).unwrap();
    assert!(tail.advance().unwrap());
    assert_eq!((tail.view(0, true).step, tail.view(0, true).losses.len()), (5, 2));
    fs_err::remove_file(&folder.path).unwrap();
    assert!(tail.advance().unwrap() && !tail.found());
    assert_eq!((tail.view(0, false).step, tail.view(0, false).status), (0, Status::Dead));
}

#[test]
fn lines_that_are_no_records_are_counted_told_and_passed_over() {
    let folder = Folder::new();
    folder.write(
        &[line(step(1)), b"{\"unix_ms\":1,\"event\":\"st{\"unix_ms\n\n\xff\xfe\n".to_vec(), line(step(2))].concat(),
    );
    folder.write(b"{\"unix_ms\":5,\"event\":\"from_the_future\",\"x\":1}\n");
    let mut tail = Tail::new(&folder.path, Vec::new());
    tail.advance().unwrap();
    let view = tail.view(0, true);
    assert_eq!((view.step, view.counts.unreadable, view.last_unix_ms), (2, 3, Some(5)));
    assert!(view.events[0].text.starts_with("line 2 of the journal is no record"), "{:?}", view.events);
}

/// Events of any course of a run, resumes and new starts included.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (1..200u64).prop_map(step),
        1 => (0..100u64).prop_map(|step| Event::Resumed { step, from: "step".into() }),
        1 => (1..100u64, 0.1..9.0).prop_map(|(step, loss)| Event::Eval { step, loss, bleu: None, exact: None, scores: None, seconds: 1.0 }),
        1 => (1..100u64).prop_map(|step| Event::Skipped { step, what: "loss".into(), in_a_row: 1 }),
        1 => (1..100u64).prop_map(|step| Event::Stopped { step, reason: "asked to stop".into() }),
        1 => Just(Event::MirrorTrouble { message: "no answer".into() }),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn followed_in_any_pieces_a_journal_gives_the_view_that_it_gives_as_a_whole(
        events in events(), cuts in prop::collection::vec(0.0..1.0f64, 0..12),
    ) {
        let folder = Folder::new();
        let lines = events.into_iter().enumerate().map(|(at, event)| {
            let record = Record { unix_ms: 1000 + 250 * at as u64, event };
            format!("{}\n", serde_json::to_string(&record).unwrap())
        });
        let text: String = lines.collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * text.len() as f64) as usize).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let mut tail = Tail::new(&folder.path, Vec::new());
        for piece in cuts.windows(2) {
            folder.write(&text.as_bytes()[piece[0]..piece[1]]);
            tail.advance().unwrap();
        }
        let whole = View::of(&read(&folder.path).unwrap().records, &[], 99_000, true);
        prop_assert_eq!(tail.view(99_000, true), whole);
    }
}
