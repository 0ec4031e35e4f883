//! How fast this machine trains: measured in full once (`probe --rates`) and kept, or quickly for a plan.
//!
//! What is kept counts for the same processor, threads, vector level and version alone. Plans only read it.

use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_engine::{Care, measure_rates, simd, with_cores};
use plimsoll_machine::{Root, parse_cpuinfo};
use plimsoll_plan::cost::Rates;
use plimsoll_plan::tiles::Simd;
use plimsoll_recover::atomic_write;
use serde::{Deserialize, Serialize};

use crate::render::{Fail, OrFail};

/// What rates depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    processor: String,
    cores: usize,
    threads: usize,
    simd: Simd,
    version: String,
}

/// Rates as they are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    #[serde(flatten)]
    key: Key,
    rates: Rates,
}

impl Key {
    fn of(root: &Root, threads: usize, simd: Simd) -> Key {
        let text = fs_err::read_to_string(root.join("/proc/cpuinfo")).unwrap_or_default();
        Key {
            processor: parse_cpuinfo(&text).0.unwrap_or("unknown").to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            threads,
            simd,
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}

/// The rates that plans are made with: those kept for this machine, or quickly measured ones.
pub fn rates(root: &Root, threads: usize, simd: Simd) -> Result<Rates, Fail> {
    match kept(&file(threads), &Key::of(root, threads, simd)) {
        Some(rates) => Ok(rates),
        None => Ok(with_cores(threads, || {}, || measure_rates(simd, Care::Quick))??),
    }
}

/// Measures in full, and keeps it.
pub fn measure(root: &Root, threads: usize) -> Result<Kept, Fail> {
    let level = simd::detect();
    let rates = with_cores(threads, || {}, || measure_rates(level, Care::Full))??;
    let kept = Kept { key: Key::of(root, threads, level), rates };
    let file = file(threads);
    if let Some(folder) = file.parent() {
        fs_err::create_dir_all(folder)?;
    }
    atomic_write(&file, &serde_json::to_vec_pretty(&kept).or_failed()?)?;
    Ok(kept)
}

/// What a file holds for this machine; none where it is another's, cannot be read, or says what no machine can be.
fn kept(file: &Path, key: &Key) -> Option<Rates> {
    let kept: Kept = serde_json::from_slice(&fs_err::read(file).ok()?).ok()?;
    (kept.key == *key && kept.rates.validate()).then_some(kept.rates)
}

fn file(threads: usize) -> PathBuf {
    cache_folder().join(format!("rates-{threads}.json"))
}

/// Where what is measured or compiled once is kept, as the XDG rules have it.
pub fn cache_folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    cache.or_else(home).unwrap_or_else(std::env::temp_dir).join("plimsoll")
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kept { key, rates } = self;
        let threads = if key.threads == 1 { "1 thread".to_string() } else { format!("{} threads", key.threads) };
        writeln!(f, "{}, {threads}", key.processor)?;
        let lines = [
            ("matrix products", rates.flops / 1e9, "GFLOP/s"),
            ("attention", rates.attention_flops / 1e9, "GFLOP/s"),
            ("loss", rates.loss_flops / 1e9, "GFLOP/s"),
            ("memory", rates.bandwidth / 1e9, "GB/s"),
            ("caches", rates.cache_bandwidth / 1e9, "GB/s"),
            ("updates", rates.update_bandwidth / 1e9, "GB/s"),
            ("packing f32", rates.packed / 1e9, "G numbers/s"),
            ("packing bf16", rates.packed_half / 1e9, "G numbers/s"),
            ("packing int8", rates.packed_int8 / 1e9, "G numbers/s"),
            ("packing nf4", rates.packed_nf4 / 1e9, "G numbers/s"),
            ("packing rows", rates.packed_rows / 1e9, "G numbers/s"),
            ("exponentials", rates.exponentials / 1e9, "G/s"),
            ("dropout", rates.drops / 1e9, "G numbers/s"),
            ("calls", rates.calls / 1e6, "M/s"),
        ];
        write_rates(f, &lines, &file(key.threads))
    }
}

/// Rates (name, number, unit), a line each, and where they are kept.
pub(crate) fn write_rates(f: &mut fmt::Formatter<'_>, lines: &[(&str, f64, &str)], file: &Path) -> fmt::Result {
    for (name, rate, unit) in lines {
        writeln!(f, "  {name:<16}{rate:>9.2} {unit}")?;
    }
    write!(f, "kept in {}: plans are made with them", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_rates_count_for_the_same_machine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rates.json");
        let key = Key::of(&Root::system(), 2, Simd::Avx2);
        assert_eq!(kept(&file, &key), None, "there is no file yet");
        let rates = Rates::of(123e9, 7e9);
        fs_err::write(&file, serde_json::to_vec(&Kept { key: key.clone(), rates }).unwrap()).unwrap();
        assert_eq!(kept(&file, &key), Some(rates));
        assert_eq!(kept(&file, &Key { threads: 3, ..key.clone() }), None);
        assert_eq!(kept(&file, &Key { version: "0.0.0".into(), ..key.clone() }), None);
        let still = Rates { attention_flops: 0.0, ..rates };
        fs_err::write(&file, serde_json::to_vec(&Kept { key: key.clone(), rates: still }).unwrap()).unwrap();
        assert_eq!(kept(&file, &key), None, "nothing takes for ever");
        fs_err::write(&file, "no json").unwrap();
        assert_eq!(kept(&file, &key), None);
    }
}
