//! The chat example ships data: what is committed must be what its generator makes, and its evaluation must be fair.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

#[allow(dead_code, reason = "the example's `main` is not called here")]
#[path = "../examples/make_chat.rs"]
mod make_chat;

fn example() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/chat")
}

fn prompts(file: &str) -> Vec<String> {
    let text = fs_err::read_to_string(example().join(file)).expect("the example is committed");
    let prompt = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).expect("every line is JSON");
        row["prompt"].as_str().expect("every row has a prompt").to_owned()
    };
    text.lines().map(prompt).collect()
}

/// Every two names (of people, pets, cities: the capitalised words) that meet in a story, in alphabetical order.
fn meetings(prompt: &str) -> Vec<(&str, &str)> {
    let name = |word: &&str| word.starts_with(|c: char| c.is_ascii_uppercase());
    let names: BTreeSet<&str> = prompt.split(|c: char| !c.is_alphabetic()).filter(name).collect();
    names.iter().flat_map(|a| names.range(*a..).skip(1).map(|b| (*a, *b))).collect()
}

#[test]
fn the_committed_example_is_what_its_generator_makes() {
    for (path, made) in make_chat::files() {
        let committed = fs_err::read_to_string(example().join(path)).expect("the example is committed");
        let same = committed.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
        assert!(
            committed == made,
            "`{path}` differs from line {}: run `cargo run -p plimsoll --example make_chat`",
            same + 1
        );
    }
}

#[test]
fn no_evaluation_story_and_no_held_out_pair_of_names_is_in_training() {
    let (train, eval) = (prompts("data/train.jsonl"), prompts("data/eval.jsonl"));
    let trained: HashSet<&String> = train.iter().collect();
    assert!(eval.iter().all(|prompt| !trained.contains(prompt)));
    let met: HashSet<(&str, &str)> = train.iter().flat_map(|prompt| meetings(prompt)).collect();
    let held_out: HashSet<(&str, &str)> =
        eval.iter().flat_map(|prompt| meetings(prompt)).filter(|(a, b)| make_chat::held_out(a, b)).collect();
    assert!(held_out.len() >= 20, "only {} held-out pairs of names are evaluated", held_out.len());
    let leaked: Vec<_> = held_out.intersection(&met).collect();
    assert!(leaked.is_empty(), "these meet in training too: {leaked:?}");
}

#[test]
fn every_value_that_is_asked_for_has_been_seen_in_training() {
    let (train, eval) = (prompts("data/train.jsonl"), prompts("data/eval.jsonl"));
    let words = |prompts: &[String]| -> HashSet<String> {
        prompts.iter().flat_map(|p| p.split(|c: char| !c.is_alphabetic())).map(String::from).collect()
    };
    let unseen: Vec<String> = words(&eval).difference(&words(&train)).cloned().collect();
    assert!(unseen.is_empty(), "evaluation uses words that training never shows: {unseen:?}");
}
