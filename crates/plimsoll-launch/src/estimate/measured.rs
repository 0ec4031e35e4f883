//! What runs taught us: measured peaks, kept one JSON line each, and how they correct an estimate.
//!
//! A run with the same settings wins outright. Runs with other settings of the same trainer, model and machine shift the
//! estimate by what they were off, in bytes: never by a factor, which small runs would blow up. A line is appended in one
//! write; a last line that was cut is passed over, and the next record starts on a line of its own.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use plimsoll_machine::Bytes;
use serde::{Deserialize, Serialize};

use super::table::{Correction, Memory, Source, Table};
use crate::knob::{Settings, Value};

/// What a measurement is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The trainer's name.
    pub trainer: String,
    /// The model, by whatever the caller tells models apart.
    pub model: String,
    /// The machine, likewise.
    pub machine: String,
}

/// One measured run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// About what.
    #[serde(flatten)]
    pub key: Key,
    /// Of which memory.
    pub memory: Memory,
    /// With which settings.
    pub settings: Settings,
    /// What was computed before the run, without any correction.
    pub expected: Bytes,
    /// The peak that was seen.
    pub measured: Bytes,
}

/// How many of the nearest runs are asked.
const NEAREST: usize = 3;
/// What another run of the same settings may take more than the highest of many, per cent.
const REPEAT_PER_CENT: u64 = 8;
/// And what one run leaves open beside that, shared by all that there were. Repeats differ by one or two per cent; those of
/// several ranks by more, for their peaks meet in one run and not in the other.
const ONE_RUN_PER_CENT: u64 = 6;

/// Adds a record to the store at `path`, which need not exist.
pub fn append(path: &Path, record: &Record) -> std::io::Result<()> {
    let mut options = fs_err::OpenOptions::new();
    let mut file = options.create(true).append(true).read(true).open(path)?;
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            line.insert(0, b'\n');
        }
    }
    file.write_all(&line)?;
    file.sync_data()
}

