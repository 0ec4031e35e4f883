//! A Slurm batch script.
//!
//! Before the time is over Slurm sends USR1 to the script, which asks the run to save, and puts the job back into the queue.
//! A cancelled job is asked in the same way and not put back; nor is one that is wrong or cannot fit, or whose time is all needed
//! for the stop.

use plimsoll_recover::ExitCode;

use crate::quote::shell;
use crate::{DeployError, Deployment, FINAL, RESTARTS};

/// What a start needs beside the time for its stop: loading, and a few steps.
const WORK_SECONDS: u64 = 300;
/// How much sooner than asked for Slurm may send its signal.
const SOONER_SECONDS: u64 = 60;
/// What to do where the time is too short.
const HINT: &str = "give sbatch a longer --time, or plimsoll deploy a shorter --stop-within";
/// Variables that any program wants: a list leaves out all others. Without the middle ones, `module load`, an environment of Python's,
/// and the rates that were measured would be lost. One that is not set does no harm.
const USUAL: [&str; 14] = [
    "HOME",
    "PATH",
    "USER",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "TMPDIR",
];

/// The script.
pub fn slurm(deployment: &Deployment) -> Result<String, DeployError> {
    let d = deployment;
    let mut out = String::from("#!/bin/bash\n");
    out += &d.head(&[
        "Start: sbatch THIS-FILE. Sites want more, such as --time and --partition; give them to sbatch.",
        &d.stopped_by("scancel --batch --signal=TERM JOBID (scancel alone waits as long as the site's KillWait)"),
    ]);
    out += &format!("#SBATCH --job-name={}\n#SBATCH --nodes=1\n#SBATCH --ntasks=1\n", d.name);
    out += &format!("#SBATCH --cpus-per-task={}\n", d.cores.max(1));
    out += &format!("# {}\n#SBATCH --mem={}M\n", crate::quote::comment(&d.memory.says()), d.memory.mib());
    if d.cards > 0 {
        out += &format!("#SBATCH --gres=gpu:{}\n", d.cards);
    }
    out += &format!("# {}\n", crate::quote::comment(&d.grace.says));
    out += &format!("#SBATCH --signal=B:USR1@{}\n", d.grace.seconds);
    out += "#SBATCH --requeue\n#SBATCH --open-mode=append\n";
    let asked = d.variables.iter().map(String::as_str).filter(|name| !USUAL.contains(name));
    let names: Vec<&str> = USUAL.into_iter().chain(asked).collect();
    out += &format!(
        "# By name; the values are those of the shell that submits.\n#SBATCH --export={}\n\n",
        names.join(",")
    );
    for (name, value) in &d.set {
        out += &format!("export {name}={}\n", shell(value));
    }
    out += &format!("cd -- {} || exit {}\n\n", shell(&d.folder), ExitCode::BadInput.code());
    out += &format!(
        "run='' told='' again='' early='' asked='' end=${{SLURM_JOB_END_TIME:-}}\n\
         # Once: a second request would cut the saving short.\n\
         ask() {{ woken=yes; [ -n \"$run\" ] && [ -z \"$told\" ] && told=yes && kill -TERM \"$run\"; }}\n\
         trap 'again=yes; [ -n \"$end\" ] || [ \"$SECONDS\" -ge {early} ] || early=yes; ask' USR1\n\
         trap 'asked=yes; ask' TERM INT\n\n",
        early = WORK_SECONDS - SOONER_SECONDS
    );
    let grace = d.grace.seconds;
    out += &format!(
        "# The stop is asked for {grace} s before the end, and up to a minute sooner. A start that is asked at once gets nothing done, and\n\
         # the next one would not either. Older Slurm does not tell the end; then a signal soon after the start shows it.\n\
         if [ -n \"$end\" ] && printf -v now '%(%s)T' -1 && [ $((end - now)) -lt {least} ]; then\n  \
           echo \"plimsoll: $((end - now)) s are left, and a stop alone may take {grace} s; {HINT}\" >&2\n  \
           exit {wrong}\n\
         fi\n\n",
        least = grace + WORK_SECONDS,
        wrong = ExitCode::BadInput.code()
    );
    let words: Vec<String> = std::iter::once(&d.program).chain(&d.words).map(|word| shell(word)).collect();
    out += &format!("{} &\nrun=$!\n", words.join(" \\\n  "));
    out += "[ -z \"$again$asked\" ] || ask\n\
            # A signal ends the waiting, not the run.\n\
            while :; do\n  woken=''\n  wait \"$run\"\n  code=$?\n  [ -n \"$woken\" ] || break\ndone\n\n";
    let last = FINAL.map(|code| code.code().to_string()).join("|");
    let stopped = ExitCode::Stopped.code();
    out += &format!(
        "# What somebody stopped stays so, however it ended.\n\
         back() {{ [ -n \"$asked\" ] || scontrol requeue \"$SLURM_JOB_ID\"; }}\n\
         a_few_times() {{ [ \"${{SLURM_RESTART_COUNT:-0}}\" -ge {RESTARTS} ] || back; }}\n\
         case $code in\n  \
           # Wrong, or it cannot fit: the next start would end the same.\n  \
           {last}) ;;\n  \
           # Saved: it goes on where it was. Not asked for: it gave way, or another process still had the run.\n  \
           {stopped}) if [ -z \"$again\" ]; then a_few_times\n     \
              elif [ -z \"$early\" ]; then back\n     \
              else echo \"plimsoll: asked to stop $SECONDS s after the start, so it is not queued again; {HINT}\" >&2; fi ;;\n  \
           # Killed from outside.\n  \
           129|1[3-9][0-9]) a_few_times ;;\n\
         esac\n\
         exit $code\n"
    );
    Ok(out)
}
