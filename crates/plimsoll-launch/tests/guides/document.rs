//! `docs/guides.md`: every row of the guides has its place, every id and name in it exists.

use std::collections::BTreeMap;

use plimsoll_launch::guide::{all, corrections, profile};
use plimsoll_launch::{Knob, Shelf};
use regex::Regex;

fn document() -> String {
    fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides.md")).unwrap()
}

/// The cells of the table rows whose first cell has this form.
fn rows(text: &str, first: &str) -> Vec<Vec<String>> {
    let first = Regex::new(&format!("^{first}$")).unwrap();
    let cells = |line: &str| -> Option<Vec<String>> {
        let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some(inner.split(" | ").map(|cell| cell.trim().to_string()).collect())
    };
    text.lines().filter_map(cells).filter(|cells| first.is_match(&cells[0])).collect()
}

#[test]
fn every_row_of_the_guides_is_mapped_once() {
    let known: Vec<&str> = include_str!("features.txt").lines().collect();
    assert_eq!(known.len(), 376);
    let text = document();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows(&text, r"F\d{3}-\d{3}") {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        *times.entry(row[0].clone()).or_default() += 1;
    }
    let missing: Vec<_> = known.iter().filter(|id| !times.contains_key(**id)).collect();
    let strange: Vec<_> = times.keys().filter(|id| !known.contains(&id.as_str())).collect();
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(missing.is_empty() && strange.is_empty() && twice.is_empty(), "{missing:?} {strange:?} {twice:?}");
    let lines = text.lines().filter(|line| line.starts_with("| F")).count();
    assert_eq!(lines, 376, "a line that begins as a row is one");
}

#[test]
fn every_truth_is_a_correction_and_stands_in_the_document() {
    let known: Vec<&str> = include_str!("truths.txt").lines().collect();
    assert_eq!(known.len(), 74);
    let ids: Vec<&str> = corrections().iter().map(|correction| correction.id.as_str()).collect();
    assert_eq!(ids, known);
    let text = document();
    for named in Regex::new(r"C-\d{3}-\d+").unwrap().find_iter(&text) {
        assert!(known.contains(&named.as_str()), "`{}`", named.as_str());
    }
    let shown = rows(&text, r"C-\d{3}-\d+");
    let told = corrections().iter().map(|correction| {
        vec![correction.id.clone(), correction.severity.to_string(), correction.claim.clone(), correction.truth.clone()]
    });
    assert_eq!(shown, told.collect::<Vec<_>>());
}

#[test]
fn every_profile_is_in_the_document_and_every_one_that_it_names_exists() {
    let text = document();
    for known in all() {
        assert!(text.contains(&format!("`{}`", known.name)), "`{}` is not in docs/guides.md", known.name);
    }
    for named in Regex::new(r"--profile ([a-z0-9-]+)").unwrap().captures_iter(&text) {
        // `guide` is the one that is for the machine.
        assert!(&named[1] == "guide" || profile(&named[1]).is_ok(), "`{}`", &named[1]);
    }
}

#[test]
fn every_knob_trainer_and_page_that_it_names_exists() {
    let text = document();
    let knobs = Regex::new(r"knobs? `([a-z_]+)`(?: and `([a-z_]+)`)?").unwrap();
    for named in knobs.captures_iter(&text).flat_map(|said| [said.get(1), said.get(2)]).flatten() {
        assert!(Knob::ALL.iter().any(|knob| knob.name() == named.as_str()), "`{}`", named.as_str());
    }
    let shelf = Shelf::built_in().unwrap();
    for named in Regex::new(r"(?:--trainer |trainer file `)([a-z][a-z-]+)").unwrap().captures_iter(&text) {
        assert!(shelf.get(&named[1]).is_ok(), "`{}`", &named[1]);
    }
    for page in Regex::new(r"`docs/([a-z]+\.md)`|\]\(([a-z]+\.md)\)").unwrap().captures_iter(&text) {
        let page = page.get(1).or(page.get(2)).unwrap().as_str();
        let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        assert!(fs_err::metadata(path).is_ok(), "`{page}`");
    }
}
