//! Every verb explains itself with examples, and what it is told wrongly ends in exit 2 on stderr. Data goes to stdout,
//! and whoever stops reading it early does no harm.

use std::process::{Command, Output};

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().expect("plimsoll runs")
}

const VERBS: &[&str] = &[
    "probe",
    "plan",
    "train",
    "run",
    "resume",
    "generate",
    "eval",
    "checkpoints",
    "data",
    "watch",
    "check",
    "doctor",
    "logs",
    "mirror",
    "deploy",
    "remote",
];

#[test]
fn each_verbs_help_holds_an_example_of_that_verb() {
    for verb in VERBS {
        let output = plimsoll(&[verb, "--help"]);
        let help = String::from_utf8(output.stdout).expect("help is text");
        assert_eq!(output.status.code(), Some(0), "{verb}");
        let (_, examples) = help.split_once("Examples:\n").unwrap_or_else(|| panic!("{verb} has no examples:\n{help}"));
        assert!(examples.contains(&format!("plimsoll {verb} ")), "{verb}:\n{examples}");
        assert!(output.stderr.is_empty(), "{verb} talks on stderr");
    }
}

#[test]
fn every_example_is_a_command_that_the_program_understands() {
    for verb in VERBS {
        let help = String::from_utf8(plimsoll(&[verb, "--help"]).stdout).expect("help is text");
        let (_, examples) = help.split_once("Examples:\n").expect("examples");
        for line in examples.lines().map(str::trim).filter(|line| line.starts_with("plimsoll ")) {
            // What stands behind three spaces explains; what stands behind `<` is stdin.
            let command = line.split("   ").next().unwrap_or(line).split(" <").next().unwrap_or(line);
            let words = words(command);
            let mut args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
            // `--help` behind a wrong word is still an error about the word.
            // Behind `--` it would be somebody else's.
            let at = args.iter().position(|word| *word == "--").unwrap_or(args.len());
            args.insert(at, "--help");
            let output = plimsoll(&args);
            assert_eq!(output.status.code(), Some(0), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Splits at spaces outside single quotes.
fn words(command: &str) -> Vec<String> {
    command
        .split('\'')
        .enumerate()
        .flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(str::to_string).collect::<Vec<_>>(),
            _ => vec![part.to_string()],
        })
        .collect()
}

#[test]
fn the_list_of_verbs_hides_the_worker() {
    let help = String::from_utf8(plimsoll(&["--help"]).stdout).expect("help is text");
    for verb in VERBS {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is missing:\n{help}");
    }
    assert!(!help.contains("worker"), "{help}");
    assert!(help.contains("Exit codes: 0 done"), "{help}");
}

#[test]
fn a_wrong_word_is_refused_with_exit_2_and_the_nearest_known_one() {
    let cases: &[(&[&str], &str)] = &[
        (&["trian"], "train"),
        (&["train", "--effective-bacth", "4"], "--effective-batch"),
        (&["train", "--steps", "4", "--steps", "5"], "cannot be used multiple times"),
        (&["train", "--steps", "4", "--epochs", "5"], "cannot be used with"),
        (&["train", "--shuffle", "--no-shuffle"], "cannot be used with"),
        (&["train", "--ram", "2GB"], "`2GB` is not a number of bytes"),
        (&["train", "--steps", "many"], "expected a whole number of 0 or more"),
        (&["train", "--recompute", "some"], "expected a number of blocks, `all` or `none`"),
        (&["generate", "x", "--beams", "0"], "0 is not in 1..=64"),
        (&["resume"], "<RUN|URL>"),
    ];
    for (args, expected) in cases {
        let output = plimsoll(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn probe_prints_json_for_programs_and_text_for_people() {
    let json = plimsoll(&["probe", "--json"]);
    assert_eq!(json.status.code(), Some(0), "{}", String::from_utf8_lossy(&json.stderr));
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("probe --json is JSON");
    assert!(value["usable"].is_number() && value.get("swap_advice").is_some(), "{value}");
    let text = plimsoll(&["probe"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("GiB"), "{}", String::from_utf8_lossy(&text.stdout));
}

#[test]
fn a_reader_that_has_gone_is_no_failure_but_a_full_disk_is() {
    let probe_into = |stdout: std::process::Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(["probe", "--json"]).stdout(stdout).output().expect("plimsoll runs")
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let gone = probe_into(writer.into());
    assert_eq!(gone.status.code(), Some(0), "{}", String::from_utf8_lossy(&gone.stderr));
    assert!(gone.stderr.is_empty(), "{}", String::from_utf8_lossy(&gone.stderr));
    let full =
        probe_into(fs_err::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full").into_parts().0.into());
    let stderr = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot write to stdout\n  because: "), "{stderr}");
}
