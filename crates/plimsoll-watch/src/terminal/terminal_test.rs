//! What stands on the screen, at several sizes, for runs that live and runs that are dead.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_machine::Bytes;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::Value;

use super::keys::Key;
use super::*;
use crate::{Event, Moment, Record, SaveReason, Seen};

const START: u64 = 1_700_000_000_000;

fn records() -> Vec<Record> {
    let parts = |factor: f64| -> BTreeMap<String, Bytes> {
        let mib =
            [("weights", 90.0), ("optimizer state", 60.0), ("activations", 50.0), ("loader", 12.0), ("program", 20.0)];
        mib.iter().map(|&(name, mib)| (name.to_string(), Bytes((mib * factor * 1048576.0) as u64))).collect()
    };
    let mut events = vec![
        Event::Planned {
            ram_bytes: Bytes::mib(232),
            budget_bytes: Bytes::mib(256),
            smallest_bytes: Bytes::mib(150),
            micro_batch: 4,
            accumulation: 4,
            recompute: 0,
            snapshot: false,
            parts: parts(1.0),
        },
        Event::RunStarted {
            version: "0.1.0".into(),
            plan: "plan.json".into(),
            total_steps: 400,
            effective_batch: 16,
            threads: 2,
            simd: "avx512".into(),
            planned_ram_bytes: Bytes::mib(232),
            planned_vram_bytes: Bytes::ZERO,
            facts: Value::Null,
        },
    ];
    for step in 1..=120u64 {
        events.push(Event::Step {
            step,
            loss: 1.0 + 8.0 / (step as f64).sqrt() + 0.2 * (step as f64 * 1.7).sin(),
            lr: 1e-3,
            grad_norm: Some(0.5),
            tokens: 4000,
            seconds: 0.8,
            data_seconds: 0.1,
            tokens_per_second: 5000.0,
            ram_bytes: Bytes::mib(200 + step % 20),
        });
        if step % 30 == 0 {
            let loss = 1.2 + 8.0 / (step as f64).sqrt();
            events.push(Event::Eval { step, loss, bleu: Some(21.5), exact: None, scores: None, seconds: 1.0 });
            let (path, reason) = (PathBuf::from(format!("run/checkpoints/step-{step}")), SaveReason::Steps);
            events.push(Event::Saved { step, path, bytes: Bytes::mib(240), seconds: 0.5, waited_seconds: 0.5, reason });
        }
    }
    let seen = Seen {
        headroom_bytes: Some(Bytes::gib(3)),
        swap_bytes: Some(Bytes::ZERO),
        stall_some: Some(0.5),
        parts: parts(0.97),
        ..Seen::default()
    };
    events.push(Event::Sample { at: Moment::Steps, step: 120, ram_bytes: Bytes::mib(215), seen });
    dated(events)
}

fn dated(events: Vec<Event>) -> Vec<Record> {
    (START..).step_by(1000).zip(events).map(|(unix_ms, event)| Record { unix_ms, event }).collect()
}

fn view(records: &[Record], alive: bool) -> View {
    View::of(records, &[], records.last().unwrap().unix_ms + 2000, alive)
}

fn dead() -> View {
    let mut records = records();
    let unix_ms = records.last().unwrap().unix_ms + 500;
    let event = Event::Incident {
        step: 120,
        saved_step: 120,
        kind: "kernel_oom_in_our_cgroup".into(),
        told: "the kernel killed it: its cgroup was out of memory".into(),
        confidence: "proven".into(),
        because: vec![],
        evidence: Value::Null,
    };
    records.push(Record { unix_ms, event });
    view(&records, false)
}

fn screen(view: &View, width: u16, height: u16, paint: Paint, mood: &mut Mood) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let scene = Scene { name: "chat-1", view, paint, keys: true };
    terminal.draw(|frame| draw(frame.buffer_mut(), &scene, mood)).unwrap();
    terminal.backend().buffer().clone()
}

fn plain(view: &View, width: u16, height: u16) -> Vec<String> {
    lines(&screen(view, width, height, Paint::plain(), &mut Mood::default()))
}

