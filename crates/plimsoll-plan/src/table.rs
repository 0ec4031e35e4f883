//! The plan for people: the table of parts, the choices, the cuts, the verdict.

use std::fmt;

use plimsoll_machine::Bytes;

use crate::choose::{Plan, Verdict};
use crate::footprint::Footprint;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.choices;
        let lengths = match self.one_side {
            true => format!("samples of {} tokens", self.source_len),
            false => format!("source {}, target {} tokens", self.source_len, self.target_len),
        };
        writeln!(
            f,
            "effective batch {} = micro-batch {} x accumulation {}; {lengths}",
            self.effective_batch, self.micro_batch, self.accumulation
        )?;
        let update = if c.optimizer_in_backward { "in" } else { "after" };
        let attention = match c.recompute_attention {
            0 => String::new(),
            n => format!(", attention of {n} more"),
        };
        writeln!(
            f,
            "recompute {} of {} blocks{attention}; loss {} rows at a time; update {update} the backward pass; {} compute and {} loader threads",
            c.recompute, self.blocks, c.loss_chunk, self.threads, c.loader_threads
        )?;
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
            writeln!(f, "\nwith {} more RAM, {quicker:.0} % less time: {}", next.lacks, next.change)?;
        }
        writeln!(f)?;
        match self.verdict {
            Verdict::Fits => {
                let left = self.ram.budget.saturating_sub(self.ram.peak);
                write!(f, "fits: {} of {} RAM, {left} to spare", self.ram.peak, self.ram.budget)
            }
            Verdict::TooBig => {
                let short = self.shortfall.unwrap_or_default();
                let (peak, budget, what) = if self.ram.peak > self.ram.budget {
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
                    write!(f, "\n  {} ({} RAM)", remedy.change, remedy.ram_peak)?;
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
