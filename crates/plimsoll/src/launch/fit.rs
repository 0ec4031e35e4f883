//! Settings that fit, found before the start: as few steps down as the estimate asks for, and none that changes the result
//! unless it is allowed.

use std::path::Path;

use plimsoll_launch::Settings;
use plimsoll_launch::ladder::{self, Bottom, Shortage, Stand};
use plimsoll_machine::Bytes;

use super::charge::Charge;
use super::forecast::{Forecast, Question, forecast, longest_of, on_card, room};
use super::ready::Ready;
use crate::render::Fail;

/// An estimate may be this far above the truth, in per cent; beyond it a start would be in vain.
const ERROR: u64 = 25;
/// Steps down that are tried.
const MOST: usize = 60;

/// What was found.
#[derive(Debug)]
pub struct Fitted {
    /// The settings over the command's own.
    pub over: Settings,
    /// What they need; the reason where nothing can be said.
    pub forecast: Result<Forecast, String>,
    /// What was changed, and why.
    pub steps: Vec<String>,
    /// What may be taken.
    pub ram: Option<Bytes>,
    /// What may be taken of a card.
    pub vram: Option<Bytes>,
    /// Why it does not fit, where it does not.
    pub short: Option<Short>,
}

/// It does not fit.
#[derive(Debug)]
pub struct Short {
    /// What it needs, most likely.
    pub needs: Bytes,
    /// What there is.
    pub there: Bytes,
    /// Whether that is beyond the error of an estimate.
    pub certain: bool,
    /// What further steps would need.
    pub bottom: Bottom,
}

/// Looks for settings that fit a first start, beginning with those that were asked for.
pub fn fit(charge: &Charge, may_step: bool) -> Result<Fitted, Fail> {
    let (ram, vram) = match charge.elsewhere {
        // What is here says nothing of what is there.
        Some(_) => (charge.ram, charge.vram),
        None => room(charge.ram, charge.vram),
    };
    let mut over = charge.set.clone();
    let mut steps = Vec::new();
    for _ in 0..MOST {
        let ready = Ready::new(Path::new("."), charge, &over, None)?;
        let found = forecast(Question {
            command: &ready.command,
            settings: &ready.settings,
            folder: &charge.folder,
            shape: charge.shape.as_deref(),
            length: charge.length,
            resume: false,
            on_card: Some(on_card(&ready.command, charge)),
            elsewhere: charge.elsewhere.is_some(),
        })?;
        let tables = match found {
            Ok(tables) => tables,
            Err(why) => return Ok(Fitted { over, forecast: Err(why), steps, ram, vram, short: None }),
        };
        let Some((what, needs, there)) = shortage(&tables, ram, vram) else {
            return Ok(Fitted { over, forecast: Ok(tables), steps, ram, vram, short: None });
        };
        let knobs = ready.knobs(charge);
        let stand = Stand {
            settings: &ready.settings,
            can: &knobs,
            exact_accumulation: ready.command.layers().any(|layer| layer.can.exact_accumulation),
            // There is no checkpoint yet that could bind it.
            world_fixed: false,
            on_card: tables.card.is_some(),
            evaluating: what == Shortage::Vram
                && tables.card.as_ref().is_some_and(|card| card.peak == plimsoll_launch::estimate::PhaseName::Eval),
            longest: longest_of(&ready.command, &charge.folder),
            allow: &charge.allow,
        };
        let rung = if may_step { ladder::next(what, &stand) } else { Err(Bottom { would: Vec::new() }) };
        match rung {
            Ok(rung) => {
                let name = if what == Shortage::Ram { "RAM" } else { "VRAM" };
                let result = if rung.same_result { "same result" } else { "other result, allowed" };
                steps.push(format!("{} ({result}): {needs} of {name} are expected, {there} are there", rung.says));
                over.extend(rung.set);
            }
            Err(bottom) => {
                let certain = needs.0 > there.0 + there.0 / 100 * ERROR;
                let short = Some(Short { needs, there, certain, bottom });
                return Ok(Fitted { over, forecast: Ok(tables), steps, ram, vram, short });
            }
        }
    }
    Ok(Fitted { over, forecast: Err("the estimate does not settle".to_string()), steps, ram, vram, short: None })
}

/// What is short: the card first, where it computes on one.
fn shortage(tables: &Forecast, ram: Option<Bytes>, vram: Option<Bytes>) -> Option<(Shortage, Bytes, Bytes)> {
    let card = tables.card.as_ref().map(|card| card.expected).zip(vram);
    if let Some((needs, there)) = card.filter(|(needs, there)| needs > there) {
        return Some((Shortage::Vram, needs, there));
    }
    let there = ram?;
    (tables.host.expected > there).then_some((Shortage::Ram, tables.host.expected, there))
}
