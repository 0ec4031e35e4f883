//! `plimsoll probe`: the machine, and what a run may use of it. Facts, and one answer: whether swap would help.

use plimsoll_engine::cuda::Card;
use plimsoll_launch::swap::{Helps, SwapFacts, SwapVerdict, swap};
use plimsoll_machine::{Bytes, Probe, Root, probe};
use serde::Serialize;

use crate::args::ProbeArgs;
use crate::card_rates::{self, KeptCard};
use crate::rates::{self, Kept};
use crate::render::{self, Fail, OrFail};
use crate::swap_facts::swap_facts;

/// Swap below this share of RAM (one eighth) is small: what is cold of a training takes about so much.
const SMALL: u64 = 8;

/// What is printed for programs.
#[derive(Serialize)]
struct Found<'a> {
    #[serde(flatten)]
    probe: &'a Probe,
    /// Whether swap would help a training that is a little too large; nothing where there is enough of it.
    swap_advice: Option<SwapVerdict>,
}

/// What is printed of rates for programs.
#[derive(Serialize)]
struct Measured<'a> {
    #[serde(flatten)]
    kept: &'a Kept,
    /// Of the first card, where it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<&'a KeptCard>,
}

/// Reads the machine once and prints it.
pub fn run(args: &ProbeArgs) -> Result<(), Fail> {
    let root = Root::system();
    let found = probe(&root, &args.path).or_usage()?;
    if args.rates {
        // As a job has them that says nothing of threads.
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let kept = rates::measure(&root, args.threads.map_or(usable, usize::from))?;
        let card = Card::open(0).ok().map(|card| card_rates::measure(&card)).transpose()?;
        return match (args.json, &card) {
            (true, _) => render::json(&Measured { kept: &kept, card: card.as_ref() }),
            (false, None) => render::data(&kept),
            (false, Some(card)) => render::data(format!("{kept}\n{card}")),
        };
    }
    let advice = swap_facts(&root).and_then(|facts| swap_advice(found.ram.total, &facts));
    if args.json {
        return render::json(&Found { probe: &found, swap_advice: advice });
    }
    match advice {
        Some(advice) => render::data(format!("{found}\n{}", told(&advice))),
        None => render::data(&found),
    }
}

/// Whether swap would help a training that is short by an eighth of the RAM, where there is less swap than that.
fn swap_advice(ram: Bytes, facts: &SwapFacts) -> Option<SwapVerdict> {
    let cold = Bytes(ram.0 / SMALL);
    if facts.swap_total.saturating_sub(facts.swap_used) >= cold {
        return None;
    }
    let verdict = swap(&SwapFacts { pageable: facts.ram.saturating_add(cold), ..facts.clone() });
    (verdict.helps != Helps::NotNeeded).then_some(verdict)
}

fn told(advice: &SwapVerdict) -> String {
    let limits = "no card's memory and nothing pinned can go there";
    let head = match advice.helps {
        Helps::No => {
            let why = advice.reasons.last().cloned().unwrap_or_default();
            return format!("more swap    would not help here: {why}");
        }
        _ => format!(
            "more swap    would carry a training that is up to {} too large for the RAM; {limits}",
            advice.short
        ),
    };
    let hosts = if advice.reasons.iter().any(|reason| reason.contains("container")) { ", on the host" } else { "" };
    let mut lines = vec![head];
    if advice.commands.is_empty() {
        lines.extend(advice.reasons.last().map(|why| format!("  {why}")));
    } else {
        lines.push(format!("  for the machine's owner to type{hosts}:"));
        lines.extend(advice.commands.iter().map(|command| format!("    {command}")));
    }
    if !advice.zram.is_empty() {
        lines.push("  or in compressed RAM:".to_string());
        lines.extend(advice.zram.iter().map(|command| format!("    {command}")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> SwapFacts {
        let file_system = Some("ext4".to_string());
        SwapFacts { ram: Bytes::gib(28), disk_free: Some(Bytes::gib(100)), file_system, ..SwapFacts::default() }
    }

    #[test]
    fn a_machine_without_swap_is_told_the_commands_and_one_with_enough_nothing() {
        let advice = swap_advice(Bytes::gib(32), &facts()).unwrap();
        let page = told(&advice);
        assert!(page.starts_with("more swap    would carry a training that is up to 4.00 GiB too large"), "{page}");
        assert!(page.contains("nothing pinned") && page.contains("    sudo fallocate -l 5G /swapfile\n"), "{page}");
        let enough = SwapFacts { swap_total: Bytes::gib(8), ..facts() };
        assert_eq!(swap_advice(Bytes::gib(32), &enough), None);
    }

    #[test]
    fn where_the_cgroup_permits_none_no_command_is_told() {
        let none = SwapFacts { swap_allowed: Some(Bytes::ZERO), ..facts() };
        let page = told(&swap_advice(Bytes::gib(32), &none).unwrap());
        assert!(page.contains("would not help here: the cgroup permits") && !page.contains("sudo"), "{page}");
    }
}
