//! The binary: what was said (args), what it means (settings), then a verb.

mod args;
mod card_rates;
mod doctor;
mod elsewhere;
mod guard;
mod heap;
mod inference;
mod job;
mod launch;
mod prepare;
mod rates;
mod render;
mod settings;
mod swap_facts;
mod verbs;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Verb};
use render::Fail;

#[global_allocator]
static ALLOCATOR: heap::Counted = heap::Counted;

fn main() -> ExitCode {
    heap::pin_allocator();
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
            fail.exit.into()
        }
    }
}

fn run(verb: &Verb) -> Result<(), Fail> {
    // What these hold is planned to the page.
    if matches!(verb, Verb::Plan(_) | Verb::Deploy(_) | Verb::Train(_) | Verb::Resume(_) | Verb::Worker(_)) {
        plimsoll_recover::cache_code();
    }
    match verb {
        Verb::Probe(args) => verbs::probe::run(args),
        Verb::Plan(args) => verbs::plan::run(args),
        Verb::Train(args) => verbs::train::train(args),
        Verb::Run(args) => verbs::run::run(args),
        Verb::Resume(args) => verbs::train::resume(args),
        Verb::Generate(args) => verbs::generate::run(args),
        Verb::Data(args) => verbs::data::run(args),
        Verb::Eval(args) => verbs::eval::run(args),
        Verb::Merge(args) => verbs::merge::run(args),
        Verb::Checkpoints(args) => verbs::checkpoints::run(args),
        Verb::Watch(args) => verbs::watch::run(args),
        Verb::Check(args) => verbs::check::run(args),
        Verb::Doctor(args) => verbs::doctor::run(args),
        Verb::Logs(args) => verbs::logs::run(args),
        Verb::Mirror(args) => verbs::mirror::run(args),
        Verb::Deploy(args) => verbs::deploy::run(args),
        Verb::Remote(args) => verbs::remote::run(args),
        Verb::RemoteAgent(args) => verbs::remote_agent::run(args),
        Verb::Worker(args) => worker::run(args),
    }
}
