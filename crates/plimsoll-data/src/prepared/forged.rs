//! Prepared data that somebody wrote to deceive: checksums are right, numbers are not. Nothing that they say may lead to a panic, to
//! room taken for what is not there, or to a token outside the vocabulary.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::manifest::Manifest;
use super::shard;
use super::words::{TokenRows, WordForm};
use super::*;
use crate::document::TRAINED;
use crate::{Columns, DataError, Kind, Long, Recipe, Sources, TextTokenizer};

fn tokenizer(dir: &Path) -> TextTokenizer {
    let mut vocab = serde_json::Map::new();
    for (id, token) in
        ["<pad>", "</s>", "<unk>"].into_iter().map(String::from).chain((0..40).map(|n| format!("w{n}"))).enumerate()
    {
        vocab.insert(token, json!(id));
    }
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    });
    let path = dir.join("tokenizer.json");
    fs_err::write(&path, file.to_string()).unwrap();
    TextTokenizer::load(&path, 43, 1, 0).unwrap()
}

/// A small set of two shards.
fn made(dir: &Path) -> PathBuf {
    let rows: String = (0..9000).map(|i| format!("{{\"text\":\"w{} w2 w3\"}}\n", i % 40)).collect();
    let path = dir.join("a.jsonl");
    fs_err::write(&path, rows).unwrap();
    let sources = Sources::open_kind(&[path], Kind::Text, Columns::default()).unwrap();
    let settings = PrepareSettings { lengths: [8, 8], threads: 1, shard_bytes: 60_000, on_thread_start: None };
    let (recipe, folder) = (Recipe::text(Long::Cut, None), dir.join("prepared"));
    prepare(&sources, &tokenizer(dir), &recipe, &settings, &folder, &mut |_| ()).unwrap();
    assert!(folder.join(shard::name(1)).is_file());
    folder
}

/// Opens a set and reads all of it.
fn read(folder: &Path) -> Result<u64, DataError> {
    let sources = Sources::open_kind(&[folder.to_path_buf()], Kind::Text, Columns::default())?;
    let Some(prepared) = sources.prepared() else { return Ok(0) };
    let (mut words, mut count) = (Vec::new(), 0);
    for (number, block) in sources.blocks().iter().enumerate() {
        let mut rows = TokenRows::with_room(prepared.form(), 0, 0);
        prepared.read_block(number, *block, &mut rows)?;
        count += rows.len() as u64;
        for row in 0..rows.len() {
            for side in rows.row(row) {
                words.clear();
                side.copy(0, side.len(), &mut words);
                let most = prepared.manifest.made_by.most_id;
                assert!(words.iter().all(|word| word & !TRAINED <= most));
            }
        }
    }
    Ok(count)
}

/// Gives a shard the checksums of what it holds now, and the manifest too.
fn seal(folder: &Path, number: u32) {
    let path = folder.join(shard::name(number));
    let mut bytes = fs_err::read(&path).unwrap();
    let (tail, header) = (bytes.len() - shard::TAIL as usize, shard::HEADER as usize);
    let u64_at = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let count = u64_at(&bytes, tail + 56);
    let Some(table) = count.checked_mul(shard::ENTRY).and_then(|n| tail.checked_sub(n as usize)) else { return };
    let mut at = header;
    for entry in (table..tail).step_by(shard::ENTRY as usize) {
        let end = at.saturating_add(u32_at(&bytes, entry + 24) as usize);
        let crc = bytes.get(at..end).map_or(0, crc32fast::hash);
        bytes[entry + 28..entry + 32].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
    let mut hasher = crc32fast::Hasher::new();
    for part in [&bytes[..header], &bytes[table..tail + 64]] {
        hasher.update(part);
    }
    let crc = hasher.finalize();
    bytes[tail + 64..tail + 68].copy_from_slice(&crc.to_le_bytes());
    fs_err::write(&path, &bytes).unwrap();
    // What the manifest says of it, as far as it can be said.
    let mut manifest = Manifest::read(folder).unwrap();
    let facts = &mut manifest.shards[number as usize];
    facts.crc = crc;
    (facts.tokens, facts.rows, facts.blocks) = (u64_at(&bytes, tail + 40), u64_at(&bytes, tail + 48), count);
    reseal(manifest).write(folder).unwrap();
}

fn reseal(manifest: Manifest) -> Manifest {
    let Manifest { made_by, lengths, word_bytes, origin, shards, .. } = manifest;
    Manifest::new(made_by, lengths, word_bytes, origin, shards)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_block_or_are_refused(
        bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => 0u8..4, 1 => any::<u8>()], 0..200),
        rows in 0u32..12, wide: bool, chat: bool, most in 0u32..70_000,
    ) {
        let kind = if chat { Kind::Chat } else { Kind::Pairs };
        let form = WordForm { bytes: if wide { 4 } else { 2 }, kind };
        let mut all = TokenRows::with_room(form, 0, 0);
        all.room(bytes.len()).copy_from_slice(&bytes);
        if all.take_in(bytes.len(), rows, most).is_ok() {
            let mut words = Vec::new();
            (0..all.len()).for_each(|row| all.row(row).iter().for_each(|side| side.copy(0, side.len(), &mut words)));
            prop_assert!(words.iter().all(|word| word & !TRAINED <= most));
            prop_assert_eq!(8 * rows as usize + words.len() * form.bytes as usize, bytes.len());
        }
    }
}

