//! Reading a job file, and saying where in it something is wrong: `job.toml:7:1: unknown key ...`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Job;
use super::keys;
use crate::render::{Exit, Fail};

/// A job file that has been read and whose keys are all known.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// Where it is, as it was named.
    pub path: PathBuf,
    /// What it says.
    pub job: Job,
    text: String,
}

impl JobFile {
    /// Reads `path`; exit 2 if it cannot be read, is not TOML, or has an unknown or duplicate key.
    pub fn read(path: &Path) -> Result<JobFile, Fail> {
        if path.is_dir() {
            let fail = Fail::usage(format!("`{}` is a folder; expected a job file", path.display()));
            let run = super::run_folder::holds_run(path);
            return Err(match path.join("job.toml") {
                _ if run => fail.hint(format!("it is a run: plimsoll resume {}", path.display())),
                inner if inner.is_file() => fail.hint(format!("name the file in it: {}", inner.display())),
                _ => fail,
            });
        }
        let text = fs_err::read_to_string(path)
            .map_err(|error| Fail::new(Exit::BadInput, error).context("cannot read the job file"))?;
        JobFile::parse(path, text)
    }

    /// Reads `text` as the job file `path`.
    pub fn parse(path: &Path, text: String) -> Result<JobFile, Fail> {
        match toml::from_str(&text) {
            Ok(job) => Ok(JobFile { path: path.to_path_buf(), job, text }),
            Err(error) => Err(explain(&error, |span| place(path, &text, span))),
        }
    }

    /// The folder that relative paths in the file start from.
    pub fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// The name of the file, for messages.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// `path:line:column` of a span.
    pub fn place(&self, span: Range<usize>) -> String {
        place(&self.path, &self.text, span)
    }

    /// Line of a span, from 1.
    pub fn line(&self, span: &Range<usize>) -> usize {
        line_column(&self.text, span.start).0
    }
}

fn place(path: &Path, text: &str, span: Range<usize>) -> String {
    let (line, column) = line_column(text, span.start);
    format!("{}:{line}:{column}", path.display())
}

/// Line and column of byte `at`, both from 1; columns count characters.
fn line_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Turns a TOML error into a failure whose place `at` knows.
pub(super) fn explain(error: &toml::de::Error, at: impl Fn(Range<usize>) -> String) -> Fail {
    let place = at(error.span().unwrap_or(0..0));
    let message = error.message().trim();
    if let Some(rest) = message.strip_prefix("unknown field ") {
        let mut names = rest.split('`').skip(1).step_by(2);
        let unknown = names.next().unwrap_or_default();
        let known: Vec<&str> = names.collect();
        let fail = Fail::usage(format!("{place}: unknown key `{unknown}`"));
        return match (keys::nearest(unknown, known.iter().copied()), keys::home(unknown)) {
            (Some(meant), _) => fail.hint(format!("did you mean `{meant}`?")),
            (None, Some(table)) => fail.hint(format!("`{unknown}` belongs into `{table}`")),
            (None, None) => fail.hint(format!("known here: `{}`", known.join("`, `"))),
        };
    }
    // A syntax error can have several lines; the place has been said already.
    Fail::usage(format!("{place}: {}", message.replace('\n', ", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (String, String) {
        let fail = JobFile::parse(Path::new("jobs/a.toml"), text.to_string()).unwrap_err();
        assert_eq!(fail.exit, Exit::BadInput);
        (fail.fact.unwrap().to_string(), fail.hint.unwrap_or_default())
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_the_nearest_known_one() {
        let (fact, hint) = wrong("[train]\nsteps = 3\neffective_bacth = 4\n");
        assert_eq!(fact, "jobs/a.toml:3:1: unknown key `effective_bacth`");
        assert_eq!(hint, "did you mean `effective_batch`?");
        let (fact, hint) = wrong("[trian]\n");
        assert_eq!((fact.as_str(), hint.as_str()), ("jobs/a.toml:1:2: unknown key `trian`", "did you mean `train`?"));
        let (_, hint) = wrong("[model]\nseed = 3\n");
        assert_eq!(hint, "`seed` belongs into `train`");
        let (fact, hint) = wrong("[train]\noptimizer = { name = \"adamw\", wieght_decay = 0.1 }\n");
        assert_eq!(fact, "jobs/a.toml:2:31: unknown key `wieght_decay`");
        assert_eq!(hint, "did you mean `weight_decay`?");
    }

    #[test]
    fn a_duplicate_key_is_refused() {
        let (fact, _) = wrong("[train]\nsteps = 3\nsteps = 4\n");
        assert_eq!(fact, "jobs/a.toml:3:1: duplicate key");
    }

    #[test]
    fn a_value_of_the_wrong_kind_says_what_was_expected_and_found() {
        let (fact, _) = wrong("[train]\nsteps = \"many\"\n");
        assert_eq!(fact, "jobs/a.toml:2:9: invalid type: string \"many\", expected a whole number of 0 or more");
        let (fact, _) = wrong("[train]\nsteps = -1\n");
        assert_eq!(fact, "jobs/a.toml:2:9: invalid value: integer `-1`, expected a whole number of 0 or more");
        let (fact, _) = wrong("[pin]\nrecompute = \"some\"\n");
        assert!(fact.ends_with("expected a number of blocks, `all` or `none`"), "{fact}");
    }

    #[test]
    fn a_syntax_error_is_one_line_with_its_place() {
        let (fact, _) = wrong("[train]\nsteps = = 3\n");
        assert!(fact.starts_with("jobs/a.toml:2:") && !fact.contains('\n'), "{fact}");
    }
}
