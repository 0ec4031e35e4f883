//! Claims about what is shown and when; the live line is tested on a real terminal in `tests/terminal.rs`.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn view(step: u64) -> StepView {
    let (ram_used, ram_planned) = (Bytes::mib(212), Bytes::mib(240));
    StepView { step, loss: 1.2344, tokens_per_second: 8123.0, unit: "tok", ram_used, ram_planned }
}

fn at(step: u64, ms: u64) -> Shown {
    Shown { step, at: Duration::from_millis(ms) }
}

fn lines_of(total: u64, steps: impl Iterator<Item = (u64, u64)>) -> Vec<String> {
    let page = Page::default();
    let mut progress = Progress::new(total, Target::Plain(Box::new(page.clone())));
    for (step, ms) in steps {
        progress.step_at(&view(step), Duration::from_millis(ms));
    }
    progress.finish();
    let text = page.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap().lines().map(str::to_string).collect()
}

#[test]
fn a_line_says_step_loss_rate_memory_and_time_left() {
    let lines = lines_of(400, [(20, 0), (120, 30_000)].into_iter());
    assert_eq!(lines[0], "step 20/400  loss 1.234  8.1k tok/s  RAM 212 of 240 MiB");
    assert_eq!(lines[1], "step 120/400  loss 1.234  8.1k tok/s  RAM 212 of 240 MiB  ETA 1:24");
}

#[test]
fn a_fast_run_gets_a_line_a_tenth_and_a_slow_one_a_line_every_ten_seconds() {
    assert_eq!(lines_of(1000, (1..=1000).map(|step| (step, step))).len(), 11);
    assert_eq!(lines_of(100_000, (1..=100).map(|step| (step, step * 1000))).len(), 10 + 1);
}

#[test]
fn the_last_step_is_shown_even_if_the_run_stops_early() {
    let lines = lines_of(1000, (1..=7).map(|step| (step, step)));
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("step 7/1000 "), "{}", lines[1]);
}

#[test]
fn notes_are_lines_and_a_closed_pipe_is_no_error() {
    let page = Page::default();
    let mut progress = Progress::new(10, Target::Plain(Box::new(page.clone())));
    progress.note("saved step-5");
    assert_eq!(*page.0.lock().unwrap(), b"saved step-5\n");

    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut progress = Progress::new(10, Target::Plain(Box::new(Closed)));
    progress.note("nobody reads this");
    progress.step(&view(1));
    progress.finish();
    assert_eq!(progress.shown.map(|shown| shown.step), Some(1));
}

#[test]
fn a_live_line_is_redrawn_ten_times_a_second_and_at_the_end() {
    assert!(due(at(1, 0), None, 100, Rhythm::Live));
    assert!(!due(at(2, 99), Some(at(1, 0)), 100, Rhythm::Live));
    assert!(due(at(2, 100), Some(at(1, 0)), 100, Rhythm::Live));
    assert!(due(at(100, 1), Some(at(99, 0)), 100, Rhythm::Live));
    assert!(!due(at(100, 1), Some(at(100, 0)), 100, Rhythm::Live));
}

#[test]
fn numbers_are_short_and_in_the_plans_unit() {
    let say = |loss, tokens_per_second, used, planned, left| {
        let mut text = String::new();
        let view = StepView { step: 1, loss, tokens_per_second, unit: "tok", ram_used: used, ram_planned: planned };
        words::write_status(&mut text, &view, left);
        text
    };
    let hours = Some(Duration::from_secs(3723));
    assert_eq!(
        say(0.00042, 999.6, Bytes::mib(512), Bytes::gib(2), hours),
        "loss 4.2e-4  1.0k tok/s  RAM 0.50 of 2.00 GiB  ETA 1:02:03"
    );
    assert_eq!(say(f64::NAN, 12.0, Bytes::mib(99), Bytes::ZERO, None), "loss NaN  12 tok/s  RAM 99.0 MiB");
    assert_eq!(say(0.0, 123_456.0, Bytes::ZERO, Bytes::mib(1), None), "loss 0.000  123k tok/s  RAM 0 of 1 MiB");
    assert_eq!(say(10.0, 2e6, Bytes::ZERO, Bytes::mib(1), None), "loss 10.000  2.0M tok/s  RAM 0 of 1 MiB");
}

proptest! {
    #[test]
    fn no_numbers_panic(step: u64, first: u64, total: u64, ms in 0u64..u64::MAX / 2, loss: f64, rate: f64, used: u64, planned: u64) {
        let now = at(step, ms);
        let left = remaining(Some(at(first, ms / 3)), now, total);
        let mut text = String::new();
        let view = StepView { step, loss, tokens_per_second: rate, unit: "tok", ram_used: Bytes(used), ram_planned: Bytes(planned) };
        words::write_status(&mut text, &view, left);
        for rhythm in [Rhythm::Live, Rhythm::Lines] {
            let _ = due(now, Some(at(first, ms / 2)), total, rhythm);
        }
        prop_assert!(text.starts_with("loss "));
    }
}
