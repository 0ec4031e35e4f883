//! Data that lie elsewhere: the stream of local files, whatever the format; by parts that are kept on the disk up to a ceiling, are
//! used again, and are fetched again where they are damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::tempdir;

use crate::equality::{WORDS, files};
use crate::fixture::*;
use crate::other_folder::{OtherFolder, url};
use crate::{arrow, parquet};

fn open(
    paths: &[PathBuf],
    kind: Kind,
    columns: Columns,
    folder: &Path,
    files: &Arc<dyn RemoteFiles>,
) -> Result<Sources, DataError> {
    let elsewhere = Some(Elsewhere { files, cache: LEAST_CACHE });
    Sources::open_with(paths, kind, columns, Opening { folder: Some(folder), elsewhere, ..Opening::default() })
}

fn open_pairs(path: &Path, folder: &Path, files: &Arc<dyn RemoteFiles>) -> Result<Sources, DataError> {
    open(&[url(path)], Kind::Pairs, Columns::default(), folder, files)
}

/// Texts of all rows, in the order of the file.
pub fn texts(sources: &Arc<Sources>) -> Vec<(String, String)> {
    let mut texts = RowTexts::new(sources.clone());
    let pair = |row| texts.pair(row).map(|(source, target)| (source.to_string(), target.to_string())).unwrap();
    (0..sources.rows()).map(pair).collect()
}

/// A pass in a shuffled order, as tokens.
fn pass(sources: &Arc<Sources>, tokenizer: &Arc<TextTokenizer>, cursor: Cursor, batches: usize) -> Vec<Batch> {
    let shape = BatchShape { samples: 16, source_len: 24, target_len: 8, documents: 1 };
    let (recipe, order) = (Recipe::pairs(), Order::new(3, true).with_window(7));
    let settings = settings(shape, 2, 2, cursor);
    let mut loader = Loader::start(sources.clone(), order, tokenizer.clone(), recipe, settings).unwrap();
    let mut owned = Owned::new(shape);
    let mut next = || {
        let facts = loader.next(owned.slot()).unwrap();
        owned.batch(facts)
    };
    (0..batches).map(|_| next()).collect()
}

/// Bytes of the parts in a folder.
fn kept(folder: &Path) -> u64 {
    blocks(folder).iter().map(|path| fs_err::metadata(path).unwrap().len()).sum()
}

fn blocks(folder: &Path) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(folder.join("blocks")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name != "lock"));
    paths.sort();
    paths
}

/// Rows that no codec makes much smaller.
pub fn random_rows(rows: usize) -> Vec<(String, String)> {
    let mut state = 9u64;
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        format!("w{}", (state >> 40) % u64::from(WORDS))
    };
    let mut text = |words: usize| (0..words).map(|_| word()).collect::<Vec<_>>().join(" ");
    (0..rows).map(|i| (text(20 + i % 60), text(1 + i % 5))).collect()
}

#[test]
fn every_format_gives_the_stream_of_local_files() {
    let files = files();
    let cache = tempdir().unwrap();
    let (_, store) = OtherFolder::shared();
    for kind in [Kind::Pairs, Kind::Text] {
        for name in files.of(kind) {
            let local = files.open(name, kind);
            let urls: Vec<PathBuf> = files.paths(name).iter().map(|path| url(path)).collect();
            let remote = Arc::new(open(&urls, kind, files.columns(name, kind), cache.path(), &store).unwrap());
            assert_eq!(remote.fingerprint(), local.fingerprint(), "{name}");
            assert_eq!(remote.paths().collect::<Vec<_>>(), urls);
            let texts = |sources: &Arc<Sources>| -> Vec<String> {
                let mut texts = RowTexts::new(sources.clone());
                (0..sources.rows()).map(|row| texts.pair(row).unwrap().0.to_string()).collect()
            };
            assert!(texts(&remote) == texts(&local), "{name}");
        }
    }
}

#[test]
fn files_larger_than_the_cache_give_the_same_stream_within_its_ceiling_and_so_does_a_resume() {
    let dir = tempdir().unwrap();
    let (files, cache) = (dir.path().join("files"), dir.path().join("cache"));
    fs_err::create_dir(&files).unwrap();
    let rows = random_rows(75_000);
    jsonl(&files.join("0.jsonl"), &rows);
    arrow::write_pairs(&files.join("1.arrow"), &rows[..20_000], 7_000);
    parquet::write_large_pages(&files.join("2.parquet"), &rows[..20_000], 20_000);
    let tokenizer = words_tokenizer(dir.path(), WORDS);
    let (folder, store) = OtherFolder::shared();
    let paths = ["0.jsonl", "1.arrow", "2.parquet"].map(|name| files.join(name));
    let all: u64 = paths.iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
    assert!(all > LEAST_CACHE + (8 << 20), "{all} bytes are too few for this test");
    let local = Arc::new(Sources::open(&paths, Columns::default()).unwrap());
    let remote = open(&[url(&files.join("*"))], Kind::Pairs, Columns::default(), &cache, &store).map(Arc::new).unwrap();
    assert!(kept(&cache) <= LEAST_CACHE, "{} bytes", kept(&cache));
    // Each part came once, and several at a time where they lie behind each other.
    let (reads, bytes) = (folder.reads(), folder.bytes.load(std::sync::atomic::Ordering::Relaxed));
    assert!(bytes < all + all / 4 && reads < (all >> 20) * 2 / 3, "{reads} requests for {bytes} of {all} bytes");
    let want = pass(&local, &tokenizer, Cursor::default(), 120);
    let got = pass(&remote, &tokenizer, Cursor::default(), 120);
    assert!(got == want);
    assert!(kept(&cache) <= LEAST_CACHE, "{} bytes", kept(&cache));
    // Opened anew, as after a stop.
    let again = open(&[url(&files.join("*"))], Kind::Pairs, Columns::default(), &cache, &store).map(Arc::new).unwrap();
    let behind = pass(&again, &tokenizer, want[79].facts.cursor_after, 40);
    assert!(behind == want[80..]);
    assert_eq!(again.remote_bytes(), all);
    assert!(again.facts().remote_bytes > 1 << 20);
}

