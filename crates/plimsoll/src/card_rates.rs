//! How fast the card is: measured once (`probe --rates`) and kept, or for a plan.
//!
//! What is kept counts for the same card, driver and version alone. Plans only read it.

use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_engine::cuda::{Card, card_rates};
use plimsoll_plan::card::CardRates;
use plimsoll_plan::dtype::Dtype;
use plimsoll_recover::atomic_write;
use serde::{Deserialize, Serialize};

use crate::rates::{cache_folder, write_rates};
use crate::render::{Fail, OrFail};

/// What rates depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    card: String,
    driver: i32,
    version: String,
}

/// Rates as they are kept, by the form of activations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptCard {
    #[serde(flatten)]
    key: Key,
    f32: CardRates,
    bf16: CardRates,
    f16: CardRates,
}

impl Key {
    fn of(card: &Card) -> Key {
        Key { card: card.name().to_string(), driver: card.driver(), version: env!("CARGO_PKG_VERSION").to_string() }
    }
}

impl KeptCard {
    fn of(&self, form: Dtype) -> CardRates {
        match form {
            Dtype::Bf16 => self.bf16,
            Dtype::F16 => self.f16,
            _ => self.f32,
        }
    }
}

/// The rates that plans are made with.
pub fn rates(card: &Card, form: Dtype) -> Result<CardRates, Fail> {
    match kept(&file(), &Key::of(card)) {
        Some(kept) => Ok(kept.of(form).rounded()),
        None => Ok(card_rates(card, form, kernels()).or_usage()?.rounded()),
    }
}

/// Measures in full, and keeps it.
pub fn measure(card: &Card) -> Result<KeptCard, Fail> {
    let of = |form| card_rates(card, form, kernels()).or_usage();
    let (f32, bf16, f16) = (of(Dtype::F32)?, of(Dtype::Bf16)?, of(Dtype::F16)?);
    let found = KeptCard { key: Key::of(card), f32, bf16, f16 };
    fs_err::create_dir_all(cache_folder())?;
    atomic_write(&file(), &serde_json::to_vec_pretty(&found).or_failed()?)?;
    Ok(found)
}

/// What a file holds for this card; none where it is another's, cannot be read, or says what no card can be.
fn kept(file: &Path, key: &Key) -> Option<KeptCard> {
    let kept: KeptCard = serde_json::from_slice(&fs_err::read(file).ok()?).ok()?;
    let valid = [kept.f32, kept.bf16, kept.f16].iter().all(CardRates::validate);
    (kept.key == *key && valid).then_some(kept)
}

fn file() -> PathBuf {
    cache_folder().join("card-rates.json")
}

fn kernels() -> Option<PathBuf> {
    Some(cache_folder().join("kernels"))
}

impl fmt::Display for KeptCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeptCard { key, f32, bf16, f16 } = self;
        writeln!(f, "{}", key.card)?;
        let lines = [
            ("products, f32", f32.flops / 1e12, "TFLOP/s"),
            ("products, bf16", bf16.flops / 1e12, "TFLOP/s"),
            ("products, f16", f16.flops / 1e12, "TFLOP/s"),
            ("memory", bf16.bandwidth / 1e9, "GB/s"),
            ("to the card", bf16.to_card / 1e9, "GB/s"),
            ("from the card", bf16.from_card / 1e9, "GB/s"),
            ("launches", bf16.launches / 1e6, "M/s"),
        ];
        write_rates(f, &lines, &file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_rates_count_for_the_same_card_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("card-rates.json");
        let key = Key { card: "a card".into(), driver: 13000, version: "1".into() };
        let some = CardRates { flops: 1e14, bandwidth: 1e12, launches: 5e5, to_card: 2e10, from_card: 2e10 };
        let found = KeptCard { key: key.clone(), f32: CardRates { flops: 3e13, ..some }, bf16: some, f16: some };
        assert_eq!(kept(&file, &key), None, "there is no file yet");
        fs_err::write(&file, serde_json::to_vec(&found).unwrap()).unwrap();
        assert_eq!(kept(&file, &key), Some(found.clone()));
        assert_eq!((found.of(Dtype::F32).flops, found.of(Dtype::Bf16)), (3e13, some));
        assert_eq!(kept(&file, &Key { driver: 12080, ..key.clone() }), None);
        assert_eq!(kept(&file, &Key { card: "another".into(), ..key.clone() }), None);
        let still = KeptCard { f16: CardRates { bandwidth: 0.0, ..some }, ..found };
        fs_err::write(&file, serde_json::to_vec(&still).unwrap()).unwrap();
        assert_eq!(kept(&file, &key), None, "nothing takes for ever");
    }
}
