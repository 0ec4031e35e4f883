//! The one list of a job's keys and the flag that says the same.
//!
//! Messages, origins and the resolved job file name settings by these keys; a test holds the list against the flags
//! that the command line has.

/// Key of a job file, flag.
pub const KEYS: &[(&str, &str)] = &[
    ("model.path", "--model"),
    ("model.init", "--init"),
    ("model.dropout", "--dropout"),
    ("model.train", "--train"),
    ("model.base", "--base"),
    ("data.train", "--data"),
    ("data.eval", "--eval"),
    ("data.columns.source", "--source"),
    ("data.columns.target", "--target"),
    ("data.max_len.source", "--max-source"),
    ("data.max_len.target", "--max-target"),
    ("data.max_len.tokens", "--max-len"),
    ("data.kind", "--kind"),
    ("data.packed", "--packed"),
    ("data.long", "--long"),
    ("data.shuffle", "--shuffle"),
    ("data.window", "--window"),
    ("data.memory", "--data-memory"),
    ("data.oversized", "--oversized"),
    ("data.unpack", "--unpack"),
    ("data.cache", "--data-cache"),
    ("train.effective_batch", "--effective-batch"),
    ("train.epochs", "--epochs"),
    ("train.steps", "--steps"),
    ("train.optimizer", "--optimizer"),
    ("train.optimizer.lr", "--lr"),
    ("train.schedule", "--schedule"),
    ("train.schedule.warmup_steps", "--warmup-steps"),
    ("train.precision", "--precision"),
    ("train.device", "--device"),
    ("train.compute", "--compute"),
    ("train.clip_norm", "--clip-norm"),
    ("train.eval_every", "--eval-every"),
    ("train.early_stop", "--early-stop"),
    ("train.save_every", "--save-every"),
    ("train.save_minutes", "--save-minutes"),
    ("train.keep", "--keep"),
    ("train.stop_within", "--stop-within"),
    ("train.max_skips", "--max-skips"),
    ("train.threads", "--threads"),
    ("train.seed", "--seed"),
    ("budget.ram", "--ram"),
    ("budget.vram", "--vram"),
    ("budget.disk", "--disk"),
    ("mirror.url", "--mirror"),
    ("mirror.rate", "--mirror-rate"),
    ("mirror.keep", "--mirror-keep"),
    ("pin.micro_batch", "--micro-batch"),
    ("pin.recompute", "--recompute"),
    ("pin.loss_chunk", "--loss-chunk"),
    ("pin.optimizer_in_backward", "--optimizer-in-backward"),
    ("pin.loader_threads", "--loader-threads"),
    ("pin.lstm_every", "--lstm-every"),
    ("pin.snapshot", "--snapshot"),
];

/// The flag of a key.
pub fn flag(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, flag)| *flag)
}

/// The table of a job file in which `name` is a key, such as `train` for `seed`.
pub fn home(name: &str) -> Option<&'static str> {
    KEYS.iter().filter_map(|(key, _)| key.rsplit_once('.')).find(|(_, last)| *last == name).map(|(table, _)| table)
}

/// The known name that `name` was most likely meant to be.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_key_has_its_flag_and_every_flag_of_a_job_its_key() {
        let cli = crate::args::Cli::command();
        let plan = cli.get_subcommands().find(|verb| verb.get_name() == "plan").unwrap();
        let mut flags: Vec<String> = plan
            .get_arguments()
            // Those of other people's trainers stand under a heading of their own and have no key.
            .filter(|arg| !arg.get_help_heading().is_some_and(|heading| heading.starts_with("Foreign")))
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .filter(|flag| !["--json", "--no-shuffle", "--svg", "--sweep"].contains(&flag.as_str()))
            .collect();
        let mut listed: Vec<String> = KEYS.iter().map(|(_, flag)| flag.to_string()).collect();
        flags.sort();
        listed.sort();
        assert_eq!(flags, listed);
    }

    #[test]
    fn a_slip_of_the_finger_finds_the_key_that_was_meant() {
        assert_eq!(nearest("effective_bacth", ["epochs", "effective_batch", "eval_every"]), Some("effective_batch"));
        assert_eq!(nearest("zzz", ["epochs", "effective_batch"]), None);
        assert_eq!(home("seed"), Some("train"));
    }
}
