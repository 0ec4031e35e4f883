//! The index of a file is kept: a second start gives the same rows without looking at them, and nothing else than the same rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use plimsoll_data::*;
use tempfile::tempdir;

use crate::equality::write;
use crate::other_folder::{OtherFolder, url};
use crate::remote::{random_rows, texts};

const FORMATS: [&str; 9] = ["jsonl", "csv", "tsv", "txt", "parquet", "arrow", "arrows", "jsonl.gz", "jsonl.zst"];

/// A file that was written an hour ago: what has just changed might change once more without that it shows.
fn write_before(path: &Path, name: &str, rows: &[(String, String)]) {
    write(path, name, rows);
    an_hour_ago(path);
}

fn an_hour_ago(path: &Path) {
    let file = fs_err::OpenOptions::new().write(true).open(path).unwrap();
    file.file().set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

fn kind_of(name: &str) -> Kind {
    if name.starts_with("txt") { Kind::Text } else { Kind::Pairs }
}

fn open(paths: &[PathBuf], name: &str, folder: &Path) -> Arc<Sources> {
    Arc::new(Sources::open_in(paths, kind_of(name), Columns::default(), Some(folder)).unwrap())
}

/// Bytes that this thread has read from files so far.
fn read_so_far() -> u64 {
    let io = fs_err::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

fn indices(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(folder.join("index")) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn a_second_start_finds_the_same_rows_and_looks_at_hardly_any() {
    let dir = tempdir().unwrap();
    let rows = random_rows(24_000);
    for name in FORMATS {
        let (cache, paths) =
            (dir.path().join(format!("cache-{name}")), [0, 1].map(|n| dir.path().join(format!("{n}.{name}"))));
        for (path, rows) in paths.iter().zip(rows.chunks(12_000)) {
            write_before(path, name, rows);
        }
        let bytes: u64 = paths.iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
        let first = open(&paths, name, &cache);
        // For the columns that were guessed, and for them by name, as a run that goes on asks for them; the second file is told them.
        assert_eq!(indices(&cache).len(), 3, "{name}");
        let by_name = Columns { source: Some(first.columns().source.clone()), target: first.columns().again().target };
        let before = read_so_far();
        let named = Sources::open_in(&paths, kind_of(name), by_name, Some(&cache)).unwrap();
        assert!(!named.columns().guessed && named.fingerprint() == first.fingerprint());
        let again = open(&paths, name, &cache);
        let read = read_so_far() - before;
        assert!(read < bytes / 16, "{name}: {read} of {bytes} bytes were read");
        assert_eq!((again.facts(), again.columns()), (first.facts(), first.columns()), "{name}");
        assert_eq!(again.fingerprint(), first.fingerprint(), "{name}");
        assert!(texts(&again) == texts(&first), "{name}");
        let anew = open(&paths, name, &dir.path().join(format!("other-{name}")));
        assert_eq!((anew.facts(), anew.fingerprint()), (first.facts(), first.fingerprint()), "{name}");
    }
}

#[test]
fn another_version_of_a_file_is_looked_at_and_the_index_of_the_earlier_one_goes() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.jsonl"), dir.path().join("cache"));
    let rows = random_rows(12_000);
    write_before(&path, "jsonl", &rows);
    let first = open(std::slice::from_ref(&path), "jsonl", &cache);
    let kept = indices(&cache);
    // Rows in another order: as long, and of the same time as far as `touch` can make it.
    let other: Vec<_> = rows.iter().rev().cloned().collect();
    let time = fs_err::metadata(&path).unwrap().modified().unwrap();
    write(&path, "jsonl", &other);
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().file().set_modified(time).unwrap();
    let second = open(std::slice::from_ref(&path), "jsonl", &cache);
    assert_eq!(first.rows(), second.rows());
    assert_eq!(texts(&second)[0].0, other[0].0);
    let left = indices(&cache);
    assert!(left.len() == 2 && !left.iter().any(|path| kept.contains(path)), "{left:?}");
}

#[test]
fn one_file_under_two_names_is_read_as_each_of_them_says() {
    let dir = tempdir().unwrap();
    let (path, other, cache) = (dir.path().join("a.jsonl"), dir.path().join("b.txt"), dir.path().join("cache"));
    let line = |(text, _): &(String, String)| serde_json::json!({ "text": text }).to_string() + "\n";
    fs_err::write(&path, random_rows(12_000).iter().map(line).collect::<String>()).unwrap();
    an_hour_ago(&path);
    std::os::unix::fs::symlink(&path, &other).unwrap();
    let first_row = |path: &PathBuf| {
        let opened = Sources::open_in(std::slice::from_ref(path), Kind::Text, Columns::default(), Some(&cache));
        let opened = Arc::new(opened.unwrap());
        (texts(&opened)[0].0.clone(), opened.facts().longest_source)
    };
    let first = [&path, &other].map(first_row);
    assert!(!first[0].0.starts_with('{') && first[1].0.starts_with('{'), "{first:?}");
    assert!(first[0].1 < first[1].1, "{first:?}");
    assert_eq!([&path, &other].map(first_row), first);
}

#[test]
fn a_file_that_has_just_changed_is_looked_at_again() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.jsonl"), dir.path().join("cache"));
    write(&path, "jsonl", &random_rows(12_000));
    let soon = SystemTime::now() + Duration::from_secs(3600);
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().file().set_modified(soon).unwrap();
    open(std::slice::from_ref(&path), "jsonl", &cache);
    assert!(indices(&cache).is_empty());
}

#[test]
fn ways_to_read_a_file_have_indices_of_their_own_and_few_are_kept() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.jsonl"), dir.path().join("cache"));
    write_before(&path, "jsonl", &random_rows(12_000));
    let open = |kind: Kind, source: &str, row: usize| {
        let largest = Largest { row, page: u64::MAX, skip: true };
        let columns = Columns { source: Some(source.into()), target: None };
        let opening = Opening { folder: Some(&cache), largest, ..Opening::default() };
        let sources = Sources::open_with(std::slice::from_ref(&path), kind, columns, opening).unwrap();
        (sources.rows(), sources.fingerprint(), sources.facts().oversized)
    };
    let ways = [
        (Kind::Text, "source", 1 << 20),
        (Kind::Text, "target", 1 << 20),
        (Kind::Text, "source", 300),
        (Kind::Pairs, "source", 1 << 20),
    ];
    let first = ways.map(|(kind, source, row)| open(kind, source, row));
    // The target of the pairs was guessed.
    assert_eq!(indices(&cache).len(), ways.len() + 1);
    assert!(first[2].2 > 0 && first[2].0 < first[0].0);
    assert_eq!(ways.map(|(kind, source, row)| open(kind, source, row)), first);
    assert_eq!(indices(&cache).len(), ways.len() + 1);
    for row in 400..420 {
        open(Kind::Text, "source", row);
    }
    assert_eq!(indices(&cache).len(), 8);
}

