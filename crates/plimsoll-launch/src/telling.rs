//! What a trainer's log tells while it is written: progress, completion, whether a checkpoint was taken up.
//!
//! Bytes come in as they are written; lines end at a line feed or, as progress bars have it, at a carriage return. Any
//! bytes are fine, memory is bounded, and nothing is judged beyond the trainer's own patterns.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::Trainer;
use crate::trainer::{Log, Pattern};

/// Lines that are kept for whoever asks why it died.
const KEPT: usize = 400;
/// Bytes of a line that are kept.
const LONGEST: usize = 4096;

/// What has been told so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The last step that was named.
    pub step: Option<u64>,
    /// The first step that was named, beyond 0: a bar is drawn at 0 before a checkpoint is taken up.
    pub first_step: Option<u64>,
    /// Steps to do.
    pub total: Option<u64>,
    /// The last loss.
    pub loss: Option<f64>,
    /// The training says that it is done.
    pub done: bool,
    /// It says that it took up a checkpoint.
    pub restored: bool,
    /// The line by which it says that it did not.
    pub not_restored: Option<String>,
    /// DeepSpeed has spoken.
    pub deepspeed: bool,
    /// The last that was told is of an evaluation.
    pub evaluating: bool,
    /// How many lines there were.
    pub lines: u64,
}

/// A log that is listened to.
#[derive(Debug)]
pub struct Listener {
    logs: Vec<Log>,
    open: Vec<u8>,
    overlong: bool,
    last: VecDeque<String>,
    told: Told,
}

impl Listener {
    /// With the patterns of a command's layers, the nearest to the training first.
    pub fn new<'a>(layers: impl IntoIterator<Item = &'a Trainer>) -> Listener {
        let logs = layers.into_iter().map(|layer| layer.log.clone()).collect();
        Listener { logs, open: Vec::new(), overlong: false, last: VecDeque::new(), told: Told::default() }
    }

    /// Takes what was written.
    pub fn hear(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' | b'\r' => self.close(),
                _ if self.open.len() < LONGEST => self.open.push(byte),
                _ => self.overlong = true,
            }
        }
    }

    /// What was told.
    pub fn told(&self) -> &Told {
        &self.told
    }

    /// The last lines, the open one included.
    pub fn last_lines(&self) -> Vec<String> {
        let open = (!self.open.is_empty()).then(|| plain(&self.open));
        self.last.iter().cloned().chain(open).collect()
    }

    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let line = plain(&self.open);
        self.open.clear();
        self.overlong = false;
        self.understand(&line);
        // A bar that is drawn again and again is one line.
        if self.last.back().is_some_and(|last| is_redrawn(last, &line)) {
            self.last.pop_back();
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn understand(&mut self, line: &str) {
        let told = &mut self.told;
        told.lines += 1;
        let any = |of: fn(&Log) -> &Vec<Pattern>| self.logs.iter().any(|log| of(log).iter().any(|one| one.is_in(line)));
        told.done |= any(|log| &log.done);
        told.restored |= any(|log| &log.restored);
        told.deepspeed |= any(|log| &log.deepspeed);
        if told.not_restored.is_none() && any(|log| &log.not_restored) {
            told.not_restored = Some(line.to_string());
        }
        let losses = self.logs.iter().flat_map(|log| &log.loss);
        told.loss = losses.filter_map(|pattern| pattern.number(line, "loss")).next_back().or(told.loss);
        if any(|log| &log.evaluating) {
            told.evaluating = true;
            return;
        }
        // The nearest layer that knows how progress looks is believed.
        let Some(log) = self.logs.iter().find(|log| !log.progress.is_empty()) else { return };
        for pattern in &log.progress {
            if let Some(step) = pattern.number(line, "step") {
                let total = pattern.number(line, "total").map(|total| total as u64);
                // Steps of the whole training have one total: a bar of another that is drawn before they are done is an
                // evaluation's.
                if log.counts_on
                    && let (Some(done), Some(of), Some(total)) = (told.step, told.total, total)
                    && total != of
                    && done > 0
                    && done < of
                {
                    told.evaluating = true;
                    return;
                }
                told.step = Some(step as u64);
                if step > 0.0 {
                    told.first_step.get_or_insert(step as u64);
                }
                told.total = total.or(told.total);
                told.loss = pattern.number(line, "loss").or(told.loss);
                told.evaluating = false;
                return;
            }
        }
    }
}

/// A line without colours, titles and other commands to a terminal.
pub fn plain(bytes: &[u8]) -> String {
    bare(&String::from_utf8_lossy(bytes)).chars().filter(|letter| *letter == '\t' || !letter.is_control()).collect()
}

