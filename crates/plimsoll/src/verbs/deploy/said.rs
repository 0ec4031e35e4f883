//! The flags that were given, once more as words: so that what is started elsewhere is what was asked for here.

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, CommandFactory};

use crate::args::Cli;
use crate::render::Fail;

/// What was said to `deploy`.
pub struct Said(ArgMatches);

impl Said {
    /// By this process's command line, which has been read once without a complaint.
    pub fn again() -> Result<Said, Fail> {
        let unread = || Fail::usage("the command line cannot be read a second time");
        let matches = Cli::command().try_get_matches_from(std::env::args_os()).map_err(|_| unread())?;
        matches.subcommand().map(|(_, said)| Said(said.clone())).ok_or_else(unread)
    }

    /// The flags of `T` that were given, as `--name=value`; `wanted` picks by name.
    pub fn flags<T: Args>(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, Fail> {
        let mut words = Vec::new();
        for arg in T::augment_args(Command::new("said")).get_arguments() {
            let Some(long) = arg.get_long().filter(|long| wanted(long)) else { continue };
            let id = arg.get_id().as_str();
            if self.0.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                words.push(format!("--{long}"));
                continue;
            }
            for value in self.0.get_raw(id).into_iter().flatten() {
                let value =
                    value.to_str().ok_or_else(|| Fail::usage(format!("the value of `--{long}` is not UTF-8")))?;
                words.push(format!("--{long}={value}"));
            }
        }
        Ok(words)
    }
}
