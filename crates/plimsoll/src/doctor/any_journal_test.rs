//! Whatever a journal holds, there is a story, and no panic.

use plimsoll_machine::Bytes;
use plimsoll_watch::{Event, Seen};
use proptest::prelude::*;

use super::case::Case;
use super::diagnosis::{Diagnosis, Status};
use super::fixture::{START, Story, killed};
use super::journal::records;
use super::story::story;
use super::text::{Colour, text};

/// A long journal with every sort of line, as bytes.
fn whole_journal() -> Vec<u8> {
    let mut journal = Story::begun();
    journal.steps(1, 12, 0.5, 0.2).saved(10, 1.0).incident(12, 10, &killed());
    journal.decided("replan", "smaller", Some(Bytes::mib(700))).worker(2).planned(Bytes::mib(700)).resumed(10);
    journal.steps(11, 14, 0.5, 0.2).sample(Seen { stall_some: Some(50.0), ..Seen::default() });
    journal.event(Event::Skipped { step: 15, what: "gradient".into(), in_a_row: 1 });
    journal.event(Event::Failed { step: 15, message: "No space left on device (os error 28)".into(), place: None });
    journal.event(Event::Stopped { step: 15, reason: "x".into() });
    let lines = journal.records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n");
    lines.collect::<String>().into_bytes()
}

fn tell(bytes: &[u8]) -> Diagnosis {
    let (records, damaged) = records(bytes).unwrap();
    let diagnosis = story(&Case { records, damaged, ..Case::default() });
    let page = text(&diagnosis, Colour::On);
    assert!(!diagnosis.headline.is_empty() && page.lines().count() > 0);
    serde_json::to_string(&diagnosis).unwrap();
    diagnosis
}

#[test]
fn a_journal_cut_at_any_byte_has_a_story() {
    let journal = whole_journal();
    for end in 0..=journal.len() {
        tell(&journal[..end]);
    }
    assert_eq!(tell(&journal).status, Status::Died);
}

proptest! {
    #[test]
    fn a_journal_with_any_bytes_in_it_has_a_story(
        at in 0usize..6000,
        junk in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut journal = whole_journal();
        let at = at.min(journal.len());
        let end = (at + junk.len()).min(journal.len());
        journal.splice(at..end, junk);
        tell(&journal);
    }

    #[test]
    fn times_and_steps_of_any_size_have_a_story(
        steps in proptest::collection::vec(any::<(u64, f64, f64, u64, u64)>(), 0..60),
    ) {
        let mut journal = Story::begun();
        for (step, seconds, data_seconds, tokens, unix_ms) in steps {
            journal.event(Event::Step {
                step, loss: seconds, lr: data_seconds, grad_norm: None, tokens: tokens >> 20, seconds, data_seconds,
                tokens_per_second: 1.0, ram_bytes: Bytes(tokens),
            });
            let last = journal.records.last_mut().unwrap();
            last.unix_ms = unix_ms;
        }
        let mut case = journal.case(&[]);
        case.now.unix_ms = START;
        let diagnosis = story(&case);
        text(&diagnosis, Colour::Off);
    }
}
