//! The end of a run that did all its steps, or ended early: the last checkpoint, the model, the summary, and what to do next.

use std::path::Path;

use plimsoll_data::Kind;
use plimsoll_machine::Bytes;
use plimsoll_recover::{atomic_write, shell_word};
use plimsoll_watch::{Event, SaveReason, Summary};
use serde_json::json;

use super::early_stop::Plateau;
use super::model::save_final;
use super::run::Run;
use crate::heap::{self, Role};
use crate::prepare::{RunData, Texts};
use crate::render::{self, Fail};

/// Characters of the example prompt.
const EXAMPLE: usize = 120;

impl Run<'_> {
    /// Ends the run.
    pub(super) fn finish(mut self) -> Result<(), Fail> {
        let model = self.folder.join("model");
        self.between_phases();
        let ended = self
            .with_patience(|run| run.save_unless_saved(SaveReason::End))
            .and_then(|()| self.with_patience(|run| save_final(run, &model)));
        if let Err(fail) = ended {
            return Err(self.noted(fail));
        }
        // Reads a block of the data: before the last look, so that the summary's peak covers it.
        let try_it = self.prepared.data.try_it(self.folder);
        self.look();
        let early = self.ends_early();
        let summary = self.summary();
        let text = summary.to_json();
        if let Err(fail) =
            self.with_patience(|run| Ok(atomic_write(&run.folder.join("summary.json"), text.as_bytes())?))
        {
            return Err(self.noted(fail));
        }
        self.note(&Event::Finished {
            steps: self.step,
            final_loss: self.tally.last_loss,
            seconds: self.tally.wall_seconds,
            peak_ram_bytes: summary.peak_ram_bytes,
            early: early.map(|plateau| plateau.to_string()),
        });
        let _ = self.journal.sync();
        let plan = &self.prepared.plan;
        if self.tally.truncated > 0 {
            render::talk(format!("{} samples were longer than planned and were cut", self.tally.truncated));
        }
        if self.tally.dropped > 0 {
            render::talk(format!("{} rows were longer than planned and were left out", self.tally.dropped));
        }
        // Of series whole windows are told, not their rows.
        let (rate, each) = match &self.prepared.data {
            RunData::Texts(_) => ("tokens", 1),
            RunData::Series(windows) => ("windows", windows.series.spec().window),
        };
        render::talk(format!(
            "done: {} steps in {:.1} s, {:.0} {rate}/s, loss {:.4}",
            self.step,
            self.tally.wall_seconds,
            summary.tokens_per_second / each as f64,
            self.tally.last_loss
        ));
        if let Some(plateau) = early {
            render::talk(format!("ended early, after step {} of {}: {plateau}", self.step, self.prepared.steps));
            let best = plateau.best.map(|(step, _)| self.folder.join(format!("checkpoints/step-{step}")));
            if let Some(best) = best.filter(|best| best.is_dir()) {
                render::talk(format!("best checkpoint: {}", best.display()));
                let run = self.folder.display();
                render::talk(format!("as a model: plimsoll checkpoints {run} --model best --out DIR"));
            }
        }
        let (planned, peak) = (plan.ram.peak, summary.peak_ram_bytes);
        let share = peak.0 as f64 / planned.0.max(1) as f64 * 100.0;
        render::talk(format!(
            "RAM: planned {planned}, measured peak {peak} ({share:.1} % of the plan), budget {}",
            plan.ram.budget
        ));
        if plan.vram.peak > Bytes::ZERO {
            let (planned, peak, budget) = (plan.vram.peak, summary.peak_vram_bytes, plan.vram.budget);
            let share = peak.0 as f64 / planned.0 as f64 * 100.0;
            render::talk(format!(
                "VRAM: planned {planned}, measured peak {peak} ({share:.1} % of the plan), budget {budget}"
            ));
        }
        render::talk(format!("model: {}", model.display()));
        render::talk(format!("try it: {try_it}"));
        Ok(())
    }

    fn summary(&self) -> Summary {
        let plan = &self.prepared.plan;
        let tally = &self.tally;
        // The plan counts full lengths; padding is no work.
        let sides = if self.prepared.data.has_pairs() { plan.source_len + plan.target_len } else { plan.source_len };
        let full_tokens = plan.effective_batch * sides;
        let flops = plan.flops_per_update * (tally.tokens as f64 / full_tokens.max(1) as f64);
        let mut more = std::collections::BTreeMap::new();
        more.insert("truncated_samples".to_string(), tally.truncated.into());
        more.insert("dropped_rows".to_string(), tally.dropped.into());
        more.insert("step_seconds".to_string(), tally.step_seconds.into());
        more.insert("data_seconds".to_string(), tally.data_seconds.into());
        more.insert("skipped_updates".to_string(), tally.skipped.into());
        if let Some(Plateau { rule, evaluations, best }) = self.ends_early() {
            let (best_step, best) = best.unzip();
            let told = json!({ "rule": rule, "evaluations": evaluations, "best_step": best_step, "best": best });
            more.insert("early_stop".to_string(), told);
        }
        if let Some(card) = self.engine.card() {
            // Of this process alone, as its own step time is.
            more.insert("card_busy_seconds".to_string(), card.busy_seconds().into());
            more.insert("card_step_seconds".to_string(), self.own_step_seconds.into());
        }
        Summary {
            steps: self.step,
            final_loss: tally.last_loss,
            tokens_per_second: tally.tokens as f64 / tally.step_seconds.max(1e-9),
            planned_ram_bytes: plan.ram.peak,
            peak_ram_bytes: Bytes(tally.peak_ram),
            planned_vram_bytes: plan.vram.peak,
            peak_vram_bytes: Bytes(tally.peak_vram),
            wall_seconds: tally.wall_seconds,
            evals: self.evals.clone(),
            engine_allocations_after_first_step: Some(self.allocations),
            loader_heap_peak_bytes: Some(Bytes(heap::peak(Role::Loader))),
            loader_heap_planned_bytes: Some(self.prepared.loader_planned),
            gflops: Some(flops / tally.step_seconds.max(1e-9) / 1e9),
            more,
        }
    }
}

