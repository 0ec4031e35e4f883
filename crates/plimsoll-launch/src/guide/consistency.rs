//! Log lines that contradict their own number.
//!
//! Guide 001 prints "memory sufficient (>10GB)" right above "available 1.40GB"; this finds such pairs, in English and
//! in that trainer's Chinese. It refuses to know what was decided: it reads lines.

use std::sync::LazyLock;

use regex::Regex;
use thiserror::Error;

/// Two things that cannot both be true. Numbers are as they were printed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Contradiction {
    /// Said to be enough, and below the border.
    #[error("{available} < {border} cannot be \"sufficient\"")]
    NotSufficient {
        /// What is available.
        available: String,
        /// The border that was named.
        border: String,
    },
    /// Said to be short, and not below the border.
    #[error("{available} >= {border} cannot be \"short\"")]
    NotShort {
        /// What is available.
        available: String,
        /// The border that was named.
        border: String,
    },
    /// Used and available do not add up to the total.
    #[error("`{printed}` available cannot be: `{total}` - `{used}` is `{expected:.2}`")]
    Available {
        /// The total.
        total: f64,
        /// What is used.
        used: f64,
        /// What was printed as available.
        printed: f64,
        /// What the others leave.
        expected: f64,
    },
}

static SUFFICIENT: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:sufficient|充足)[^0-9<>]*>=?\s*([0-9.]+)\s*Gi?B"));
static SHORT: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:short|不足)[^0-9<>]*<\s*([0-9.]+)\s*Gi?B"));
static AVAILABLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:available|可用内存)[:：]?\s*([0-9.]+)\s*Gi?B"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of ours")
}

/// The first contradiction among lines that speak of one moment.
pub fn contradiction<S: AsRef<str>>(lines: &[S]) -> Option<Contradiction> {
    let all = |pattern: &'static Regex| {
        lines.iter().flat_map(move |line| pattern.captures_iter(line.as_ref())).filter_map(|found| {
            let text = found[1].to_string();
            text.parse::<f64>().ok().map(|number| (number, text))
        })
    };
    for (available, printed) in all(&AVAILABLE) {
        for (border, named) in all(&SUFFICIENT) {
            if available < border {
                return Some(Contradiction::NotSufficient { available: printed, border: named });
            }
        }
        for (border, named) in all(&SHORT) {
            if available >= border {
                return Some(Contradiction::NotShort { available: printed, border: named });
            }
        }
    }
    None
}

/// Whether total, used and available fit each other, as far as figures with one printed place can.
pub fn available(total: f64, used: f64, printed: f64) -> Result<(), Contradiction> {
    let expected = total - used;
    // Each of the three may be off by half of its last place.
    if (expected - printed).abs() <= 0.15 {
        return Ok(());
    }
    Err(Contradiction::Available { total, used, printed, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guides_own_log_is_caught_in_its_own_words() {
        let lines =
            ["✅ 内存充足（可用内存>10GB），使用配置的batch_size=32", "ultra_low_mem模式: True (可用内存: 1.40GB)"];
        let found = contradiction(&lines).unwrap();
        assert_eq!(found.to_string(), "1.40 < 10 cannot be \"sufficient\"");
    }

    #[test]
    fn lines_that_agree_pass() {
        assert_eq!(contradiction(&["memory sufficient (>10GB)", "available 12.00GB"]), None);
        assert_eq!(available(31.21, 21.5, 9.71), Ok(()));
        let short = contradiction(&["memory short (<10GB)", "available 10.00GB"]).unwrap();
        assert_eq!(short.to_string(), "10.00 >= 10 cannot be \"short\"");
    }
}
