//! The words of `plimsoll run` again, from what they were understood as: what another machine is told.

use crate::args::RunArgs;

/// Flags and command; reading them gives the same [`RunArgs`].
pub fn run_words(args: &RunArgs) -> Vec<String> {
    // Taken apart, so that a flag that is added cannot be forgotten here.
    let RunArgs {
        trainer,
        ram,
        vram,
        shape,
        length,
        set,
        allow,
        knob,
        resume_flag,
        checkpoints,
        as_is,
        stall_after,
        stop_within,
        out,
        go_on,
        quiet,
        command,
    } = args;
    let mut words = Vec::new();
    let mut say = |flag: &str, value: String| words.push(format!("{flag}={value}"));
    let path = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
    trainer.iter().for_each(|name| say("--trainer", name.clone()));
    ram.iter().for_each(|bytes| say("--ram", bytes.0.to_string()));
    vram.iter().for_each(|bytes| say("--vram", bytes.0.to_string()));
    shape.iter().for_each(|shape| say("--shape", path(shape)));
    length.iter().for_each(|length| say("--length", length.to_string()));
    set.iter().for_each(|pair| say("--set", pair.clone()));
    allow.iter().for_each(|rung| say("--allow", rung.clone()));
    knob.iter().for_each(|pair| say("--knob", pair.clone()));
    resume_flag.iter().for_each(|flag| say("--resume-flag", flag.clone()));
    checkpoints.iter().for_each(|pattern| say("--checkpoints", pattern.clone()));
    say("--stall-after", stall_after.to_string());
    stop_within.iter().for_each(|seconds| say("--stop-within", seconds.to_string()));
    out.iter().for_each(|out| say("--out", path(out)));
    words.extend(
        [(*as_is, "--as-is"), (*go_on, "--go-on"), (*quiet, "--quiet")]
            .iter()
            .filter(|(said, _)| *said)
            .map(|(_, f)| f.to_string()),
    );
    words.push("--".to_string());
    words.extend(command.iter().cloned());
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    fn read(words: &[String]) -> RunArgs {
        let all = ["plimsoll", "run"].into_iter().map(str::to_string).chain(words.iter().cloned());
        match Cli::try_parse_from(all).unwrap().verb {
            Verb::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_words_mean_again_what_they_meant() {
        let said = "--trainer generic --ram 12GiB --vram 3000 --shape a/config.json --length 9 --set batch=4 --set workers=2 \
                    --allow batch,length=8 --knob batch=--bs --resume-flag --load --checkpoints out/*.pt --as-is \
                    --stall-after 60 --stop-within 5 --out {run} --go-on --quiet -- ./train --bs 8 --ram x --";
        let first = read(&said.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let again = read(&run_words(&first));
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
        let plain = read(&["--".to_string(), "a b".to_string(), "'c'".to_string()]);
        assert_eq!(format!("{plain:?}"), format!("{:?}", read(&run_words(&plain))));
    }
}
