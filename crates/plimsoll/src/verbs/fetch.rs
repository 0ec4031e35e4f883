//! The download half of `plimsoll resume URL`: a mirrored run becomes a run folder on this machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_mirror::Report;
use plimsoll_model::{ModelFolder, WeightFiles};
use plimsoll_recover::{RunLock, atomic_write};

use super::transfer::{self, Transfer};
use crate::args::{Init, JobFlags, ResumeArgs};
use crate::job::paths::is_description;
use crate::render::{self, Exit, Fail, OrFail};
use crate::settings::Settings;

/// Whether what `resume` was given is the URL of a mirror.
pub fn is_url(run: &Path) -> bool {
    run.to_str().is_some_and(|text| text.contains("://"))
}

/// Brings a mirrored run here and makes its job one of this machine. Returns the run folder, ready to be resumed.
pub fn fetch(args: &ResumeArgs) -> Result<PathBuf, Fail> {
    let url = args.run.to_str().unwrap_or_default().trim_end_matches('/');
    let out = match &args.out {
        Some(out) => out.clone(),
        None => folder_of(url)?,
    };
    let made = !out.exists();
    fs_err::create_dir_all(&out).or_usage()?;
    let lock = RunLock::take(&out, Duration::ZERO).or_usage()?;
    let transfer = Transfer::shown();
    let mut report = |report: Report| {
        if let Report::Progress { step, done, total } = report {
            transfer.progress(step, done, total);
        }
        if let Some(line) = transfer::line(&report) {
            transfer.note(&line);
        }
    };
    let fetched = plimsoll_mirror::fetch(url, &out, &mut report).map_err(transfer::fail);
    drop(transfer);
    let fetched = fetched.inspect_err(|_| {
        if made {
            // Only where nothing came: a folder that is not empty stays, for the next try.
            let _ = fs_err::remove_file(out.join(".lock")).and_then(|()| fs_err::remove_dir(&out));
        }
    })?;
    render::talk(format!("the checkpoint of step {} is in {}", fetched.step, out.display()));
    adapt(args, &out, fetched.base.as_deref(), fetched.step)?;
    drop(lock);
    Ok(out)
}

/// The folder for a run at `url`: its last part, here.
fn folder_of(url: &str) -> Result<PathBuf, Fail> {
    let path = url.split_once("://").map_or("", |(_, path)| path);
    match path.rsplit_once('/').map(|(_, name)| name).filter(|name| !name.is_empty() && *name != ".." && *name != ".") {
        Some(name) => Ok(PathBuf::from(name)),
        None => {
            Err(Fail::usage(format!("`{url}` does not name a folder to bring the run to")).hint("give `--out RUN`"))
        }
    }
}

/// Makes the paths of the job those of this machine.
fn adapt(args: &ResumeArgs, out: &Path, base: Option<&Path>, step: u64) -> Result<(), Fail> {
    let written = Settings::from_run(out)?;
    let mut flags = JobFlags {
        job: Some(out.join("job.toml")),
        model: args.model.clone(),
        data: args.data.clone(),
        eval: args.eval.clone(),
        ..JobFlags::default()
    };
    if is_description(&written.model) {
        flags.model = args.model.clone().or(Some(written.model));
    } else if args.model.is_none() && !written.model.join("config.json").is_file() {
        let Some(base) = base else {
            let fact = format!(
                "the model `{}` is not here, and its small files are not at the mirror",
                written.model.display()
            );
            return Err(Fail::usage(fact).hint("say where it is: `--model DIR`"));
        };
        same_model(base, &out.join(format!("checkpoints/step-{step}/weights.safetensors")))?;
        // Its weights come from the checkpoint; config and tokenizer are all that is read of it.
        flags.model = Some(base.to_path_buf());
        flags.init = Some(Init::Random);
    }
    let settings = Settings::resolve(&flags).map_err(|fail| match fail.hint.is_some() {
        true => fail,
        false => fail.hint("say where it is on this machine: `--data FILE`, `--eval FILE`, `--model DIR`"),
    })?;
    atomic_write(&out.join("job.toml"), settings.to_toml().as_bytes())?;
    Ok(())
}

/// A model whose weights decided what its config leaves open (a head of its own) cannot be known by its config alone.
fn same_model(base: &Path, weights: &Path) -> Result<(), Fail> {
    let folder = ModelFolder::open(base).or_usage()?;
    let params = folder.spec().params();
    let weights = WeightFiles::open_file(weights).or_usage()?;
    let fits = weights.check(&params).map(|()| weights.extras(&params).is_empty());
    if !fits.is_ok_and(|all| all) {
        let fact = "the checkpoint has other weights than the model's config names; its weights decided that";
        return Err(Fail::new(Exit::BadInput, anyhow::anyhow!(fact)).hint("bring the model's folder: `--model DIR`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_told_from_a_folder() {
        assert!(is_url(Path::new("s3://bucket/run")));
        assert!(!is_url(Path::new("runs/chat-1")));
    }

    #[test]
    fn the_run_comes_to_the_last_part_of_its_url() {
        assert_eq!(folder_of("s3://bucket/some/run-1").unwrap(), Path::new("run-1"));
        assert!(folder_of("s3://bucket").is_err());
        assert!(folder_of("s3://bucket/..").is_err());
    }
}
