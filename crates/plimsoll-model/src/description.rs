//! A `cnn-lstm` as a TOML file, for models that have no folder yet.
//!
//! What the file says comes first, then what the data say (features and window), then what its preset says. They are laid over each
//! other as tables that remember their place in the file, so that whatever is wrong is told with line and column. Tables are merged
//! key by key; a list, and attention of another kind, replaces that of the preset, and a head that is `"none"` takes it away.
//! Invariant: a spec that comes out of here has passed [`SeriesSpec::check`].

use std::ops::Range;
use std::path::Path;

use plimsoll_plan::spec::{SeriesSpec, SpecError};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::series::MODEL_TYPE;
use crate::{ModelError, small_file};

/// What data have to say about a model of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesInput {
    /// Numbers of a step.
    pub features: usize,
    /// Steps of a window.
    pub window: usize,
}

impl SeriesInput {
    /// Says whether a model takes such windows; `path` is where it is described.
    pub(crate) fn fits(self, path: &Path, spec: &SeriesSpec) -> Result<(), ModelError> {
        for (key, said, data) in [("features", spec.features, self.features), ("window", spec.window, self.window)] {
            if said != data {
                return Err(ModelError::OtherData { path: path.into(), key, said, data });
            }
        }
        Ok(())
    }
}

/// Heads, and what a file says where its preset has one and it wants none.
const HEADS: [&str; 3] = ["classes", "confidence", "values"];
const NO_HEAD: &str = "none";

const PRESETS: &str = "`hybrid-v1` or `hybrid-v2`";

/// Reads a description; `data` say what it leaves open, and must agree with the rest.
pub(crate) fn read(path: &Path, data: Option<SeriesInput>) -> Result<SeriesSpec, ModelError> {
    let text = String::from_utf8(small_file::read(path)?).map_err(|_| ModelError::NotText { path: path.into() })?;
    let spec = parse(path, &text, data)?;
    data.map_or(Ok(()), |data| data.fits(path, &spec))?;
    Ok(spec)
}

fn parse(path: &Path, text: &str, data: Option<SeriesInput>) -> Result<SeriesSpec, ModelError> {
    let file = File { path, text };
    let document = DeTable::parse(text).map_err(|error| file.not_toml(&error))?;
    let (span, mut table) = (document.span(), document.into_inner());
    match file.text_of(&mut table, "family")? {
        Some((family, _)) if family == MODEL_TYPE => {}
        Some((other, at)) => return Err(file.wrong(&at, "family", format!("`{MODEL_TYPE}`"), other)),
        None => return Err(file.wrong(&span, "family", format!("`{MODEL_TYPE}`"), "nothing".into())),
    }
    let preset = match file.text_of(&mut table, "preset")? {
        None => String::new(),
        Some((name, at)) => preset(&name).ok_or_else(|| file.wrong(&at, "preset", PRESETS.into(), name))?,
    };
    let data = data.map_or_else(String::new, |d| format!("features = {}\nwindow = {}\n", d.features, d.window));
    let mut preset = table_of(&preset);
    for head in HEADS {
        match table.get(head).map(|value| (value.span(), value.get_ref().as_str())) {
            Some((_, Some(NO_HEAD))) => {
                table.remove(head);
                preset.remove(head);
            }
            Some((at, Some(other))) => {
                return Err(file.wrong(&at, head, format!("a table, or `{NO_HEAD}`"), other.to_string()));
            }
            _ => {}
        }
    }
    lay_under(&mut table, table_of(&data));
    lay_under(&mut table, preset);
    for key in ["features", "window"] {
        if !table.contains_key(key) {
            let expected = "a whole number, where no data say it".into();
            return Err(file.wrong(&span, key, expected, "nothing".into()));
        }
    }
    let spec = SeriesSpec::deserialize(toml::de::Deserializer::from(Spanned::new(span, table)))
        .map_err(|error| file.not_toml(&error))?;
    spec.check().map_err(|wrong| {
        // What was merged is used up: the file is asked again.
        let at = place_of(&table_of(text), &wrong.key);
        ModelError::Spec { path: path.into(), place: at.map(|at| file.place(&at)), wrong: Box::new(wrong) }
    })?;
    Ok(spec)
}

/// The tables of a text that is known to be TOML.
fn table_of(text: &str) -> DeTable<'_> {
    DeTable::parse(text).map(Spanned::into_inner).unwrap_or_default()
}

/// A known build as a text; how many features it reads is never part of it.
fn preset(name: &str) -> Option<String> {
    let spec = match name {
        "hybrid-v1" => SeriesSpec::hybrid_v1(1),
        "hybrid-v2" => SeriesSpec::hybrid_v2(1),
        _ => return None,
    };
    let mut table = toml::Table::try_from(&spec).ok()?;
    table.remove("features");
    Some(table.to_string())
}

/// Adds what only the lower layer says.
fn lay_under<'i>(upper: &mut DeTable<'i>, lower: DeTable<'i>) {
    for (key, value) in lower {
        let name: &str = key.get_ref();
        let Some(said) = upper.get_mut(name) else {
            upper.insert(Spanned::new(0..0, key.into_inner()), Spanned::new(0..0, value.into_inner()));
            continue;
        };
        if let (DeValue::Table(said), DeValue::Table(under)) = (said.get_mut(), value.into_inner())
            && same_kind(said, &under)
        {
            lay_under(said, under);
        }
    }
}

/// Whether one may be laid under the other: not where both say what they are, and differ.
fn same_kind(upper: &DeTable<'_>, lower: &DeTable<'_>) -> bool {
    let kind = |table: &DeTable<'_>| table.get("kind").and_then(|kind| Some(kind.get_ref().as_str()?.to_string()));
    kind(upper).is_none_or(|said| kind(lower).is_none_or(|under| said == under))
}

/// Where a dotted path leads in the file; as far as the file says it.
fn place_of(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    let mut names = path.split('.');
    let mut at = table.get(names.next()?)?;
    for name in names {
        let inner = match (at.get_ref(), name.parse::<usize>()) {
            (DeValue::Array(list), Ok(nth)) => list.get(nth),
            (DeValue::Table(table), _) => table.get(name),
            _ => None,
        };
        match inner {
            Some(inner) => at = inner,
            None => break,
        }
    }
    Some(at.span())
}

/// The file, for messages.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
}

impl File<'_> {
    /// Takes a text out of the table, with its place.
    fn text_of(
        &self,
        table: &mut DeTable<'_>,
        key: &'static str,
    ) -> Result<Option<(String, Range<usize>)>, ModelError> {
        let Some(value) = table.remove(key) else { return Ok(None) };
        let (at, value) = (value.span(), value.into_inner());
        match value.as_str() {
            Some(text) => Ok(Some((text.to_string(), at))),
            None => Err(self.wrong(&at, key, "a text".into(), value.type_str().into())),
        }
    }

    fn wrong(&self, at: &Range<usize>, key: &'static str, expected: String, found: String) -> ModelError {
        let wrong = Box::new(SpecError { key: key.into(), expected, found });
        ModelError::Spec { path: self.path.into(), place: Some(self.place(at)), wrong }
    }

    fn not_toml(&self, error: &toml::de::Error) -> ModelError {
        let (line, column) = self.place(&error.span().unwrap_or(0..0));
        let message = error.message().trim().replace('\n', ", ");
        ModelError::Toml { path: self.path.into(), line, column, message }
    }

    /// Line and column, both from 1; columns count characters.
    fn place(&self, span: &Range<usize>) -> (usize, usize) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}
