//! `plimsoll deploy`: plans a job and writes the file that runs it elsewhere.
//!
//! What is decided here is what only the binary knows: the plan, the words that start the job and go on with it, the folders
//! that it needs. The rest is plimsoll-deploy's.

mod folders;
mod foreign;
mod native;
mod said;
mod wants;

use std::path::{Path, PathBuf};

use plimsoll_deploy::{Claim, Deployment, Grace, Kind, Limit, Name, Target, outermost, render as text_for, secret};
use plimsoll_machine::Bytes;
use plimsoll_recover::atomic_write;

use crate::args::{DeployArgs, DeployTarget};
use crate::render::{self, Fail, OrFail};

use folders::Folders;

/// What a plan says of a job, before it is known who runs it.
struct Planned {
    kind: Kind,
    /// A name for it, where nobody gave one.
    name: String,
    notes: Vec<String>,
    /// The verb and its words, without the run folder.
    words: Vec<String>,
    /// Words that must stand last, behind `--`.
    command: Vec<String>,
    folder: PathBuf,
    image: String,
    memory: Limit,
    shm: Option<Bytes>,
    cards: u64,
    cores: u64,
    grace: Grace,
    saves: bool,
    urls: Vec<String>,
    folders: Folders,
}

/// Plans, then prints or writes the file.
pub fn run(args: &DeployArgs) -> Result<(), Fail> {
    if let Some(file) = args.file.as_deref().filter(|file| file.exists() && !args.force) {
        let fact = format!("`{}` is there already", file.display());
        return Err(Fail::usage(fact).hint("name another file, or give `--force` to write over it"));
    }
    let target = match args.runner {
        DeployTarget::Compose => Target::Compose,
        DeployTarget::Systemd => Target::Systemd,
        DeployTarget::Slurm => Target::Slurm,
        DeployTarget::K8s => Target::K8s,
    };
    heard(args, target)?;
    let foreign = !args.command.is_empty() || args.foreign.profile.is_some();
    let planned = if foreign { foreign::planned(args)? } else { native::planned(args)? };
    let deployment = deployment(args, target, planned)?;
    let text = text_for(target, &deployment).or_usage()?;
    refuse_secrets(&deployment, &text)?;
    tell(&deployment);
    if args.json {
        render::json(&serde_json::json!({ "target": target, "deployment": deployment, "file": text }))?;
    }
    match &args.file {
        Some(file) => {
            atomic_write(file, text.as_bytes())?;
            render::talk(format!("wrote {}", file.display()));
            Ok(())
        }
        None if args.json => Ok(()),
        None => render::data(text),
    }
}

/// Refuses flags that the file of this target has no use for.
fn heard(args: &DeployArgs, target: Target) -> Result<(), Fail> {
    let (image, claim, secret) = (args.image.is_some(), !args.claim.is_empty(), args.secret.is_some());
    let in_vain = [
        ("--image", image && target.has_home(), "`compose` and `k8s`"),
        ("--claim", claim && target != Target::K8s, "`k8s`"),
        ("--secret", secret && target != Target::K8s, "`k8s`"),
    ];
    match in_vain.into_iter().find(|(_, in_vain, _)| *in_vain) {
        Some((flag, _, targets)) => Err(Fail::usage(format!("`{flag}` is for {targets} alone"))),
        None => Ok(()),
    }
}

fn deployment(args: &DeployArgs, target: Target, planned: Planned) -> Result<Deployment, Fail> {
    let Planned {
        kind,
        name,
        notes,
        words,
        command,
        folder,
        image,
        memory,
        shm,
        cards,
        cores,
        grace,
        saves,
        urls,
        mut folders,
    } = planned;
    let name =
        Name::near(args.name.as_deref().unwrap_or(&name)).or_usage().map_err(|fail| fail.hint("give `--name`"))?;
    let run = args.out.clone().unwrap_or_else(|| Path::new("runs").join(name.as_str()));
    let run = folder.join(run);
    let above = run.parent().unwrap_or(Path::new("/")).to_path_buf();
    let in_container = !target.has_home();
    folders.above(&run)?;
    if let Some(path) = folders.bare.first().filter(|_| in_container) {
        let fact = format!("`{}` would need `/` itself mounted, which no container can have", path.display());
        return Err(Fail::usage(fact).hint("take a folder below it; nothing was written"));
    }
    let mut notes = notes;
    if kind == Kind::Foreign && in_container {
        notes.push("The image needs the trainer and plimsoll in it; see docs/deploy.md.".to_string());
    }
    let (run, above, folder) = (text(&run)?, text(&above)?, text(&folder)?);
    let mut words = words;
    words.extend(["--out".to_string(), run, "--go-on".to_string()]);
    if !command.is_empty() {
        words.push("--".to_string());
        words.extend(command);
    }
    let mut variables = secret::variables_for(target, urls.iter().map(String::as_str));
    for said in &args.env {
        let name = secret::variable(said).or_usage()?;
        if !variables.contains(&name) {
            variables.push(name);
        }
    }
    // A container has no home; what is measured once is kept beside the runs.
    let kept = |name: &str, folder: &str| (name.to_string(), format!("{}/{folder}", above.trim_end_matches('/')));
    let set = if in_container {
        vec![kept("XDG_CACHE_HOME", ".cache"), kept("XDG_STATE_HOME", ".state")]
    } else {
        Vec::new()
    };
    let program = crate::guard::program().or_failed()?;
    let claims = args.claim.iter().map(|said| Claim::parse(said).or_usage()).collect::<Result<Vec<_>, Fail>>()?;
    Ok(Deployment {
        kind,
        notes,
        program: text(&program)?,
        words,
        folder,
        image: args.image.clone().unwrap_or(image),
        memory,
        shm,
        cards,
        cores,
        grace,
        saves,
        variables,
        set,
        mounts: outermost(folders.mounts),
        owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        claims,
        secret: args.secret.clone().unwrap_or_else(|| name.to_string()),
        name,
    })
}

/// A path as text; those that are none are refused.
fn text(path: &Path) -> Result<String, Fail> {
    let text = path.to_str().map(str::to_string);
    text.ok_or_else(|| Fail::usage(format!("`{}` is not UTF-8, which the file must be", path.display())))
}

/// The last look: neither a word nor the whole file holds what is nobody's business.
fn refuse_secrets(deployment: &Deployment, text: &str) -> Result<(), Fail> {
    let variables =
        || std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let words = deployment.words.iter().map(String::as_str).chain([text]);
    secret::refuse(words, variables()).or_usage().map_err(|fail| {
        fail.hint("pass it as a variable, `--env NAME`, and let the program read it from there; nothing was written")
    })
}

fn tell(deployment: &Deployment) {
    let Deployment { memory, grace, cards, mounts, .. } = deployment;
    render::talk(format!("memory limit {} ({})", memory.bytes(), memory.says()));
    render::talk(format!("a stop gets {} s ({})", grace.seconds, grace.says));
    if *cards > 0 {
        render::talk(format!("cards: {cards}"));
    }
    for mount in mounts.iter().filter(|mount| mount.written && !Path::new(&mount.path).is_dir()) {
        render::talk(format!("`{}` must be there, and be yours, before it starts", mount.path));
    }
}
