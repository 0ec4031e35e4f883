//! The paths of a job: what they are relative to, which files a pattern means, and whether they are there. Files are
//! looked for, never opened; files elsewhere (URLs) are listed where a pattern asks for it, and else left to whoever opens
//! them.

use std::fmt;
use std::path::{Path, PathBuf};

use plimsoll_data::{expand_url, is_prepared, refuse_secrets, remote_url, unfinished};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::Job;
use super::resolve::Resolver;
use crate::args::JobFlags;
use crate::elsewhere;
use crate::render::{self, Fail, OrFail};
use crate::settings::Origin;

/// What to do about paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// Expand patterns, and refuse what does not exist: a new run.
    Find,
    /// Take them as they are: a run folder outlives its data, and whoever reads a file says that it is gone.
    AsWritten,
}

/// Files or patterns: a list, or a single one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files(pub Vec<String>);

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Files, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Files;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of files like [\"data/*.jsonl\"]")
            }

            fn visit_str<E>(self, text: &str) -> Result<Files, E> {
                Ok(Files(vec![text.to_string()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Files, A::Error> {
                let mut files = Vec::new();
                while let Some(file) = list.next_element()? {
                    files.push(file);
                }
                Ok(Files(files))
            }
        }
        from.deserialize_any(Form)
    }
}

impl Resolver<'_> {
    pub(super) fn model_folder(&mut self, job: &Job, flags: &JobFlags) -> Result<PathBuf, Fail> {
        let flag = flags.model.as_deref().map(|path| text_of("--model", path)).transpose()?;
        let Some(path) = self.pick("model.path", flag, job.model.path.clone()) else {
            return Err(Fail::usage("no model is named")
                .hint("plimsoll train --model DIR --data FILE, or `path` in the `[model]` table of a job file"));
        };
        let path = self.anchored("model.path", &path)?;
        if is_description(&path) {
            return match self.paths == Paths::AsWritten || path.is_file() {
                true => Ok(path),
                false => Err(self.refuse("model.path", format!("= `{}` does not exist", path.display()))),
            };
        }
        if self.paths == Paths::Find && !path.is_dir() {
            let what = if path.exists() { "is not a folder" } else { "does not exist" };
            let fail = self.refuse("model.path", format!("= `{}` {what}", path.display()));
            return Err(fail.hint("expected a Hugging Face folder with `config.json` and `tokenizer.json`"));
        }
        Ok(path)
    }

    pub(super) fn train_files(&mut self, job: &Job, flags: &JobFlags) -> Result<Vec<PathBuf>, Fail> {
        let said: Vec<String> = flags.data.iter().map(|path| text_of("--data", path)).collect::<Result<_, _>>()?;
        if let Some(job) = said.iter().find(|text| text.ends_with(".toml")) {
            let fail = Fail::usage(format!("`--data` takes data files, found `{job}`"));
            return Err(fail.hint("put the job file before `--data`"));
        }
        let flag = Some(Files(said)).filter(|said| !said.0.is_empty());
        let patterns = self.pick("data.train", flag, job.data.train.clone()).unwrap_or_default().0;
        if patterns.is_empty() {
            let fail = self.refuse("data.train", "names no training data");
            return Err(fail.hint("give `--data FILE`, or `train = [\"FILE\"]` in the `[data]` table of a job file"));
        }
        self.found("data.train", &patterns)
    }

    /// The files that patterns mean, each once.
    pub(super) fn found(&self, key: &'static str, patterns: &[String]) -> Result<Vec<PathBuf>, Fail> {
        let mut files = Vec::new();
        for pattern in patterns {
            let path = self.anchored(key, pattern)?;
            let elsewhere = remote_url(&path).filter(|_| self.paths == Paths::Find);
            if let Some(url) = elsewhere {
                // A new run keeps the list: what is added later is not part of it.
                let found = expand_url(url, &**elsewhere::files(|told| render::talk(told))).or_usage()?;
                if let Some(twice) = found.iter().find(|file| files.contains(*file)) {
                    return Err(self.refuse("data.train", format!("names `{}` twice", twice.display())));
                }
                files.extend(found);
                continue;
            }
            let as_named = self.paths == Paths::AsWritten || path.exists();
            let found = if as_named { vec![path.clone()] } else { self.matching(key, &path)? };
            if found.is_empty() {
                return Err(self.refuse(key, format!("= `{}` matches no file", path.display())));
            }
            for file in found {
                if unfinished(&file) {
                    let what = format!("= `{}`: these data are not prepared to their end", file.display());
                    return Err(self.refuse(key, what).hint("run the same `plimsoll data prepare` again, it goes on"));
                }
                if file.is_dir() && !is_prepared(&file) {
                    let fail = self.refuse(key, format!("= `{}` is a folder; expected a file", file.display()));
                    return Err(fail.hint(format!("name its files, such as `{}/*.jsonl`", file.display())));
                }
                if files.contains(&file) {
                    return Err(self.refuse(key, format!("names `{}` twice", file.display())));
                }
                files.push(file);
            }
        }
        Ok(files)
    }

    /// Files that a pattern matches, in the order of their names.
    fn matching(&self, key: &'static str, pattern: &Path) -> Result<Vec<PathBuf>, Fail> {
        let text = pattern.to_string_lossy();
        let paths = glob::glob(&text)
            .map_err(|error| self.refuse(key, format!("= `{text}` is not a pattern: {}", error.msg)))?;
        let mut found = Vec::new();
        for path in paths {
            let path = path.map_err(|error| self.refuse(key, format!("cannot be looked for: {error}")))?;
            if path.is_file() {
                found.push(path);
            }
        }
        Ok(found)
    }

    pub(super) fn eval_file(&mut self, job: &Job, flags: &JobFlags) -> Result<Option<PathBuf>, Fail> {
        let flag = flags.eval.as_deref().map(|path| text_of("--eval", path)).transpose()?;
        let Some(path) = self.pick("data.eval", flag, job.data.eval.clone()) else {
            return Ok(None);
        };
        let path = self.anchored("data.eval", &path)?;
        remote_url(&path).map(refuse_secrets).transpose().or_usage()?;
        if self.paths == Paths::Find && !path.is_file() && remote_url(&path).is_none() {
            let what = if path.exists() { "is not a file" } else { "does not exist" };
            let fail = self.refuse("data.eval", format!("= `{}` {what}", path.display()));
            return Err(match is_prepared(&path) {
                true => fail.hint("evaluation reads texts: name the original files"),
                false => fail,
            });
        }
        Ok(Some(path))
    }

    /// A path as an absolute one: in a job file it starts from the file's folder, on the command line from here.
    fn anchored(&self, key: &'static str, path: &str) -> Result<PathBuf, Fail> {
        if path.is_empty() {
            return Err(self.refuse(key, "is empty; expected a path"));
        }
        if remote_url(Path::new(path)).is_some() {
            return Ok(PathBuf::from(path));
        }
        let path = match (self.origins.get(key), self.file) {
            (Some(Origin::Job { .. }), Some(file)) => file.folder().join(path),
            _ => PathBuf::from(path),
        };
        let path =
            std::path::absolute(&path).map_err(|error| self.refuse(key, format!("= `{}`: {error}", path.display())))?;
        match path.to_str() {
            Some(_) => Ok(path),
            // A run folder's job.toml could not hold it.
            None => Err(self.refuse(key, format!("= `{}` is not UTF-8", path.display()))),
        }
    }
}

/// Whether a path is that of a model's description, which has no weights.
pub fn is_description(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// A path as text, which a job file could hold too.
fn text_of(flag: &str, path: &Path) -> Result<String, Fail> {
    path.to_str()
        .map(str::to_string)
        .ok_or_else(|| Fail::usage(format!("`{flag}` = `{}` is not UTF-8", path.display())))
}
