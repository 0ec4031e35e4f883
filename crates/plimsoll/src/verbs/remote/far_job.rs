//! A job as another machine gets it: which files it needs, where they will be there, and its settings with those paths.
//!
//! Invariant: what was said is sent, key by key, and nothing else; what nobody said is answered by the far side, which runs
//! the same program. So every setting can be compared with what arrives.

use std::path::{Path, PathBuf};

use plimsoll_remote::echo::{Flat, differences, flat};
use plimsoll_remote::push::Item;
use plimsoll_remote::select::{Excludes, OTHER_WEIGHTS, files};
use plimsoll_remote::{FarPath, RemoteError, digest_of};
use toml::Value;

use super::{failed, far};
use crate::args::Init;
use crate::job::write::inline;
use crate::render::{Fail, OrFail};
use crate::settings::{Origin, Settings};

/// Settings that data and machine answer where nobody said them.
const OPEN: &[&str] = &[
    "data.kind",
    "data.columns.source",
    "data.columns.target",
    "data.max_len.source",
    "data.max_len.target",
    "data.max_len.tokens",
    "train.threads",
];

/// A job on its way.
pub struct FarJob {
    /// What runs of it are called.
    pub name: String,
    /// Files that it needs.
    pub items: Vec<Item>,
    entries: Vec<Sent>,
}

/// A setting; paths in it are below the far folder where they begin with [`HERE`].
struct Sent {
    key: &'static str,
    value: Value,
    said: bool,
}

/// Stands for the far folder until it is known.
const HERE: &str = "\u{1}";

impl FarJob {
    /// Of settings whose files are here.
    pub fn of(settings: &Settings, exclude: &[String]) -> Result<FarJob, Fail> {
        let mut job = FarJob { name: fair_name(&settings.run_name()), items: Vec::new(), entries: Vec::new() };
        let mut left_out: Vec<String> = OTHER_WEIGHTS.iter().map(|name| name.to_string()).collect();
        if settings.init == Init::Random {
            left_out.push("*.safetensors".to_string());
        }
        left_out.extend_from_slice(exclude);
        let model = Excludes::new(&left_out).map_err(failed)?;
        let data = Excludes::new(exclude).map_err(failed)?;
        job.add(&settings.model, &model)?;
        for file in settings.train_data.iter().chain(&settings.eval_data) {
            if plimsoll_data::remote_url(file).is_none() {
                job.add(file, &data)?;
            }
        }
        for entry in settings.entries() {
            let said = *entry.origin != Origin::Default;
            job.entries.push(Sent { key: entry.key, value: moved(entry.key, entry.value)?, said });
        }
        Ok(job)
    }

    /// A file, or all files of a folder.
    fn add(&mut self, path: &Path, excludes: &Excludes) -> Result<(), Fail> {
        let to = place(path)?;
        if path.is_dir() {
            let found = files(path, excludes).map_err(failed)?;
            if found.is_empty() {
                return Err(Fail::usage(format!("`{}` holds no file that may be sent", path.display())));
            }
            for file in found {
                let to = to.join(&file.path).map_err(failed)?;
                self.items.push(Item { from: file.path.in_folder(path), to });
            }
        } else if excludes.leaves_out(name(path)?) {
            return Err(Fail::usage(format!("`{}` is excluded, and the job needs it", path.display())));
        } else {
            self.items.push(Item { from: path.to_path_buf(), to });
        }
        // A file may be trained and evaluated on.
        let mut seen = std::collections::BTreeSet::new();
        self.items.retain(|item| seen.insert(item.to.clone()));
        Ok(())
    }

    /// Where its job file is over there.
    pub fn path(&self) -> Result<FarPath, Fail> {
        far(format!("jobs/{}.toml", self.name))
    }

    /// The job file, for the far folder `dir`.
    pub fn text(&self, dir: &str) -> String {
        let mut out = String::from("# Written by plimsoll remote: what was said, with paths of this machine.\n");
        let mut open = "";
        for sent in self.entries.iter().filter(|sent| sent.said) {
            let (table, key) = sent.key.split_once('.').unwrap_or(("", sent.key));
            if table != open {
                out.push_str(&format!("\n[{table}]\n"));
                open = table;
            }
            out.push_str(&format!("{key} = {}\n", inline(&here(&sent.value, dir))));
        }
        out
    }

    /// Whether what arrived, as a run folder holds it, is what was asked for.
    pub fn check(&self, host: &str, dir: &str, arrived: &str) -> Result<(), RemoteError> {
        let wrong = |why: String| RemoteError::Far { host: host.to_string(), fact: format!("its settings: {why}") };
        let arrived: toml::Table = toml::from_str(arrived).map_err(|error| wrong(error.message().to_string()))?;
        let arrived = serde_json::to_value(arrived).map_err(|error| wrong(error.to_string()))?;
        let mut asked = Flat::new();
        for sent in self.entries.iter().filter(|sent| sent.said || !OPEN.contains(&sent.key)) {
            let value = serde_json::to_value(here(&sent.value, dir)).map_err(|error| wrong(error.to_string()))?;
            asked.insert(sent.key.to_string(), value);
        }
        let whole: Vec<&str> = asked.keys().map(String::as_str).collect();
        same(host, &asked, &flat(&arrived, &whole), OPEN)
    }
}

