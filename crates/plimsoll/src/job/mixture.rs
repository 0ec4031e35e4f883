//! `[[data.mixture]]`: several sets of files in one run, each with a weight; and the data of a job by themselves.
//!
//! Files are looked for, never opened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_data::series::SeriesSpec;
use plimsoll_data::{Columns, DataSet, Kind, Weight};
use plimsoll_machine::Bytes;
use toml::{Spanned, Value};

use super::paths::Paths;
use super::read::JobFile;
use super::resolve::Resolver;
use super::{Job, MixtureTable};
use crate::args::JobFlags;
use crate::render::Fail;

/// One set of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureSet {
    /// Files that exist, patterns expanded.
    pub files: Vec<PathBuf>,
    /// How often each row comes in one pass.
    pub weight: Weight,
    /// Column with the input; `None`: that of `data.columns`, or a guess.
    pub source: Option<String>,
    /// Column with the text to learn; the same.
    pub target: Option<String>,
}

impl MixtureSet {
    /// As the loader wants it; `columns` are those of all sets that have none of their own.
    pub fn to_open(&self, columns: &Columns) -> DataSet {
        let own = self.source.is_some() || self.target.is_some();
        let of_set = Columns { source: self.source.clone(), target: self.target.clone() };
        DataSet { files: self.files.clone(), columns: if own { of_set } else { columns.clone() }, weight: self.weight }
    }

    /// As a job file says it.
    pub fn to_toml(&self) -> Value {
        let text = |text: &str| Value::String(text.to_string());
        let files = self.files.iter().map(|file| text(&file.to_string_lossy())).collect();
        let columns = [("source", &self.source), ("target", &self.target)];
        let columns = columns.into_iter().filter_map(|(key, name)| Some((key.to_string(), text(name.as_deref()?))));
        let columns: toml::Table = columns.collect();
        let mut table = toml::Table::new();
        table.insert("train".into(), Value::Array(files));
        table.insert("weight".into(), Value::Float(self.weight.get()));
        if !columns.is_empty() {
            table.insert("columns".into(), Value::Table(columns));
        }
        Value::Table(table)
    }
}

/// What a job says of its data.
pub struct JobData {
    /// Training files, where there is no mixture.
    pub files: Vec<PathBuf>,
    /// The sets of a mixture.
    pub mixture: Vec<MixtureSet>,
    /// What a row is.
    pub kind: Option<Kind>,
    /// Columns of all sets that have none of their own.
    pub columns: Columns,
    /// Blocks of a window.
    pub window: Option<u64>,
    /// How series become samples, where the data are some.
    pub series: Option<SeriesSpec>,
    /// Memory that the loader must stay below.
    pub memory: Option<Bytes>,
}

/// The data of a job file, whatever it says of a model.
pub fn data_of(file: &JobFile) -> Result<JobData, Fail> {
    let mut said = Resolver { file: Some(file), paths: Paths::Find, origins: BTreeMap::new(), places: BTreeMap::new() };
    let (job, flags) = (file.job.clone(), JobFlags::default());
    let mixture = said.mixture(&job, &flags)?;
    let files = if mixture.is_empty() { said.train_files(&job, &flags)? } else { Vec::new() };
    let series = said.series(&job, &flags)?;
    let kind = if series.is_some() { None } else { said.kind(&job, &flags)? };
    let memory = said.data_memory(&flags, job.data.memory.clone())?;
    if series.is_some() {
        said.note_texts(&job.data);
    }
    let source = said.pick("data.columns.source", None, job.data.columns.source);
    let target = said.pick("data.columns.target", None, job.data.columns.target);
    let window = said.window(&flags, job.data.window)?;
    if series.is_some() {
        said.no_texts()?;
    }
    Ok(JobData { files, mixture, kind, columns: Columns { source, target }, window, series, memory })
}

