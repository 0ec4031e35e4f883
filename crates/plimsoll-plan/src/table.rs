//! The plan for people: the table of parts, the choices, the cuts, the verdict.

use std::fmt;

use plimsoll_machine::Bytes;

use crate::choose::{Plan, Verdict};
use crate::footprint::Footprint;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.choices;
        let lengths = match self.one_side {
            _ if self.windows => format!("windows of {} steps", self.source_len),
            true => format!("samples of {} tokens", self.source_len),
            false => format!("source {}, target {} tokens", self.source_len, self.target_len),
        };
        writeln!(
            f,
            "effective batch {} = micro-batch {} x accumulation {}; {lengths}",
            self.effective_batch, self.micro_batch, self.accumulation
        )?;
        let loss = match self.windows {
            true => String::new(),
            false => format!("loss {} rows at a time; ", c.loss_chunk),
        };
        let update = if c.optimizer_in_backward { "in" } else { "after" };
        let more = |what: &str, blocks: usize| match blocks {
            0 => String::new(),
            n => format!(", {what} of {n} more"),
        };
        let parts = more("feed-forward part", c.recompute_feed_forward) + &more("attention", c.recompute_attention);
        writeln!(
            f,
            "recompute {} of {} blocks{parts}; {loss}update {update} the backward pass; {} compute and {} loader threads",
            c.recompute, self.blocks, self.threads, c.loader_threads
        )?;
        if c.lstm_every > 0 {
            writeln!(
                f,
                "LSTM: cells are kept every {} steps, and what is between them is computed again",
                c.lstm_every
            )?;
        }
        if c.keep_norms {
            writeln!(f, "outputs of norms are kept for the backward pass")?;
        }
        if c.lean {
            writeln!(
                f,
                "lean: little scratch for products; in f16, no copies of weights, which are written out for each of them"
            )?;
        }
        for rung in &self.rungs {
            writeln!(f, "another result, as allowed: {rung}")?;
        }
        let saves = if self.snapshot {
            "checkpoints are written in the background, from a snapshot"
        } else {
            "each checkpoint stops the steps until it is written"
        };
        writeln!(f, "{saves}")?;
        writeln!(f)?;
        if !self.vram.parts.is_empty() {
            table(f, "VRAM", &self.vram)?;
            writeln!(f)?;
        }
        table(f, "RAM", &self.ram)?;
        writeln!(f)?;
        table(f, "disk", &self.disk)?;
        if !self.cuts.is_empty() {
            writeln!(f, "\nagainst the fastest plan without a budget:")?;
        }
        for cut in &self.cuts {
            let sign = if cut.saved >= 0 { '-' } else { '+' };
            writeln!(
                f,
                "  {}: {sign}{}, {:+.1} % time",
                cut.what,
                Bytes(cut.saved.unsigned_abs()),
                cut.slower_percent
            )?;
        }
        if let Some(next) = &self.next_faster {
            let quicker = (1.0 - next.seconds_per_update / self.seconds_per_update) * 100.0;
            let what = if self.vram.parts.is_empty() { "RAM" } else { "VRAM" };
            writeln!(f, "\nwith {} more {what}, {quicker:.0} % less time: {}", next.lacks, next.change)?;
        }
        writeln!(f)?;
        match self.verdict {
            Verdict::Fits => {
                let left = self.ram.budget.saturating_sub(self.ram.peak);
                write!(f, "fits: {} of {} RAM, {left} to spare", self.ram.peak, self.ram.budget)?;
                if !self.vram.parts.is_empty() {
                    let left = self.vram.budget.saturating_sub(self.vram.peak);
                    write!(f, "; {} of {} VRAM, {left} to spare", self.vram.peak, self.vram.budget)?;
                }
                Ok(())
            }
            Verdict::TooBig => {
                let short = self.shortfall.unwrap_or_default();
                let (peak, budget, what) = if self.vram.peak > self.vram.budget {
                    (self.vram.peak, self.vram.budget, "VRAM")
                } else if self.ram.peak > self.ram.budget {
                    (self.ram.peak, self.ram.budget, "RAM")
                } else {
                    (self.disk.peak, self.disk.budget, "disk")
                };
                write!(
                    f,
                    "too big: the smallest plan needs {peak} of {what}, {short} more than the budget of {budget}"
                )?;
                if !self.would_fit.is_empty() {
                    write!(f, "\nwhat would fit:")?;
                }
                for remedy in &self.would_fit {
                    match remedy.vram_peak {
                        None => write!(f, "\n  {} ({} RAM)", remedy.change, remedy.ram_peak)?,
                        Some(vram) => write!(f, "\n  {} ({vram} VRAM)", remedy.change)?,
                    }
                }
                Ok(())
            }
        }
    }
}

fn table(f: &mut fmt::Formatter<'_>, name: &str, footprint: &Footprint) -> fmt::Result {
    writeln!(f, "{name:<22}{:>12}   share", "bytes")?;
    for part in &footprint.parts {
        let share = part.bytes.0 as f64 / footprint.peak.0.max(1) as f64 * 100.0;
        writeln!(f, "  {:<20}{:>12}   {share:>4.1} %", part.name, part.bytes.to_string())?;
    }
    writeln!(f, "  {:<20}{:>12}", "sum", footprint.peak.to_string())
}