#[test]
fn parts_are_used_again_and_damaged_ones_are_fetched_again() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.jsonl"), dir.path().join("cache"));
    let rows = random_rows(12_000);
    jsonl(&path, &rows);
    let (folder, store) = OtherFolder::shared();
    open_pairs(&path, &cache, &store).unwrap();
    let first = folder.reads();
    let parts = blocks(&cache);
    assert!(first > 0 && parts.len() >= 3, "{first} requests, {} parts", parts.len());
    // Another opening, as of a second process, asks for nothing.
    assert!(texts(&Arc::new(open_pairs(&path, &cache, &store).unwrap())) == rows);
    assert_eq!(folder.reads(), first);
    // A byte that is wrong, a part that is short, one that is gone.
    let mut bytes = fs_err::read(&parts[0]).unwrap();
    bytes[1000] ^= 1;
    fs_err::write(&parts[0], bytes).unwrap();
    fs_err::OpenOptions::new().write(true).open(&parts[1]).unwrap().set_len(5000).unwrap();
    fs_err::remove_file(&parts[2]).unwrap();
    let sources = Arc::new(open_pairs(&path, &cache, &store).unwrap());
    assert!(texts(&sources) == rows);
    assert!(folder.reads() > first);
    // All of them, while the files are open.
    for part in blocks(&cache) {
        fs_err::remove_file(part).unwrap();
    }
    assert!(texts(&sources) == rows);
}

#[test]
fn a_row_far_in_a_large_row_group_is_read_by_the_pages_around_it_alone() {
    let dir = tempdir().unwrap();
    let (path, cache) = (dir.path().join("a.parquet"), dir.path().join("cache"));
    let rows = random_rows(60_000);
    parquet::write_large_pages(&path, &rows, rows.len());
    let bytes = fs_err::metadata(&path).unwrap().len();
    assert!(bytes > 14 << 20, "{bytes} bytes are too few for this test");
    let (folder, store) = OtherFolder::shared();
    let sources = Arc::new(open_pairs(&path, &cache, &store).unwrap());
    for row in [59_999, 30_000, 1] {
        for part in blocks(&cache) {
            fs_err::remove_file(part).unwrap();
        }
        let before = folder.bytes.load(std::sync::atomic::Ordering::Relaxed);
        let mut texts = RowTexts::new(sources.clone());
        let (source, target) = texts.pair(row).unwrap();
        assert_eq!((source, target), (rows[row as usize].0.as_str(), rows[row as usize].1.as_str()));
        let fetched = folder.bytes.load(std::sync::atomic::Ordering::Relaxed) - before;
        // Of each column its dictionary and a page, which may lie across two parts, and what is read ahead.
        assert!(fetched <= 8 << 20 && fetched < bytes, "{fetched} of {bytes} bytes for row {row}");
    }
}

#[test]
fn a_file_that_was_replaced_is_told_as_a_local_one_is() {
    let dir = tempdir().unwrap();
    let cache = dir.path().join("cache");
    let (_, store) = OtherFolder::shared();
    let rows = numbered(3000, 50);
    for (name, write) in [
        ("a.jsonl", jsonl as fn(&Path, &[(String, String)])),
        ("a.parquet", |path, rows| parquet::write_pairs(path, rows, 1000)),
        ("a.arrow", |path, rows| arrow::write_pairs(path, rows, 1000)),
    ] {
        let path = dir.path().join(name);
        write(&path, &rows);
        let sources = Arc::new(open_pairs(&path, &cache, &store).unwrap());
        fs_err::remove_dir_all(cache.join("blocks")).unwrap();
        fs_err::create_dir(cache.join("blocks")).unwrap();
        fs_err::remove_file(&path).unwrap();
        write(&path, &numbered(2999, 50));
        let error = RowTexts::new(sources).pair(0).unwrap_err().to_string();
        let named = format!("`{}` changed after it was opened: at its version", url(&path).display());
        assert!(error.starts_with(&named), "{error}");
    }
}

#[test]
fn what_a_store_refuses_is_told_with_the_url_and_the_remedy_whatever_the_format() {
    let files = files();
    let dir = tempdir().unwrap();
    let (folder, store) = OtherFolder::shared();
    for name in files.of(Kind::Text) {
        let path = url(&files.paths(name)[0]);
        *folder.faults.lock().unwrap() =
            vec![RemoteFault::Refused { problem: "answers 403".into(), hint: "set credentials".into() }];
        let columns = files.columns(name, Kind::Text);
        let error = open(std::slice::from_ref(&path), Kind::Text, columns, dir.path(), &store).unwrap_err();
        assert_eq!(error.to_string(), format!("`{}` answers 403; set credentials", path.display()), "{name}");
    }
    let gone = url(Path::new("/nowhere/a.jsonl"));
    let error = open(&[gone], Kind::Pairs, Columns::default(), dir.path(), &store).unwrap_err().to_string();
    assert!(error.contains("`s3://bucket/nowhere/a.jsonl` is not there"), "{error}");
    let error = Sources::open(&[PathBuf::from("s3://b/*.jsonl")], Columns::default()).unwrap_err().to_string();
    assert!(error.contains("`s3://b/*.jsonl` lies elsewhere"), "{error}");
}