#[test]
fn a_running_run_has_everything_at_60_by_20() {
    let lines = plain(&view(&records(), true), 60, 20);
    let text = lines.join("\n");
    assert_eq!(lines[0], "chat-1  running for 2:11  loss 1.771  eval 1.930  5.0k tok/s");
    assert!(lines[1].starts_with("step 120 of 400  █████") && lines[1].ends_with("░  30.0 %  ETA 4:53"), "{text}");
    assert_eq!(lines[2], "micro-batch 4 x 4  headroom 3.00 GiB  stall 0.5 %");
    for wanted in [
        "⠒ loss  o evaluation",
        "⠒ RAM 215 MiB  ─ plan 232 MiB",
        "plan by part",
        "weights          90.0    87.3",
        "2 others",
        "time  2:11 ",
        "compute",
        "data wait",
        "events  4 saved",
        "step 120: saved step-120: 240 MiB in 0.5 s",
    ] {
        assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
    }
    assert!(lines.len() == 20 && lines.iter().all(|line| line.chars().count() <= 60), "{text}");
}

#[test]
fn a_dead_run_says_that_it_is_and_why() {
    let view = dead();
    for (width, height) in [(60, 20), (100, 30), (40, 10), (200, 60)] {
        let lines = plain(&view, width, height);
        let text = lines.join("\n");
        assert!(lines[0].starts_with("chat-1  dead for 2 s"), "{text}");
        assert!(lines[2].starts_with("the kernel killed it: its cgroup was out"), "{text}");
        assert!(text.contains("✗ step 120: worker died: the"), "{text}");
        assert!(!text.contains("ETA"), "{text}");
    }
}

#[test]
fn both_curves_and_the_lines_of_plan_and_budget_are_drawn() {
    let lines = plain(&view(&records(), true), 120, 40);
    let charts = lines[4..22].join("\n");
    let dots = charts.chars().filter(|letter| ('\u{2801}'..='\u{28ff}').contains(letter)).count();
    assert!(dots > 60, "{charts}");
    for (mark, least) in [('o', 4), ('─', 30), ('═', 30)] {
        assert!(charts.matches(mark).count() >= least, "{mark} in\n{charts}");
    }
}

#[test]
fn no_size_is_too_small_to_be_drawn() {
    let (running, dead) = (view(&records(), true), dead());
    let empty = View::of(&[], &[], START, true);
    for width in (1..70).step_by(3) {
        for height in 1..30 {
            for view in [&running, &dead, &empty] {
                let mut mood = Mood { keys_shown: width % 2 == 0, ..Mood::default() };
                screen(view, width, height, Paint::plain(), &mut mood);
            }
        }
    }
}

#[test]
fn without_colour_there_is_none_and_with_it_text_stays_in_the_terminals_own() {
    let colours = |paint| {
        let buffer = screen(&dead(), 100, 30, paint, &mut Mood::default());
        assert!(buffer.content.iter().all(|cell| cell.bg == Color::Reset), "a background fits one kind of terminal");
        buffer.content.iter().map(|cell| cell.fg).filter(|&fg| fg != Color::Reset).collect::<Vec<_>>()
    };
    assert_eq!(colours(Paint::plain()), []);
    let used = colours(Paint::in_full());
    let unreadable = [Color::White, Color::Black, Color::Yellow, Color::Gray, Color::DarkGray];
    assert!(!used.is_empty() && !used.iter().any(|colour| unreadable.contains(colour)), "{used:?}");
}

#[test]
fn events_are_scrolled_back_no_further_than_they_go_and_the_keys_are_shown_over_everything() {
    let view = view(&records(), true);
    let mut mood = Mood::default();
    let mut shown = |keys: &[Key]| {
        keys.iter().for_each(|&key| assert_eq!(mood.press(key), Step::Stay));
        lines(&screen(&view, 80, 24, Paint::plain(), &mut mood)).join("\n")
    };
    assert!(shown(&[]).contains("step 120: saved"));
    assert!(!shown(&[Key::PageUp]).contains("step 120: saved"));
    let oldest = shown(&[Key::Home, Key::Up, Key::Up]);
    assert!(oldest.contains("plan: 232 MiB of 256 MiB") && oldest.contains("lines below"), "{oldest}");
    assert!(shown(&[Key::End]).contains("step 120: saved"));
    let keys = shown(&[Key::Help]);
    assert!(keys.contains("q, Esc, Ctrl-C") && keys.contains("the run goes on"), "{keys}");
}

#[test]
fn the_text_form_has_every_part_and_event_and_no_escape() {
    let text = text("chat-1", &view(&records(), true));
    for wanted in
        ["chat-1  running", "step 120 of 400", "loader", "program", "run began: 400 steps", "step-30", "step-120"]
    {
        assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100) && !text.contains('\x1b'), "{text}");
}
