//! Where the parts of a command are, which trainer it is, and what launches it.
//!
//! `[wrapper words] program [its words] script [script words]`: programs are known by name, wrappers (`env X=1`,
//! `srun -N 1`, `uv run`) by what they may stand before. `-m` names a module behind Python and its launchers alone: it is
//! memory to `numactl` and a distribution to `srun`.

use crate::{LaunchError, Shelf, Trainer};

use super::flags;

/// Programs that run the program that their words name.
pub(crate) const WRAPPERS: [&str; 40] = [
    "env",
    "nohup",
    "setsid",
    "time",
    "nice",
    "ionice",
    "chrt",
    "stdbuf",
    "unbuffer",
    "timeout",
    "numactl",
    "taskset",
    "sudo",
    "doas",
    "systemd-run",
    "srun",
    "mpirun",
    "mpiexec",
    "uv",
    "poetry",
    "pdm",
    "pipenv",
    "rye",
    "hatch",
    "pixi",
    "conda",
    "mamba",
    "micromamba",
    "apptainer",
    "singularity",
    "docker",
    "podman",
    "nsys",
    "ncu",
    "strace",
    "perf",
    "py-spy",
    "memray",
    "xvfb-run",
    "catchsegv",
];
pub(crate) const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "fish", "ash"];

/// Where the parts of a command are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// The program that is run.
    pub program: usize,
    /// The first word behind it and its own verb or module: `accelerate launch`, `python -m torch.distributed.run`.
    pub own: usize,
    /// The script or module.
    pub script: Option<usize>,
    /// Whether that is a module.
    pub module: bool,
    /// The launcher, by its place among those that were given.
    pub launcher: Option<usize>,
}

