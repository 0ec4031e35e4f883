//! Whether swap would help, and the commands that make it, to be printed and never run. Pure.
//!
//! Swap holds pages of the host that can be paged out: heaps, private copies. It gives a card nothing, pinned memory
//! cannot go there, and what a step touches every time pays for each trip. So there are four answers, each with its
//! reason.

use std::fmt;

use plimsoll_machine::{Bytes, DiskKind};
use serde::{Deserialize, Serialize};

/// A shortage above this share of RAM (one eighth) cannot all be cold pages: some of the step's own are swapped.
const COLD_SHARE: u64 = 8;
/// zram is worth its RAM up to a shortage of this share (one quarter): it compresses heaps to about a half.
const ZRAM_SHARE: u64 = 4;

/// What is known of machine and demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwapFacts {
    /// RAM that the training may have, what others hold taken off.
    pub ram: Bytes,
    /// Swap that there is.
    pub swap_total: Bytes,
    /// Of it, in use.
    pub swap_used: Bytes,
    /// Swap that the cgroup permits; `None` for no limit.
    pub swap_allowed: Option<Bytes>,
    /// Whether there is swap in compressed RAM.
    pub zram: bool,
    /// What the training needs and can be paged out.
    pub pageable: Bytes,
    /// What it needs and is pinned.
    pub pinned: Bytes,
    /// Whether what runs short is a card's memory.
    pub vram_short: bool,
    /// What is free where a swap file would lie.
    pub disk_free: Option<Bytes>,
    /// The file system there (`ext4`, `btrfs`, ...).
    pub file_system: Option<String>,
    /// Whether that disk has a moving head.
    pub rotational: Option<bool>,
    /// Whether we are inside a container, where nobody can add swap.
    pub in_container: bool,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Helps {
    /// It would carry what is cold.
    Yes,
    /// It would survive, and wait for the disk.
    Slowly,
    /// It cannot.
    No,
    /// Nothing is short.
    NotNeeded,
}

/// Whether swap would help, why, and how it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapVerdict {
    /// The answer.
    pub helps: Helps,
    /// What host memory is short by, before any new swap.
    pub short: Bytes,
    /// How much swap to add.
    pub add: Option<Bytes>,
    /// Why.
    pub reasons: Vec<String>,
    /// Commands to be typed by the machine's owner, in order; none where it cannot help.
    pub commands: Vec<String>,
    /// The same in compressed RAM, where that would do.
    pub zram: Vec<String>,
}

/// Whether swap would help.
pub fn swap(facts: &SwapFacts) -> SwapVerdict {
    let demand = facts.pageable.saturating_add(facts.pinned);
    let short = demand.saturating_sub(facts.ram);
    let no = |helps, reasons: Vec<String>| SwapVerdict {
        helps,
        short,
        add: None,
        reasons,
        commands: Vec::new(),
        zram: Vec::new(),
    };
    let card = "a card's memory is not paged: swap gives it nothing".to_string();
    if short == Bytes::ZERO {
        let fits = format!("the demand of {demand} fits {} of RAM", facts.ram);
        return if facts.vram_short { no(Helps::No, vec![card, fits]) } else { no(Helps::NotNeeded, vec![fits]) };
    }
    if facts.pinned >= facts.ram {
        let text = format!(
            "{} are pinned, which cannot be paged out, and RAM is {}: pin less, or offload less",
            facts.pinned, facts.ram
        );
        return no(Helps::No, vec![text]);
    }
    if facts.swap_allowed.is_some_and(|allowed| allowed < short) {
        let allowed = facts.swap_allowed.unwrap_or_default();
        return no(Helps::No, vec![format!("the cgroup permits {allowed} of swap, {short} are short")]);
    }
    let mut reasons = vec![format!("{demand} are needed, RAM is {}: {short} are short", facts.ram)];
    if facts.vram_short {
        reasons.push(card);
    }
    let slow = slowness(facts, short, &mut reasons);
    let helps = if slow { Helps::Slowly } else { Helps::Yes };
    let there = facts.swap_total.saturating_sub(facts.swap_used);
    if there >= short {
        reasons.push(format!("{there} of swap are free already: nothing has to be added"));
        return SwapVerdict { helps, ..no(helps, reasons) };
    }
    let add = whole_gib(short.saturating_sub(there));
    let zram = zram_commands(facts, short);
    if facts.in_container {
        reasons.push("a container cannot add swap: the commands are for its host".to_string());
    }
    let file_system = facts.file_system.as_deref().unwrap_or_default();
    let bad_place = match DiskKind::of(file_system) {
        DiskKind::Memory => Some("a swap file in RAM saves none".to_string()),
        DiskKind::Network => Some(format!("a swap file on `{file_system}` can deadlock: the network needs memory too")),
        DiskKind::Local if file_system == "zfs" || file_system == "overlay" => {
            Some(format!("`{file_system}` carries no swap file"))
        }
        DiskKind::Local => None,
    };
    let no_room = facts.disk_free.filter(|free| *free < Bytes(add.0 + add.0 / 10));
    let no_room = no_room.map(|free| format!("{add} are needed on disk, {free} are free"));
    if let Some(reason) = bad_place.or(no_room) {
        reasons.push(reason);
        let helps = if zram.is_empty() { Helps::No } else { helps };
        return SwapVerdict { zram, ..no(helps, reasons) };
    }
    SwapVerdict { helps, short, add: Some(add), reasons, commands: commands(facts, add), zram }
}

