//! Deployments to write down, ordinary and odd, and the real tools that read them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;
use std::process::Command;

use plimsoll_deploy::{Claim, Deployment, Grace, Kind, Limit, Mount, Name, Stop};
use plimsoll_machine::Bytes;

/// Words that every format has its own trouble with.
pub const ODD: &[&str] = &[
    "--data",
    "/data/with blank/a.jsonl",
    "it's \"quoted\"",
    "$HOME ${HOME} $(HOME) $$ $",
    "100% %h %% %",
    "back\\slash\\n \\",
    "two\nlines\tand a tab",
    "",
    " ",
    "- item: [a, {b: c}] # no comment",
    "yes",
    "~",
    "0x10",
    ";",
    "&& rm -rf x | y > z < `w` !",
    "ключ=значение 中文 😀",
    "\u{85}\u{2028}\u{feff}\u{7f}\u{1b}[0m",
    "@ - : + !",
    "*",
    "{{.Names}}",
];

/// An ordinary job of ours.
pub fn native() -> Deployment {
    Deployment {
        name: Name::near("chat").unwrap(),
        kind: Kind::Native,
        notes: vec!["made from job.toml".into()],
        program: "/usr/bin/env".into(),
        words: ["train", "job.toml", "--out", "/data/runs/chat", "--go-on"].map(String::from).to_vec(),
        folder: "/tmp".into(),
        image: "plimsoll:0.1.0".into(),
        memory: Limit::over(Bytes::gib(3), "plan"),
        shm: None,
        cards: 0,
        cores: 4,
        grace: Grace::of(Stop::Saves { step_seconds: 1.5, checkpoint: Bytes::gib(2), mirrored: Some(None) }),
        saves: true,
        variables: ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(String::from).to_vec(),
        set: vec![("XDG_CACHE_HOME".into(), "/data/runs/.cache".into())],
        mounts: vec![
            Mount { path: "/data/model".into(), written: false },
            Mount { path: "/data/runs".into(), written: true },
        ],
        owner: (1000, 1000),
        claims: Vec::new(),
        secret: "chat".into(),
    }
}

/// Somebody else's program on four cards, with everything that can be odd.
pub fn odd() -> Deployment {
    Deployment {
        kind: Kind::Foreign,
        saves: false,
        notes: vec!["a note\nwith two lines # and more".into()],
        words: ODD.iter().map(|word| word.to_string()).collect(),
        shm: Some(Bytes::gib(2)),
        cards: 4,
        grace: Grace::of(Stop::Within { seconds: 120 }),
        set: vec![("XDG_CACHE_HOME".into(), "/a b/$c/%d/\"e\"".into())],
        mounts: vec![
            Mount { path: "/data/b c: $x'\"".into(), written: true },
            Mount { path: "/in".into(), written: false },
        ],
        claims: vec![Claim::parse("disk=/in").unwrap()],
        ..native()
    }
}

/// Those programs that are here, of some with the words that make them tell their version; the reason where none is.
pub fn tools(candidates: &[(&[&str], &str)]) -> Result<Vec<Vec<String>>, String> {
    let is_here = |(words, version): &&(&[&str], &str)| {
        let asked = Command::new(words[0]).args(&words[1..]).args(version.split(' ')).output();
        asked.is_ok_and(|output| output.status.success())
    };
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
    let found: Vec<Vec<String>> = candidates.iter().filter(is_here).map(|(said, _)| words(said)).collect();
    if found.is_empty() { Err(format!("none of {candidates:?} is here")) } else { Ok(found) }
}

/// The first of them.
pub fn tool(candidates: &[(&[&str], &str)]) -> Result<Vec<String>, String> {
    tools(candidates).map(|mut found| found.swap_remove(0))
}

/// Says that a test could not look.
#[allow(clippy::print_stderr, reason = "a skipped test says why")]
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// A file in a folder of its own.
pub fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs_err::write(&path, text).unwrap();
    (folder, path)
}