/// All records of the store at `path` that can be read; none where there is no file.
pub fn load(path: &Path) -> std::io::Result<Vec<Record>> {
    match fs_err::read(path) {
        Ok(bytes) => {
            Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The estimate as these records correct it.
pub fn correct(mut table: Table, key: &Key, settings: &Settings, records: &[Record]) -> Table {
    let about = |record: &&Record| record.key == *key && record.memory == table.memory;
    let known: Vec<&Record> = records.iter().filter(about).collect();
    let same: Vec<Bytes> = known.iter().filter(|r| r.settings == *settings).map(|r| r.measured).collect();
    if let Some(most) = same.iter().max() {
        table.expected = Bytes(median(same.iter().map(|bytes| bytes.0 as i64).collect()).max(0) as u64);
        table.safe =
            most.saturating_add(Bytes(most.0 / 100 * (REPEAT_PER_CENT + ONE_RUN_PER_CENT / same.len() as u64)));
        table.source = Source::Measured;
        return table;
    }
    let mut others: Vec<(f64, i64)> = known
        .iter()
        .map(|record| (distance(&record.settings, settings), record.measured.0 as i64 - record.expected.0 as i64))
        .collect();
    if others.is_empty() {
        return table;
    }
    others.sort_by(|one, other| one.0.total_cmp(&other.0));
    let nearest: Vec<i64> = others.iter().take(NEAREST).map(|(_, delta)| *delta).collect();
    let runs = nearest.len();
    let delta = median(nearest.clone());
    // The margin stays; where a run was further above its estimate than the median says, safe follows that run.
    let worst = nearest.into_iter().max().unwrap_or(delta).max(delta);
    table.expected = shifted(table.expected, delta);
    table.safe = shifted(table.safe, worst).max(table.expected);
    table.correction = Some(Correction { runs, delta });
    table
}

fn shifted(bytes: Bytes, delta: i64) -> Bytes {
    Bytes(bytes.0.saturating_add_signed(delta))
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2 }
}

/// How far apart two settings are: octaves of numbers, one for anything else that differs.
fn distance(one: &Settings, other: &Settings) -> f64 {
    let keys: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let apart = |a: Option<&Value>, b: Option<&Value>| match (a, b) {
        (a, b) if a == b => 0.0,
        (Some(a), Some(b)) => match (a.count(), b.count()) {
            (Some(a), Some(b)) => ((a as f64 + 1.0) / (b as f64 + 1.0)).log2().abs(),
            _ => 1.0,
        },
        _ => 1.0,
    };
    keys.into_iter().map(|key| apart(one.get(key), other.get(key))).sum()
}

#[cfg(test)]
mod tests {
    use super::super::table::{Part, Phase, PhaseName};
    use super::*;
    use crate::knob::Knob;

    fn key() -> Key {
        Key { trainer: "piper".into(), model: "medium".into(), machine: "box".into() }
    }

    fn batch(n: u64) -> Settings {
        Settings::from([(Knob::Batch, Value::from(n))])
    }

    fn record(n: u64, expected: u64, measured: u64) -> Record {
        let (expected, measured) = (Bytes::mib(expected), Bytes::mib(measured));
        Record { key: key(), memory: Memory::Host, settings: batch(n), expected, measured }
    }

    fn table(mib: u64) -> Table {
        let phase = Phase::new(PhaseName::Backward, [Part::computed("all", Bytes::mib(mib))]);
        Table::new(Memory::Host, vec![phase], vec![])
    }

    #[test]
    fn a_run_with_the_same_settings_wins_and_is_called_measured() {
        let records = [record(8, 5000, 5300), record(4, 4000, 9000)];
        let table = correct(table(5000), &key(), &batch(8), &records);
        assert_eq!((table.expected, table.source), (Bytes::mib(5300), Source::Measured));
        assert!(table.safe > Bytes::mib(5300) && table.safe < Bytes::mib(6100));
        let again = [record(8, 5000, 5300), record(8, 5300, 5290), record(8, 5300, 5280)];
        let sure = correct(self::table(5000), &key(), &batch(8), &again);
        assert!(sure.safe < table.safe, "more runs leave less open");
    }

    #[test]
    fn other_settings_shift_by_bytes_and_never_by_a_factor() {
        let records = [record(1, 100, 200)];
        let table = correct(table(5000), &key(), &batch(8), &records);
        assert_eq!(table.expected, Bytes::mib(5100));
        assert_eq!(table.correction, Some(Correction { runs: 1, delta: 100 << 20 }));
        assert_eq!(table.source, Source::Computed);
    }

    #[test]
    fn the_nearest_settings_are_asked_and_their_median_taken() {
        let near = [record(4, 100, 110), record(6, 100, 120), record(10, 100, 190)];
        let far = [record(512, 100, 9000), record(1024, 100, 9000)];
        let records: Vec<Record> = far.into_iter().chain(near).collect();
        let table = correct(table(5000), &key(), &batch(8), &records);
        assert_eq!(table.expected, Bytes::mib(5020));
        assert!(table.safe >= Bytes::mib(5000 + 90));
    }

    #[test]
    fn other_machines_models_and_memories_say_nothing() {
        let mut other = record(8, 100, 9000);
        other.key.machine = "other".into();
        let card = Record { memory: Memory::Card, ..record(8, 100, 9000) };
        assert_eq!(correct(table(5000), &key(), &batch(8), &[other, card]), table(5000));
    }

    #[test]
    fn a_cut_line_costs_no_other_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("measured.jsonl");
        assert_eq!(load(&path).unwrap(), []);
        append(&path, &record(8, 1, 2)).unwrap();
        let mut bytes = fs_err::read(&path).unwrap();
        let half = bytes[..bytes.len() / 2].to_vec();
        bytes.extend(half);
        fs_err::write(&path, bytes).unwrap();
        append(&path, &record(4, 3, 4)).unwrap();
        assert_eq!(load(&path).unwrap(), [record(8, 1, 2), record(4, 3, 4)]);
    }
}
