//! `docs/guides.md` against the program itself: every command in it is one that the program has, and what the program has is not denied.

use std::collections::BTreeMap;
use std::process::Command;

use regex::Regex;

/// Verbs whose next word is one of their own.
const PARTED: [&str; 2] = ["remote", "data"];

fn document() -> String {
    fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides.md")).unwrap()
}

/// What the program says of a verb; nothing where it does not know it.
fn help(verb: &[&str]) -> Option<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(verb).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn every_command_of_the_page_is_one_of_the_programs() {
    let text = document();
    let (command, flag) = (Regex::new("`plimsoll ([^`]+)`").unwrap(), Regex::new("^--?[a-z][a-z-]*").unwrap());
    let mut known: BTreeMap<Vec<&str>, String> = BTreeMap::new();
    let mut commands = 0;
    for said in command.captures_iter(&text) {
        let whole = said.get(1).unwrap().as_str();
        // What stands behind `--` is somebody else's.
        let ours = whole.split(" -- ").next().unwrap_or(whole);
        let words: Vec<&str> = ours.split_whitespace().collect();
        let verb = words[..if PARTED.contains(&words[0]) { 2 } else { 1 }].to_vec();
        let help = known.entry(verb).or_insert_with_key(|verb| help(verb).unwrap_or_else(|| panic!("no `{verb:?}`")));
        for word in &words {
            let Some(flag) = flag.find(word) else { continue };
            let there = Regex::new(&format!(r"(?m)(^|[ ,]){}([ ,=]|$)", flag.as_str())).unwrap();
            assert!(there.is_match(help), "`plimsoll {whole}`: `{}` is not in its help:\n{help}", flag.as_str());
        }
        commands += 1;
    }
    assert!(commands > 200, "{commands}");
}

#[test]
fn nothing_is_said_to_be_missing_that_is_there() {
    let text = document();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| F") && line.contains("not served")).collect();
    // How busy a card is nobody reads while a run goes on. What else is missing belongs here, and leaves it when it comes.
    let ids: Vec<&str> = rows.iter().map(|row| &row[2..10]).collect();
    assert_eq!(ids, ["F002-025", "F004-024"], "{rows:#?}");
    assert!(rows.iter().all(|row| row.contains("`nvidia-smi") && row.contains("`card_busy_seconds`")), "{rows:#?}");
    assert!(!text.contains("by hand with"), "something is left to hands");
}

#[test]
fn what_the_guides_do_by_hand_on_other_machines_has_its_command() {
    let text = document();
    for verb in ["add", "push", "run", "logs", "watch", "probe"] {
        assert!(text.contains(&format!("`plimsoll remote {verb} box")), "`remote {verb}` is not named");
    }
    for named in ["`plimsoll deploy compose --profile", "`cnn-lstm`", "--train lora", "freeze = ["] {
        assert!(text.contains(named), "`{named}` is not named");
    }
}