/// Whether it will wait for the disk.
fn slowness(facts: &SwapFacts, short: Bytes, reasons: &mut Vec<String>) -> bool {
    let hot = short > Bytes(facts.ram.0 / COLD_SHARE);
    if hot {
        reasons.push(
            "more than an eighth of RAM is short: pages of the step itself would be swapped, again and again".into(),
        );
    }
    let disk = facts.rotational == Some(true);
    if disk {
        reasons.push("the disk has a moving head: a page takes milliseconds".into());
    }
    if !hot && !disk {
        reasons
            .push("what is short is small enough to be cold pages: libraries' heaps, data that was read once".into());
    }
    hot || disk
}

fn whole_gib(bytes: Bytes) -> Bytes {
    // A quarter more than is short, because what is swapped is not exactly what is cold.
    Bytes::gib((bytes.0 + bytes.0 / 4).div_ceil(1 << 30).max(1))
}

fn commands(facts: &SwapFacts, add: Bytes) -> Vec<String> {
    let file = if facts.swap_total == Bytes::ZERO { "/swapfile" } else { "/swapfile2" };
    let size = add.0 >> 30;
    let mut out = Vec::new();
    if facts.file_system.as_deref() == Some("btrfs") {
        out.push(format!("sudo btrfs filesystem mkswapfile --size {size}g {file}"));
    } else {
        out.push(format!("sudo fallocate -l {size}G {file}"));
        out.push(format!("sudo chmod 600 {file}"));
        out.push(format!("sudo mkswap {file}"));
    }
    out.push(format!("sudo swapon {file}"));
    out.push(format!("echo '{file} none swap sw 0 0' | sudo tee -a /etc/fstab"));
    out
}

fn zram_commands(facts: &SwapFacts, short: Bytes) -> Vec<String> {
    if facts.zram || facts.in_container || short > Bytes(facts.ram.0 / ZRAM_SHARE) {
        return Vec::new();
    }
    // What goes in takes about half of itself, so twice the shortage frees the shortage.
    let size = whole_gib(Bytes(short.0.saturating_mul(2))).0 >> 30;
    vec![
        "sudo modprobe zram".to_string(),
        format!("dev=$(sudo zramctl --find --size {size}G --algorithm zstd)"),
        "sudo mkswap $dev".to_string(),
        "sudo swapon --priority 100 $dev".to_string(),
    ]
}

impl fmt::Display for SwapVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = match self.helps {
            Helps::Yes => "swap would help",
            Helps::Slowly => "swap would keep it alive, slowly",
            Helps::No => "swap cannot help",
            Helps::NotNeeded => "no swap is needed",
        };
        writeln!(f, "{head}")?;
        self.reasons.iter().try_for_each(|reason| writeln!(f, "  {reason}"))?;
        if !self.commands.is_empty() {
            writeln!(f, "  for the machine's owner to type:")?;
            self.commands.iter().try_for_each(|command| writeln!(f, "    {command}"))?;
        }
        if !self.zram.is_empty() {
            writeln!(f, "  or in compressed RAM:")?;
            self.zram.iter().try_for_each(|command| writeln!(f, "    {command}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "swap_test.rs"]
mod tests;
