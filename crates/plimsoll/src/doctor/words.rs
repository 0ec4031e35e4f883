//! The journal's words, read back.

use plimsoll_recover::cause::{Confidence, Kind};
use serde_json::Value;

/// The kind that the journal names, without the details that only its evidence has. A name that this version does not
/// know is `Unknown`.
pub fn named(name: &str) -> Kind {
    match name {
        "oom_daemon" => Kind::OomDaemon { name: "a memory watchdog".to_string() },
        "killed_unproven" => Kind::KilledUnproven { signal: 9 },
        "bug" => Kind::Bug { place: "an unknown place".to_string() },
        other => serde_json::from_value(Value::from(other)).unwrap_or(Kind::Unknown),
    }
}

/// A confidence; what is no such word proves nothing.
pub fn confidence(word: &str) -> Confidence {
    match word {
        "proven" => Confidence::Proven,
        "likely" => Confidence::Likely,
        _ => Confidence::Unproven,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_one_of_the_future_is_unknown() {
        let names = [
            "kernel_oom_in_our_cgroup",
            "kernel_oom_of_the_host",
            "oom_daemon",
            "killed_unproven",
            "stopped_by_user",
            "disk_full",
            "io_error",
            "bad_data",
            "non_finite",
            "bug",
            "power_or_reboot",
            "cuda_out_of_memory",
            "allocation_refused",
            "does_not_fit",
            "unknown",
        ];
        for name in names {
            assert_eq!(named(name).name(), name);
        }
        assert_eq!(named("eaten_by_a_whale"), Kind::Unknown);
        for sure in [Confidence::Proven, Confidence::Likely, Confidence::Unproven] {
            assert_eq!(confidence(sure.name()), sure);
        }
    }
}