/// The bytes of an index with a checksum that fits.
fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&body);
    body.extend_from_slice(&sum.to_le_bytes());
    body
}

#[test]
fn a_damaged_index_is_not_believed_and_a_forged_one_harms_nothing() {
    let dir = tempdir().unwrap();
    let rows = random_rows(12_000);
    for name in ["jsonl", "parquet", "arrow", "jsonl.gz"] {
        let (path, cache) = (dir.path().join(format!("a.{name}")), dir.path().join(format!("cache-{name}")));
        write_before(&path, name, &rows);
        let paths = [path];
        let columns = Columns { source: Some("source".into()), target: Some("target".into()) };
        let open = || Sources::open_in(&paths, Kind::Pairs, columns.clone(), Some(&cache));
        let first = open().unwrap();
        let [place] = &indices(&cache)[..] else { panic!("one index") };
        let whole = fs_err::read(place).unwrap();
        let step = whole.len() / 40 + 1;
        for at in (0..whole.len()).step_by(step) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            fs_err::write(place, &bytes).unwrap();
            assert_eq!(open().unwrap().fingerprint(), first.fingerprint(), "{name}, byte {at}");
            assert_eq!(fs_err::read(place).unwrap(), whole, "{name}, byte {at}: it is put right");
        }
        fs_err::write(place, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(open().unwrap().facts(), first.facts());
        let body = &whole[..whole.len() - 4];
        for at in (0..body.len()).step_by(step) {
            let mut bytes = body.to_vec();
            bytes[at] = bytes[at].wrapping_add(7).wrapping_add(at as u8);
            fs_err::write(place, sealed(bytes)).unwrap();
            // Rows or an error: whatever it says, no panic and no room for what is not there.
            let Ok(sources) = open().map(Arc::new) else { continue };
            let mut texts = RowTexts::new(sources.clone());
            for row in (0..sources.rows().min(20_000)).step_by(997) {
                let _ = texts.pair(row);
            }
        }
    }
}

#[test]
fn files_elsewhere_are_looked_at_once_where_their_version_is_known() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.parquet"), dir.path().join("cache"));
    write_before(&path, "parquet", &random_rows(40_000));
    let (folder, store) = OtherFolder::shared();
    let open = || {
        let elsewhere = Some(Elsewhere { files: &store, cache: LEAST_CACHE });
        let opening = Opening { folder: Some(&cache), elsewhere, ..Opening::default() };
        let sources = Sources::open_with(&[url(&path)], Kind::Pairs, Columns::default(), opening).unwrap();
        sources.fingerprint()
    };
    let first = open();
    assert_eq!(indices(&cache).len(), 2);
    fs_err::remove_dir_all(cache.join("blocks")).unwrap();
    let before = folder.bytes.load(Ordering::Relaxed);
    assert_eq!(open(), first);
    let read = folder.bytes.load(Ordering::Relaxed) - before;
    assert!(read < fs_err::metadata(&path).unwrap().len() / 2, "{read}");
}

#[test]
fn what_was_kept_of_files_elsewhere_is_not_used_where_versions_are_not_told_apart() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.jsonl"), dir.path().join("cache"));
    let rows = random_rows(12_000);
    let (folder, store) = OtherFolder::shared();
    folder.nameless.store(true, Ordering::Relaxed);
    let open = || {
        let elsewhere = Some(Elsewhere { files: &store, cache: LEAST_CACHE });
        let opening = Opening { folder: Some(&cache), elsewhere, ..Opening::default() };
        Arc::new(Sources::open_with(&[url(&path)], Kind::Pairs, Columns::default(), opening).unwrap())
    };
    write(&path, "jsonl", &rows);
    assert_eq!(texts(&open())[0], rows[0]);
    assert!(indices(&cache).is_empty());
    let other: Vec<_> = rows.iter().rev().cloned().collect();
    write(&path, "jsonl", &other);
    assert_eq!(texts(&open())[0], other[0]);
}