#[test]
fn a_set_with_forged_numbers_is_rows_or_an_error_that_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = made(dir.path());
    assert_eq!(read(&folder).unwrap(), 9000);
    let (whole, told) =
        (fs_err::read(folder.join(shard::name(1))).unwrap(), fs_err::read(folder.join("prepared.json")).unwrap());
    seal(&folder, 1);
    assert_eq!(fs_err::read(folder.join("prepared.json")).unwrap(), told, "sealing a whole shard changes nothing");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let bytes = prop_oneof![prop::collection::vec(any::<u8>(), 1..9), Just(vec![0xff; 8]), Just(vec![0; 8])];
    let harm = (any::<Index>(), bytes, 0..4u8);
    runner
        .run(&harm, |(at, new, where_to)| {
            let mut bytes = whole.clone();
            // Most of the file is blocks; its numbers are what is worth forging.
            let table = bytes.len() - 400;
            let at = match where_to {
                0 => at.index(48),
                1 => at.index(bytes.len()),
                _ => table + at.index(400),
            };
            let end = (at + new.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
            fs_err::write(folder.join(shard::name(1)), &bytes).unwrap();
            fs_err::write(folder.join("prepared.json"), &told).unwrap();
            seal(&folder, 1);
            if let Err(error) = read(&folder) {
                prop_assert!(error.to_string().contains("prepared"), "{error}");
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_manifest_with_forged_numbers_is_rows_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let folder = made(dir.path());
    let path = folder.join("prepared.json");
    let told: Value = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    let mut places = Vec::new();
    numbers(&told, String::new(), &mut places);
    assert!(places.len() > 20, "{places:?}");
    let mut read_anyway = Vec::new();
    for place in places {
        for number in [0u64, 1, 3, 70_000, u64::from(u32::MAX), u64::MAX] {
            if told.pointer(&place) == Some(&json!(number)) {
                continue;
            }
            let mut forged = told.clone();
            *forged.pointer_mut(&place).unwrap() = json!(number);
            let Ok(manifest) = serde_json::from_value::<Manifest>(forged) else { continue };
            reseal(manifest).write(&folder).unwrap();
            match read(&folder) {
                Ok(rows) => read_anyway.push((place.clone(), rows)),
                Err(error) => assert!(error.to_string().contains("prepared"), "{error}"),
            }
        }
    }
    // What the shards do not know: facts of the originals, and which lengths are served.
    for (place, rows) in read_anyway {
        // The version and the checksum are written anew.
        let free = ["/origin/", "/lengths/", "/made_by/", "/crc", "/plimsoll_prepared"]
            .iter()
            .any(|free| place.starts_with(free));
        assert!(rows == 9000 && free, "{place}");
    }
}

fn numbers(value: &Value, place: String, out: &mut Vec<String>) {
    match value {
        Value::Number(_) => out.push(place),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{place}/{i}"), out)),
        Value::Object(map) => map.iter().for_each(|(key, v)| numbers(v, format!("{place}/{key}"), out)),
        _ => {}
    }
}

#[test]
fn a_set_that_lost_a_shard_is_made_whole_by_preparing_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = made(dir.path());
    let rows = read(&folder).unwrap();
    let lost = folder.join(shard::name(1));
    let before = fs_err::read(&lost).unwrap();
    fs_err::remove_file(&lost).unwrap();
    assert!(read(&folder).is_err());
    made(dir.path());
    assert_eq!(read(&folder).unwrap(), rows);
    assert_eq!(fs_err::read(&lost).unwrap(), before);
}

#[test]
fn a_manifest_that_serves_more_lengths_than_its_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = made(dir.path());
    let told = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = Manifest::read(&folder).unwrap();
        change(&mut manifest);
        let Manifest { made_by, lengths, word_bytes, origin, shards, .. } = manifest;
        let kept = fs_err::read(folder.join(super::manifest::NAME)).unwrap();
        Manifest::new(made_by, lengths, word_bytes, origin, shards).write(&folder).unwrap();
        let said = read(&folder).unwrap_err().to_string();
        fs_err::write(folder.join(super::manifest::NAME), kept).unwrap();
        said
    };
    let said = told(&|manifest| manifest.lengths[0].from += 1);
    assert!(said.contains("prepared.json") && said.contains("as the shards say"), "{said}");
    let said = told(&|manifest| manifest.origin.longest_source = 1 << 40);
    assert!(said.contains("longest texts"), "{said}");
}
