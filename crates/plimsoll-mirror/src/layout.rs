//! The names of things at the other end, relative to the mirror's URL.
//!
//! Invariant: a key that is read back as a checkpoint's is one that would be written.

/// Who is mirrored there: `{ "run": "..." }`. The first thing that is written.
pub(crate) const IDENTITY: &str = "mirror.json";
/// The job, with absolute paths of the machine that it ran on.
pub(crate) const JOB: &str = "job.toml";
/// The description of the model, where it has one and no folder.
pub(crate) const DESCRIPTION: &str = "model.toml";
/// The plan.
pub(crate) const PLAN: &str = "plan.json";
/// The journal, as far as it was when the last checkpoint or the end was copied.
pub(crate) const JOURNAL: &str = "journal.jsonl";
/// The summary of a finished run.
pub(crate) const SUMMARY: &str = "summary.json";
/// Checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// The final model.
pub(crate) const MODEL: &str = "model";
/// The small files of the model that the run began with.
pub(crate) const BASE: &str = "base";
/// In `model` and `base`: lengths and checksums of what belongs there, written last.
pub(crate) const COMPLETE: &str = ".complete";

/// What of a model folder goes to `base`: all that is needed to go on but the weights, which the checkpoint has.
pub(crate) const BASE_FILES: [&str; 9] = [
    "config.json",
    "normalisation.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "chat_template.jinja",
];

/// The folder of a checkpoint.
pub(crate) fn step_key(step: u64) -> String {
    format!("{CHECKPOINTS}/step-{step}")
}

/// Step and file name of a checkpoint's key.
pub(crate) fn parse_step(key: &str) -> Option<(u64, &str)> {
    let (folder, name) = key.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.split_once('/')?;
    let step = folder.strip_prefix("step-")?.parse().ok()?;
    (step_key(step).rsplit('/').next() == Some(folder)).then_some((step, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_its_step_and_file() {
        assert_eq!(parse_step("checkpoints/step-12/manifest.json"), Some((12, "manifest.json")));
        assert_eq!(step_key(12), "checkpoints/step-12");
    }

    #[test]
    fn names_that_are_not_written_are_not_read() {
        for key in ["checkpoints/step-012/a", "checkpoints/step-/a", "checkpoints/step-1", "model/step-1/a", "x"] {
            assert_eq!(parse_step(key), None, "{key}");
        }
    }
}
