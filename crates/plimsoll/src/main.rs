//! The binary: what was said (args), what it means (settings), then a verb.

#![expect(dead_code, reason = "falls away as soon as every verb is wired; the compiler then asks to remove this")]

mod args;
mod job;
mod render;
mod settings;
mod verbs {
    pub mod probe;
}

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};
use render::Fail;
use settings::Settings;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => {
            // Help goes to stdout with 0, a wrong word to stderr with 2; a closed pipe is nobody's loss.
            let _ = said.print();
            return ExitCode::from(said.exit_code() as u8);
        }
    };
    match run(&cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            render::report(&fail);
            ExitCode::from(fail.exit as u8)
        }
    }
}

fn run(verb: &Verb) -> Result<(), Fail> {
    match verb {
        Verb::Probe(args) => verbs::probe::run(args),
        Verb::Plan(args) => render::data(Settings::resolve(&args.job)?.to_toml()),
        Verb::Train(args) => {
            let settings = Settings::resolve(&args.job)?;
            let folder = job::run_folder::choose(args.out.as_deref(), &settings.run_name())?;
            render::data(format!("{}\n{}", folder.display(), settings.to_toml()))
        }
        _ => Err(Fail::usage("this verb is not wired yet")),
    }
}