/// Commands to a terminal: colours and cursors, titles, single letters.
static COMMAND: LazyLock<Regex> = LazyLock::new(|| {
    let text = r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]";
    Regex::new(text).expect("a pattern that is a constant")
});

/// A text without commands to a terminal.
pub(crate) fn bare(text: &str) -> Cow<'_, str> {
    COMMAND.replace_all(text, "")
}

/// Whether `line` is the bar of `last`, drawn again: both have a bar, and the same words before it.
fn is_redrawn(last: &str, line: &str) -> bool {
    match (last.find("%|"), line.find("%|")) {
        (Some(a), Some(b)) => words(&last[..a]) == words(&line[..b]),
        _ => false,
    }
}

fn words(text: &str) -> &str {
    text.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Shelf;

    fn listen(trainer: &str, text: &str) -> Listener {
        let trainer = Shelf::built_in().unwrap().get(trainer).unwrap();
        let mut listener = Listener::new([&trainer]);
        // In pieces, as a pipe gives them.
        text.as_bytes().chunks(7).for_each(|piece| listener.hear(piece));
        listener
    }

    #[test]
    fn a_bar_of_the_hugging_face_trainer_tells_the_step() {
        let bars = "  0%|          | 0/10 [00:00<?, ?it/s]\r 60%|######    | 6/10 [00:05<00:03,  1.19it/s]\r";
        let loss = "{'loss': '9.033', 'grad_norm': '1.2', 'epoch': '0.5'}\n";
        assert_eq!(listen("hf-trainer", loss).told().loss, Some(9.033));
        assert_eq!(listen("hf-trainer", "{'eval_loss': '1.5'}\n").told().loss, None);
        let heard = listen("hf-trainer", &format!("{bars}{{'train_runtime': '8.1', 'epoch': '1'}}\n"));
        let told = heard.told();
        assert_eq!((told.first_step, told.step, told.total, told.done), (Some(6), Some(6), Some(10), true));
        assert_eq!(heard.last_lines().len(), 2, "{:?}", heard.last_lines());
    }

    #[test]
    fn bars_of_something_else_are_no_steps_of_the_training() {
        let bar = |at, of| format!(" 10%|#         | {at}/{of} [00:05<00:03,  1.19it/s]\r");
        let first = format!("Loading weights: {}Map (num_proc=2): {}", bar(1, 24), bar(90, 200));
        assert_eq!(listen("hf-trainer", &first).told().step, None);
        let evaluated = format!("{first}{}{}{}", bar(0, 40), bar(20, 40), bar(3, 8));
        let told = listen("hf-trainer", &evaluated).told().clone();
        assert_eq!((told.step, told.total, told.first_step, told.evaluating), (Some(20), Some(40), Some(20), true));
        let on = listen("hf-trainer", &format!("{evaluated}[default0]:{}", bar(21, 40))).told().clone();
        assert_eq!((on.step, on.evaluating), (Some(21), false));
    }

    #[test]
    fn lightning_tells_its_end_and_a_stop_does_not() {
        assert!(listen("piper", "`Trainer.fit` stopped: `max_steps=8` reached.\n").told().done);
        assert!(!listen("piper", "[rank: 0] Received SIGTERM: 15\n").told().done);
    }

    #[test]
    fn a_checkpoint_that_was_not_taken_up_is_noticed() {
        let heard = listen("deepspeed", "[WARNING] Unable to find latest file at /x/latest, if trying\n");
        assert!(heard.told().not_restored.is_some() && !heard.told().restored);
    }

    #[test]
    fn plain_scripts_tell_steps_and_losses() {
        let told = listen("generic", "step 3/20 loss 0.5\nstep 4/20 loss 4.5e-1\n").told().clone();
        assert_eq!((told.step, told.total, told.loss, told.first_step), (Some(4), Some(20), Some(0.45), Some(3)));
    }

    #[test]
    fn colours_are_no_text() {
        assert_eq!(plain(b"\x1b[31mred\x1b[0m \x1b]0;a title\x07end\x1b[K\x08\tof it\x1b"), "red end\tof it");
    }

    proptest! {
        #[test]
        fn any_bytes_are_heard_in_bounded_memory(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            let mut listener = Listener::new([&Shelf::built_in().unwrap().get("piper").unwrap()]);
            listener.hear(&bytes);
            prop_assert!(listener.last_lines().iter().all(|line| line.len() <= 3 * LONGEST));
            prop_assert!(listener.last_lines().len() <= KEPT + 1);
        }
    }
}
