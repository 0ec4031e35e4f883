//! A job as another machine gets it: which files it needs, where they will be there, and its settings with those paths.
//!
//! Invariant: what was said is sent, key by key, and nothing else; what nobody said is answered by the far side, which runs
//! the same program. So every setting can be compared with what arrives.

use std::path::{Path, PathBuf};

use plimsoll_machine::Bytes;
use plimsoll_remote::echo::{Flat, differences, flat};
use plimsoll_remote::push::Item;
use plimsoll_remote::select::{Excludes, OTHER_WEIGHTS, files};
use plimsoll_remote::wire::MOST_TEXT;
use plimsoll_remote::{FarPath, Link, Origin, RemoteError, digest_of};
use toml::Value;

use super::files::{Load, Whole};
use super::{failed, far};
use crate::args::Init;
use crate::job::write::inline;
use crate::render::{Fail, OrFail};
use crate::settings::{self, Settings};

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
    pub load: Load,
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
    pub fn of(settings: &Settings, origin: &Origin, exclude: &[String]) -> Result<FarJob, Fail> {
        let mut left_out: Vec<String> = OTHER_WEIGHTS.iter().map(|name| name.to_string()).collect();
        if settings.init == Init::Random {
            left_out.push("*.safetensors".to_string());
        }
        left_out.extend_from_slice(exclude);
        let places = Places { origin, left_out: &left_out };
        let mut job = FarJob { name: fair_name(&settings.run_name()), load: Load::default(), entries: Vec::new() };
        let model = places.of_model(&settings.model)?;
        if settings.model.is_dir() {
            job.load.whole = Some(Whole { folder: model.clone(), exclude: left_out.clone() });
        }
        job.add(&settings.model, model, &Excludes::new(&left_out).map_err(failed)?)?;
        let data = Excludes::new(exclude).map_err(failed)?;
        for file in settings.train_data.iter().chain(&settings.eval_data) {
            if plimsoll_data::remote_url(file).is_none() {
                job.add(file, places.of_data(file)?, &data)?;
            }
        }
        // A file may be trained and evaluated on.
        let mut seen = std::collections::BTreeSet::new();
        job.load.items.retain(|item| seen.insert(item.to.clone()));
        for entry in settings.entries() {
            let said = *entry.origin != settings::Origin::Default;
            job.entries.push(Sent { key: entry.key, value: places.moved(entry.key, entry.value)?, said });
        }
        Ok(job)
    }

    /// A file, or all files of a folder.
    fn add(&mut self, path: &Path, to: FarPath, excludes: &Excludes) -> Result<(), Fail> {
        let items = &mut self.load.items;
        if path.is_dir() {
            let found = files(path, excludes).map_err(failed)?;
            if found.is_empty() {
                return Err(Fail::usage(format!("`{}` holds no file that may be sent", path.display())));
            }
            for file in found {
                let to = to.join(&file.path).map_err(failed)?;
                items.push(Item { from: file.path.in_folder(path), to });
            }
        } else if excludes.leaves_out(name(path)?) {
            return Err(Fail::usage(format!("`{}` is excluded, and the job needs it", path.display())));
        } else {
            items.push(Item { from: path.to_path_buf(), to });
        }
        Ok(())
    }

    /// Where its job file is over there: under a name that holds what it says, so that nobody else's takes its place while it
    /// is read.
    pub fn path(&self) -> Result<FarPath, Fail> {
        let key = digest_of(self.text(HERE).as_bytes()).to_string();
        far(format!("jobs/{}-{}.toml", self.name, &key[..12]))
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

    /// Writes the job file there.
    pub fn write(&self, link: &Link, path: &FarPath) -> Result<(), RemoteError> {
        let text = self.text(link.dir());
        if text.len() > MOST_TEXT {
            let [length, most] = [text.len(), MOST_TEXT].map(|length| Bytes(length as u64));
            return Err(RemoteError::JobTooLong { length, most });
        }
        plimsoll_remote::push::write(link, path, text.as_bytes())
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

/// Where local paths will be over there.
struct Places<'a> {
    origin: &'a Origin,
    /// What is left out of the model's folder.
    left_out: &'a [String],
}

impl Places<'_> {
    /// Under its own name, in a folder that stands for the one that it is in. The same path gets the same place each time, so
    /// that jobs share what they share, and only differences are sent.
    fn of_data(&self, path: &Path) -> Result<FarPath, Fail> {
        self.of(path, &[])
    }

    /// Jobs that leave out something else have another folder: what one of them needs is not for the other to remove or read.
    fn of_model(&self, path: &Path) -> Result<FarPath, Fail> {
        self.of(path, self.left_out)
    }

    fn of(&self, path: &Path, more: &[String]) -> Result<FarPath, Fail> {
        let folder: PathBuf = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let folder = fs_err::canonicalize(&folder).or_usage()?;
        far(format!("inputs/{}/{}", self.origin.key(&folder, more), name(path)?))
    }

    /// A value whose paths lead to where the files will be.
    fn moved(&self, key: &str, value: Value) -> Result<Value, Fail> {
        match (key, value) {
            ("model.path", Value::String(path)) => {
                Ok(Value::String(format!("{HERE}/{}", self.of_model(Path::new(&path))?)))
            }
            ("data.train" | "data.eval", value) => self.moved_data(value),
            ("data.mixture", Value::Array(sets)) => {
                let set = |set: Value| match set {
                    Value::Table(mut table) => {
                        if let Some(files) = table.remove("train") {
                            table.insert("train".into(), self.moved_data(files)?);
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

    fn moved_data(&self, value: Value) -> Result<Value, Fail> {
        let moved = |value| self.moved_data(value);
        Ok(match value {
            Value::String(path) if plimsoll_data::remote_url(Path::new(&path)).is_none() => {
                Value::String(format!("{HERE}/{}", self.of_data(Path::new(&path))?))
            }
            Value::Array(items) => Value::Array(items.into_iter().map(moved).collect::<Result<_, Fail>>()?),
            other => other,
        })
    }
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
        let origin = Origin::of(&folder.join("config")).unwrap();
        FarJob::of(&Settings::resolve(&flags).unwrap(), &origin, &[]).unwrap()
    }

    #[test]
    fn what_was_said_is_sent_with_paths_of_the_other_machine_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        let names: Vec<&str> = job.load.items.iter().map(|item| item.to.as_str()).collect();
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
    fn jobs_that_say_something_else_have_other_files_and_leave_others_their_model() {
        let folder = tempfile::tempdir().unwrap();
        let first = job(folder.path());
        let origin = Origin::of(&folder.path().join("config")).unwrap();
        let flags = |seed| JobFlags {
            model: Some(folder.path().join("model")),
            data: vec![folder.path().join("a.jsonl")],
            seed: Some(Count(seed)),
            ..JobFlags::default()
        };
        let of = |flags: &JobFlags, exclude: &[String]| {
            FarJob::of(&Settings::resolve(flags).unwrap(), &origin, exclude).unwrap()
        };
        let (second, third) = (of(&flags(8), &[]), of(&flags(8), &["*.json5".to_string()]));
        assert_ne!(second.path().unwrap(), of(&flags(9), &[]).path().unwrap());
        assert_eq!(second.path().unwrap(), of(&flags(8), &[]).path().unwrap());
        let places = |job: &FarJob| job.load.items.iter().map(|item| item.to.to_string()).collect::<Vec<_>>();
        assert_eq!(places(&first), places(&second));
        // The data is the same, the model's folder is another one.
        assert!(places(&second)[0] != places(&third)[0] && places(&second)[1] == places(&third)[1]);
        assert_eq!(
            second.load.whole.unwrap().folder.join(&FarPath::new("config.json").unwrap()).unwrap(),
            second.load.items[0].to
        );
        // Somebody else with the same paths.
        let other = Origin::of(&folder.path().join("other")).unwrap();
        let theirs = FarJob::of(&Settings::resolve(&flags(8)).unwrap(), &other, &[]).unwrap();
        assert!(places(&theirs).iter().all(|place| !places(&first).contains(place)));
    }

    #[test]
    fn a_knob_that_does_not_arrive_is_named_with_both_values() {
        let folder = tempfile::tempdir().unwrap();
        let job = job(folder.path());
        // What the far side would write: all settings, those of the data and the machine too.
        let all: String = {
            let mut whole = FarJob { name: job.name.clone(), load: Load::default(), entries: Vec::new() };
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
