//! The run's `job.toml`, completed with what the data answered: what a row is, columns and lengths.
//!
//! Lines are added and none is changed, so that every value keeps the comment that says where it came from. Whoever
//! reads the file later (`resume`, `eval`) need not guess, and cannot guess otherwise.

use std::path::Path;

use plimsoll_data::Kind;
use plimsoll_recover::atomic_write;
use toml::Value;

use crate::job::write::inline;
use crate::prepare::{Prepared, RunData, Texts};
use crate::render::Fail;
use crate::settings::{Settings, kind_name};

/// Writes what `settings` left open and `prepared` found into the job file of the run.
pub fn resolve_job(folder: &Path, settings: &Settings, prepared: &Prepared) -> Result<(), Fail> {
    // Of series a job says everything itself.
    let RunData::Texts(Texts { sources, recipe, lens, .. }) = &prepared.data else { return Ok(()) };
    let (kind, (source_len, target_len)) = (recipe.kind(), *lens);
    // What finds the same columns again: an instruction with its input is not named by two of the three.
    let columns = sources.columns().again();
    let text = |value: String| Value::String(value);
    let tokens = |n: usize| Some(Value::Integer(n as i64));
    // The sets of a mixture may have columns of their own, and say or guess them.
    let one = settings.mixture.is_empty();
    let (pairs, documents) = (kind == Kind::Pairs, kind != Kind::Pairs);
    let answers = [
        (settings.kind.is_none(), "kind", Some(text(kind_name(kind).into()))),
        (one && settings.source.is_none(), "columns.source", columns.source.map(text)),
        (one && settings.target.is_none(), "columns.target", columns.target.map(text)),
        (pairs && settings.max_source.is_none(), "max_len.source", tokens(source_len)),
        (pairs && settings.max_target.is_none(), "max_len.target", tokens(target_len)),
        (documents && settings.max_tokens.is_none(), "max_len.tokens", tokens(source_len)),
    ];
    let open: Vec<(&str, Value)> =
        answers.into_iter().filter(|(open, ..)| *open).filter_map(|(_, key, value)| Some((key, value?))).collect();
    let path = folder.join("job.toml");
    if let Some(whole) = completed(&fs_err::read_to_string(&path)?, &open) {
        atomic_write(&path, whole.as_bytes())?;
    }
    Ok(())
}

/// `job` with `answers` in its table `[data]`; none where there is nothing to add, or where somebody wrote the file in
/// another way than we do and it would be no job any more.
fn completed(job: &str, answers: &[(&str, Value)]) -> Option<String> {
    if answers.is_empty() {
        return None;
    }
    let mut out = String::new();
    for line in job.lines() {
        out.push_str(line);
        out.push('\n');
        if line.trim() == "[data]" {
            for (key, value) in answers {
                out.push_str(&format!("{key} = {}  # found in the data\n", inline(value)));
            }
        }
    }
    toml::from_str::<toml::Table>(&out).is_ok().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_open_is_added_and_what_was_there_keeps_its_origin() {
        let job = "[model]\npath = \"m\"  # flag\n\n[data]\nmax_len.source = 9  # given in a.toml, line 3\n\n[train]\n";
        let open = [("columns.source", Value::String("the \"q\"".into())), ("max_len.target", Value::Integer(7))];
        let whole = completed(job, &open).unwrap();
        assert!(whole.contains("max_len.source = 9  # given in a.toml, line 3\n"), "{whole}");
        let read: toml::Table = toml::from_str(&whole).unwrap();
        assert_eq!(read["data"]["columns"]["source"].as_str(), Some("the \"q\""));
        assert_eq!(read["data"]["max_len"]["target"].as_integer(), Some(7));
        assert_eq!(read["data"]["max_len"]["source"].as_integer(), Some(9));
    }

    #[test]
    fn a_file_that_cannot_be_completed_is_left_alone() {
        let open = [("max_len.target", Value::Integer(7))];
        assert_eq!(completed("[data]\nmax_len = { source = 9 }\n", &open), None);
        assert_eq!(completed("[data]\n", &[]), None);
    }
}