/// Refuses settings that differ.
pub fn same(host: &str, asked: &Flat, arrived: &Flat, open: &[&str]) -> Result<(), RemoteError> {
    let found = differences(asked, arrived, open);
    if found.is_empty() {
        return Ok(());
    }
    let differences = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Err(RemoteError::NotAsAsked { host: host.to_string(), differences })
}

/// A name that a folder can have anywhere.
pub fn fair_name(name: &str) -> String {
    let fair = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().map(fair).take(100).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "run".to_string() } else { name.to_string() }
}

fn name(path: &Path) -> Result<&str, Fail> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| Fail::usage(format!("`{}` has no name that could be used elsewhere", path.display())))
}

/// Where a local path will be over there: under its own name, in a folder that stands for the one that it is in. The same
/// path gets the same place each time, so that jobs share what they share, and only differences are sent.
fn place(path: &Path) -> Result<FarPath, Fail> {
    let folder: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let folder = fs_err::canonicalize(&folder).or_usage()?;
    let key = digest_of(folder.as_os_str().as_encoded_bytes()).to_string();
    far(format!("inputs/{}/{}", &key[..12], name(path)?))
}

/// A value whose paths lead to where the files will be.
fn moved(key: &str, value: Value) -> Result<Value, Fail> {
    match (key, value) {
        ("model.path" | "data.train" | "data.eval", value) => moved_paths(value),
        ("data.mixture", Value::Array(sets)) => {
            let set = |set: Value| match set {
                Value::Table(mut table) => {
                    if let Some(files) = table.remove("train") {
                        table.insert("train".into(), moved_paths(files)?);
                    }
                    Ok(Value::Table(table))
                }
                other => Ok(other),
            };
            Ok(Value::Array(sets.into_iter().map(set).collect::<Result<_, Fail>>()?))
        }
        (_, value) => Ok(value),
    }
}

fn moved_paths(value: Value) -> Result<Value, Fail> {
    Ok(match value {
        Value::String(path) if plimsoll_data::remote_url(Path::new(&path)).is_none() => {
            Value::String(format!("{HERE}/{}", place(Path::new(&path))?))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(moved_paths).collect::<Result<_, Fail>>()?),
        other => other,
    })
}

/// A value with the far folder in it.
fn here(value: &Value, dir: &str) -> Value {
    match value {
        Value::String(text) => Value::String(match text.strip_prefix(HERE) {
            Some(rest) => format!("{dir}{rest}"),
            None => text.clone(),
        }),
        Value::Array(items) => Value::Array(items.iter().map(|item| here(item, dir)).collect()),
        Value::Table(table) => Value::Table(table.iter().map(|(key, value)| (key.clone(), here(value, dir))).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::JobFlags;
    use crate::job::count::Count;

    fn job(folder: &Path) -> FarJob {
        fs_err::create_dir_all(folder.join("model")).unwrap();
        for (name, text) in [("model/config.json", "{}"), ("model/pytorch_model.bin", "x"), ("a.jsonl", "{}")] {
            fs_err::write(folder.join(name), text).unwrap();
        }
        let flags = JobFlags {
            model: Some(folder.join("model")),
            data: vec![folder.join("a.jsonl"), "s3://bucket/b.jsonl".into()],
            eval: Some(folder.join("a.jsonl")),
            seed: Some(Count(7)),
            ..JobFlags::default()
        };
        // A single object of a store is not listed.
        FarJob::of(&Settings::resolve(&flags).unwrap(), &[]).unwrap()
    }

    #[test]
    fn what_was_said_is_sent_with_paths_of_the_other_machine_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        let names: Vec<&str> = job.items.iter().map(|item| item.to.as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names[0].starts_with("inputs/") && names[0].ends_with("/model/config.json"), "{names:?}");
        let text = job.text("/srv/far");
        let table: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(table["data"]["eval"].as_str().unwrap(), format!("/srv/far/{}", names[1]));
        assert_eq!(table["data"]["train"][1].as_str(), Some("s3://bucket/b.jsonl"));
        assert_eq!(table["train"]["seed"].as_integer(), Some(7));
        assert!(!text.contains("effective_batch") && !text.contains("threads"), "{text}");
    }

    #[test]
    fn a_knob_that_does_not_arrive_is_named_with_both_values() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        // What the far side would write: all settings, those of the data and the machine too.
        let all: String = {
            let mut whole = FarJob { name: job.name.clone(), items: Vec::new(), entries: Vec::new() };
            whole.entries.extend(job.entries.iter().map(|s| Sent { key: s.key, value: s.value.clone(), said: true }));
            whole.text("/srv/far").replace("[data]", "[data]\nkind = \"pairs\"")
        };
        job.check("box", "/srv/far", &all).unwrap();
        job.check("box", "/srv/far", &all.replace("threads = ", "threads = 1")).unwrap();
        let lost = job.check("box", "/srv/far", &all.replace("seed = 7", "seed = 1")).unwrap_err().to_string();
        assert!(lost.contains("`train.seed`: asked `7`, arrived `1`"), "{lost}");
        let lost = job.check("box", "/srv/far", &all.replace("seed = 7\n", "")).unwrap_err().to_string();
        assert!(lost.contains("`train.seed`: asked `7`, arrived nothing"), "{lost}");
        assert!(job.check("box", "/srv/other", &all).unwrap_err().to_string().contains("model.path"));
    }

    #[test]
    fn names_are_fair_anywhere() {
        assert_eq!(fair_name("my run/ü"), "my_run__");
        assert_eq!((fair_name("-.x"), fair_name("")), ("x".to_string(), "run".to_string()));
    }
}