/// The last part of a path.
pub(crate) fn name_of(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Whether a word runs Python: `python`, `/usr/bin/python3.12`.
pub(crate) fn is_python(word: &str) -> bool {
    let version = |rest: &str| rest.trim_end_matches('t').chars().all(|c| c.is_ascii_digit() || c == '.');
    let name = name_of(word);
    name.strip_prefix("python").or(name.strip_prefix("pypy")).is_some_and(version)
}

/// How many words at `at` are the name of a launcher, and which launcher's.
fn launcher_at(words: &[String], at: usize, launchers: &[Trainer]) -> Option<(usize, usize)> {
    launchers.iter().enumerate().find_map(|(which, one)| {
        one.recognise.programs.iter().find_map(|text| {
            let wanted: Vec<&str> = text.split_whitespace().collect();
            let found = words.get(at..at + wanted.len())?;
            let same =
                name_of(&found[0]) == *wanted.first()? && found[1..].iter().zip(&wanted[1..]).all(|(a, b)| a == b);
            same.then_some((which, wanted.len()))
        })
    })
}

/// The place of the program: the first known name that is no flag's value; behind a wrapper also one that may be.
fn program(words: &[String], launchers: &[Trainer]) -> usize {
    let wrapped = words.first().is_some_and(|first| WRAPPERS.contains(&name_of(first)));
    let script = words.iter().position(|word| word.ends_with(".py"));
    let known = |at: &usize| {
        let word = &words[*at];
        let plain = !word.starts_with('-') && !word.contains('=');
        plain && (is_python(word) || SHELLS.contains(&name_of(word)) || launcher_at(words, *at, launchers).is_some())
    };
    let free = |at: &usize| match at.checked_sub(1).map(|before| words[before].as_str()) {
        None | Some("--") => true,
        Some(before) => !before.starts_with('-') || before.contains('='),
    };
    // A program that we do not know may have any words; a known one among them counts where it has a script to run.
    let runs = |at: &usize| *at == 0 || wrapped || script.is_some() || words.get(at + 1).is_some_and(|w| w == "-m");
    let all: Vec<usize> = (0..script.unwrap_or(words.len())).filter(known).filter(runs).collect();
    let found = all.iter().find(|at| free(at)).or(all.first().filter(|_| wrapped));
    let behind = || words.iter().position(|word| word == "--").filter(|_| wrapped).map(|at| at + 1);
    found.copied().or_else(behind).filter(|at| *at < words.len()).unwrap_or(0)
}

/// Takes a command apart.
pub(super) fn parts(words: &[String], launchers: &[Trainer]) -> Parts {
    let program = program(words, launchers);
    let parts = Parts { program, own: program + 1, ..Parts::default() };
    let Some(first) = words.get(program) else { return parts };
    if let Some((which, length)) = launcher_at(words, program, launchers) {
        return launched(words, Parts { own: program + length, launcher: Some(which), ..parts });
    }
    if is_python(first) {
        return interpreted(words, parts, launchers);
    }
    if SHELLS.contains(&name_of(first)) {
        return parts;
    }
    let wrapped = WRAPPERS.contains(&name_of(&words[0]));
    let script = words.iter().position(|word| word.ends_with(".py"));
    Parts { script: script.filter(|at| wrapped || *at == program), ..parts }
}

/// What Python runs: its own options end at the script, at `-m` or at `-c`.
fn interpreted(words: &[String], parts: Parts, launchers: &[Trainer]) -> Parts {
    let mut at = parts.own;
    while let Some(word) = words.get(at) {
        match word.as_str() {
            "-W" | "-X" | "--check-hash-based-pycs" => at += 2,
            // Short options may stand together: `-um`.
            short if short.starts_with('-') && !short.starts_with("--") && short.ends_with('m') => {
                let Some(module) = words.get(at + 1) else { return parts };
                let which = launchers.iter().position(|one| one.recognise.modules.contains(module));
                return match which {
                    Some(_) => launched(words, Parts { own: at + 2, launcher: which, ..parts }),
                    None => Parts { script: Some(at + 1), module: true, ..parts },
                };
            }
            short if short.starts_with('-') && !short.starts_with("--") && short.ends_with('c') => return parts,
            option if option.starts_with('-') => at += 1,
            // A launcher's own script: `python /usr/bin/torchrun`.
            _ => match launcher_at(words, at, launchers) {
                Some((which, length)) => {
                    return launched(words, Parts { own: at + length, launcher: Some(which), ..parts });
                }
                None => return Parts { script: Some(at), ..parts },
            },
        }
    }
    parts
}

/// What a launcher runs: the first script among its words, the module after `-m`, the program after `--no-python`.
fn launched(words: &[String], parts: Parts) -> Parts {
    for at in parts.own..words.len() {
        let next = words.get(at + 1).filter(|next| !next.starts_with('-')).map(|_| at + 1);
        match words[at].as_str() {
            "-m" | "--module" if next.is_some() => return Parts { script: next, module: true, ..parts },
            "--no-python" | "--no_python" if next.is_some() => return Parts { script: next, ..parts },
            word if word.ends_with(".py") => return Parts { script: Some(at), ..parts },
            _ => {}
        }
    }
    parts
}

/// The launcher and the trainer of a command; `named` outweighs what is recognised.
pub(super) fn recognise(
    words: &[String],
    parts: Parts,
    launchers: &[Trainer],
    source: &str,
    shelf: &Shelf,
    named: Option<&str>,
) -> Result<(Option<Trainer>, Trainer), LaunchError> {
    let named = named.map(|name| shelf.get(name)).transpose()?;
    let launcher = parts.launcher.map(|which| launchers[which].clone());
    match named {
        Some(one) if !one.launcher => Ok((launcher, one)),
        // A launcher that was named is the launcher; what it launches is looked for all the same.
        named => {
            let found = best(&shelf.all()?, words, parts, source);
            Ok((named.or(launcher), found.map_or_else(|| shelf.get("generic"), Ok)?))
        }
    }
}

/// The trainer with the strongest mark: a module outweighs a flag, a flag the script's text; one that builds on another
/// outweighs it.
fn best(all: &[Trainer], words: &[String], parts: Parts, source: &str) -> Option<Trainer> {
    let behind = parts.script.map_or(parts.program, |script| script + 1);
    let score = |one: &Trainer| {
        let module = parts.script.filter(|_| parts.module).is_some_and(|at| one.recognise.modules.contains(&words[at]));
        let flags = one.recognise.flags.iter().any(|flag| !flags::find(words, behind..words.len(), flag).is_empty());
        let text = one.recognise.source.iter().any(|mark| source.contains(mark.as_str()));
        4 * u32::from(module) + 2 * u32::from(flags) + u32::from(text)
    };
    let deeper = |one: &Trainer| u32::from(one.base.is_some());
    let found = all.iter().filter(|one| !one.launcher && score(one) > 0);
    found.max_by_key(|one| (deeper(one) * score(one).min(1), score(one))).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_is_known_by_its_whole_name() {
        for word in ["python", "python3", "/opt/bin/python3.13t", "pypy3"] {
            assert!(is_python(word), "{word}");
        }
        for word in ["python_prof", "pythonw.sh", "ipython", "py"] {
            assert!(!is_python(word), "{word}");
        }
    }
}