impl RunData {
    /// What shows how good the model is.
    fn try_it(&self, run: &Path) -> String {
        let run = run.display();
        match self {
            RunData::Texts(texts) => {
                let example = texts.example().unwrap_or_else(|| "...".into());
                format!("plimsoll generate {run} --prompt {}", shell_quoted(&example))
            }
            RunData::Series(_) if self.evaluates() => format!("plimsoll eval {run}"),
            RunData::Series(_) => format!("plimsoll eval {run} --data FILE"),
        }
    }
}

impl Texts {
    /// A prompt from the data, to try the model with.
    fn example(&self) -> Option<String> {
        let sources = self.eval.as_ref().unwrap_or(&self.sources);
        let mut rows = plimsoll_data::RowTexts::new(sources.clone());
        let text = match self.recipe.kind() {
            Kind::Chat => rows.conversation(0).ok()?.prompt.pop()?.content,
            Kind::Pairs | Kind::Text => rows.pair(0).ok()?.0.to_string(),
        };
        // Of a text, the beginning is something to go on with.
        let most = if self.recipe.kind() == Kind::Text { EXAMPLE / 4 } else { EXAMPLE };
        Some(text.chars().take(most).collect())
    }
}

/// `text` as one word of a shell, on one line.
fn shell_quoted(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shell_word(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_prompt_as_one_word_and_runs_none_of_it() {
        let prompt = "it's \"5 o'clock\"; $(rm -r x) `y` $HOME \\ !!";
        let script = format!("printf %s {}", shell_quoted(prompt));
        let said = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), prompt);
        assert_eq!(shell_quoted("a\r\nb\tc"), "'a  b c'");
    }
}