impl Resolver<'_> {
    /// The sets of a mixture; none where the job has none, or where a flag names other files.
    pub(super) fn mixture(&mut self, job: &Job, flags: &JobFlags) -> Result<Vec<MixtureSet>, Fail> {
        let said = job.data.mixture.clone().filter(|_| flags.data.is_empty());
        let Some(tables) = self.pick("data.mixture", None, said) else { return Ok(Vec::new()) };
        if tables.is_empty() {
            return Err(self.refuse("data.mixture", "names no set").hint("leave it out, and give `data.train`"));
        }
        if job.data.train.is_some() {
            let fail = self.refuse("data.mixture", "and `data.train` exclude each other");
            return Err(fail.hint("name the files of `data.train` in a `[[data.mixture]]` of their own"));
        }
        tables.into_iter().map(|table| self.set(table)).collect()
    }

    fn set(&self, table: Spanned<MixtureTable>) -> Result<MixtureSet, Fail> {
        let place = self.file.map(|file| format!("{}: ", file.place(table.span()))).unwrap_or_default();
        let refuse = |fact: String| Fail::usage(format!("{place}this set of `data.mixture` {fact}"));
        let MixtureTable { train, weight, columns } = table.into_inner();
        let patterns = train.unwrap_or_default().0;
        if patterns.is_empty() {
            return Err(refuse("names no files".into()).hint("give it `train = [\"FILE\"]`"));
        }
        let weight = weight.unwrap_or(1.0);
        let most = Weight::MOST;
        let weight = Weight::new(weight).ok_or_else(|| {
            let fail = refuse(format!("has the weight `{weight}`; expected more than 0 and at most {most}"));
            fail.hint("2 is each row twice in a pass, 0.5 every second row; a set that shall not come is left out")
        })?;
        let name = |name: Option<Spanned<String>>| name.map(Spanned::into_inner);
        let (source, target) = (name(columns.source), name(columns.target));
        if source.is_some() && source == target {
            return Err(refuse(format!("has `{}` as source and as target", source.unwrap_or_default())));
        }
        Ok(MixtureSet { files: self.found("data.mixture", &patterns)?, weight, source, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Result<JobData, (String, Option<String>)> {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.jsonl", "b.csv", "c.csv"] {
            fs_err::write(dir.path().join(name), "").unwrap();
        }
        let file = JobFile::parse(&dir.path().join("job.toml"), text.to_string());
        let told = |fail: Fail| {
            let fact = fail.fact.unwrap().to_string().replace(&format!("{}/", dir.path().display()), "");
            (fact, fail.hint)
        };
        file.and_then(|file| data_of(&file)).map_err(told)
    }

    #[test]
    fn sets_have_files_weights_and_columns() {
        let job = "[data]\nkind = \"pairs\"\ncolumns.source = \"q\"\n[[data.mixture]]\ntrain = \"a.jsonl\"\nweight = 2\n\
                   [[data.mixture]]\ntrain = [\"*.csv\"]\nweight = 0.3\ncolumns = { source = \"x\", target = \"y\" }\n";
        let found = data(job).unwrap_or_else(|(fact, _)| panic!("{fact}"));
        let [first, second] = &found.mixture[..] else { panic!("two sets") };
        assert_eq!((first.weight.get(), second.weight.get()), (2.0, 0.3));
        assert_eq!((first.files.len(), second.files.len()), (1, 2));
        let opened = |set: &MixtureSet| set.to_open(&found.columns).columns;
        assert_eq!(opened(first), Columns { source: Some("q".into()), target: None });
        assert_eq!(opened(second), Columns { source: Some("x".into()), target: Some("y".into()) });
        assert_eq!(found.kind, Some(Kind::Pairs));
    }

    #[test]
    fn what_is_wrong_with_a_set_is_said_with_its_place() {
        let set = |rest: &str| format!("[data]\n[[data.mixture]]\ntrain = \"a.jsonl\"\n[[data.mixture]]\n{rest}");
        for weight in ["0", "-1.5", "nan", "inf", "1e-9", "2000"] {
            let (fact, hint) = data(&set(&format!("train = \"b.csv\"\nweight = {weight}\n"))).err().unwrap();
            assert!(fact.starts_with("job.toml:4:1: this set of `data.mixture` has the weight `"), "{fact}");
            assert!(fact.ends_with("`; expected more than 0 and at most 1000") && hint.is_some(), "{fact}");
        }
        let (fact, _) = data(&set("weight = 1\n")).err().unwrap();
        assert_eq!(fact, "job.toml:4:1: this set of `data.mixture` names no files");
        let (fact, _) = data(&set("train = \"d.csv\"\n")).err().unwrap();
        assert!(fact.ends_with("`data.mixture` = `d.csv` matches no file"), "{fact}");
        let (fact, _) = data(&set("train = \"b.csv\"\nwieght = 2\n")).err().unwrap();
        assert_eq!(fact, "job.toml:6:1: unknown key `wieght`");
        let (fact, hint) = data(&format!("{}\n[data]\n", "")).err().unwrap();
        assert!(fact.contains("names no training data") && hint.is_some(), "{fact}");
        let both = set("train = \"b.csv\"\n").replace("[data]", "[data]\ntrain = \"c.csv\"");
        let (fact, _) = data(&both).err().unwrap();
        assert!(fact.ends_with("`data.mixture` and `data.train` exclude each other"), "{fact}");
    }

    #[test]
    fn a_set_reads_back_as_itself() {
        let set = MixtureSet {
            files: vec!["/tmp/a \"b\".jsonl".into()],
            weight: Weight::new(1.7).unwrap(),
            source: Some("x".into()),
            target: None,
        };
        let text = format!("[data]\nmixture = [{}]\n", crate::job::write::inline(&set.to_toml()));
        let file = JobFile::parse("/tmp/job.toml".as_ref(), text).unwrap_or_else(|fail| panic!("{:?}", fail.fact));
        let mut said =
            Resolver { file: Some(&file), paths: Paths::AsWritten, origins: BTreeMap::new(), places: BTreeMap::new() };
        let again = said.mixture(&file.job, &JobFlags::default());
        assert_eq!(again.unwrap_or_else(|fail| panic!("{:?}", fail.fact)), [set]);
    }
}
