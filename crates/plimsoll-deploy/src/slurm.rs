//! A Slurm batch script.
//!
//! Before the time is over Slurm sends USR1 to the script, which asks the run to save, and puts the job back into the queue.
//! A cancelled job is asked in the same way and not put back; nor is one that is wrong or cannot fit.

use plimsoll_recover::ExitCode;

use crate::quote::shell;
use crate::{DeployError, Deployment, FINAL, RESTARTS};

/// Variables that any program wants.
const USUAL: [&str; 4] = ["HOME", "PATH", "USER", "LANG"];

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
    let names: Vec<&str> = USUAL.into_iter().chain(d.variables.iter().map(String::as_str)).collect();
    out += &format!(
        "# By name; the values are those of the shell that submits.\n#SBATCH --export={}\n\n",
        names.join(",")
    );
    for (name, value) in &d.set {
        out += &format!("export {name}={}\n", shell(value));
    }
    out += &format!("cd -- {} || exit {}\n\n", shell(&d.folder), ExitCode::BadInput.code());
    out += "run='' told='' again='' asked=''\n\
            # Once: a second request would cut the saving short.\n\
            ask() { woken=yes; [ -n \"$run\" ] && [ -z \"$told\" ] && told=yes && kill -TERM \"$run\"; }\n\
            trap 'again=yes; ask' USR1\n\
            trap 'again=; asked=yes; ask' TERM INT\n\n";
    let words: Vec<String> = std::iter::once(&d.program).chain(&d.words).map(|word| shell(word)).collect();
    out += &format!("{} &\nrun=$!\n", words.join(" \\\n  "));
    out += "[ -z \"$again$asked\" ] || ask\n\
            # A signal ends the waiting, not the run.\n\
            while :; do\n  woken=''\n  wait \"$run\"\n  code=$?\n  [ -n \"$woken\" ] || break\ndone\n\n";
    let last = FINAL.map(|code| code.code().to_string()).join("|");
    let stopped = ExitCode::Stopped.code();
    out += &format!(
        "case $code in\n  \
           # Wrong, or it cannot fit: the next start would end the same.\n  \
           {last}) ;;\n  \
           # Saved: it goes on where it was, unless somebody stopped it.\n  \
           {stopped}) [ -z \"$again\" ] || scontrol requeue \"$SLURM_JOB_ID\" ;;\n  \
           # Killed from outside.\n  \
           129|1[3-9][0-9]) [ \"${{SLURM_RESTART_COUNT:-0}}\" -ge {RESTARTS} ] || scontrol requeue \"$SLURM_JOB_ID\" ;;\n\
         esac\n\
         exit $code\n"
    );
    Ok(out)
}
