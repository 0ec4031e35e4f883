//! What a user does with a run: `generate`, `eval` and `checkpoints`, with the real binary on a real, small run.

mod support_run;

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use support_run::trainer::Trainer;
use support_run::{Said, Workshop};

/// A workshop with a finished run `run`, shared by the tests that only look.
fn finished() -> &'static Workshop {
    static FINISHED: OnceLock<Workshop> = OnceLock::new();
    FINISHED.get_or_init(|| {
        let workshop = Workshop::new();
        workshop.job("effective_batch = 8\nsteps = 60\nsave_every = 20\neval_every = 30\noptimizer = { name = \"adafactor\", lr = 1e-2 }\n");
        Trainer::train(&workshop, "run").end().must(0, &["done: 60 steps"]);
        workshop
    })
}

const PROMPTS: [&str; 10] = [
    "i live in Oslo. where do i live?",
    "my name is Ada. what is my name?",
    "my cat is called Pixel. what is my cat called?",
    "i work as a tailor. what do i work as?",
    "my favourite food is cake. what is my favourite food?",
    "hello, this is Rosa. i have a goat named Waffle. how do i call my goat?",
    "i am learning the flute. which instrument do i play?",
    "my favourite colour is brown. what is my favourite colour?",
    "my home is in Rome. where do i live?",
    "i have a dog named Pickle. what is my dog called?",
];

fn generate(from: &str, more: &[&str]) -> Said {
    let flags: Vec<&str> = PROMPTS.iter().flat_map(|prompt| ["--prompt", prompt]).collect();
    finished().plimsoll(&[&["generate", from, "--max-new", "12"], flags.as_slice(), more].concat())
}

/// The answers of a `--json` output, after a look at its form.
fn answers(said: &Said, prompts: &[&str]) -> Vec<String> {
    said.must(0, &[]);
    let rows: Vec<Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect();
    assert_eq!(rows.len(), prompts.len());
    for (row, prompt) in rows.iter().zip(prompts) {
        assert_eq!(row["prompt"], *prompt);
        assert!(row["tokens"].as_u64().is_some_and(|tokens| tokens <= 12), "{row}");
    }
    rows.iter().map(|row| row["answer"].as_str().expect("an answer").to_string()).collect()
}

#[test]
fn every_prompt_has_its_answer_however_it_was_given() {
    let by_flags = answers(&generate("run", &["--json"]), &PROMPTS);
    assert!(by_flags.iter().any(|answer| answer.starts_with("you")), "nothing was learnt: {by_flags:?}");
    // As text: one line each, in order.
    let text = generate("run", &[]);
    assert_eq!(text.must(0, &[]).stdout.lines().collect::<Vec<_>>(), by_flags);
    // From the model folder itself.
    assert_eq!(answers(&generate("run/model", &["--json"]), &PROMPTS), by_flags);
    // By standard input, empty lines left out.
    let input = PROMPTS.join("\n\n") + "\n";
    let by_input = finished().plimsoll_with(&["generate", "run", "--max-new", "12", "--json"], &input);
    assert_eq!(answers(&by_input, &PROMPTS), by_flags);
    // One at a time: an answer does not depend on its neighbours.
    for (prompt, together) in PROMPTS.iter().zip(&by_flags).take(4) {
        let alone = finished().plimsoll(&["generate", "run", "--max-new", "12", "--json", "--prompt", prompt]);
        assert_eq!(answers(&alone, &[prompt]), std::slice::from_ref(together));
    }
}

#[test]
fn beams_answer_every_prompt_and_the_same_way_twice() {
    let first = answers(&generate("run", &["--json", "--beams", "4"]), &PROMPTS);
    assert_eq!(answers(&generate("run", &["--json", "--beams", "4"]), &PROMPTS), first);
    assert!(first.iter().all(|answer| !answer.is_empty()), "{first:?}");
    generate("run", &["--beams", "0"]).must(2, &["--beams"]);
}

#[test]
fn a_prompt_that_is_too_long_is_cut_and_named() {
    let long = "my cat is called Pixel. ".repeat(120);
    let prompts = [PROMPTS[0], long.as_str()];
    let said = finished().plimsoll(&[
        "generate",
        "run",
        "--max-new",
        "12",
        "--json",
        "--prompt",
        prompts[0],
        "--prompt",
        prompts[1],
    ]);
    said.must(0, &["warning: prompt 2 is longer than 512 tokens and was cut"]);
    assert_eq!(said.stderr.matches("warning").count(), 1, "{}", said.stderr);
    answers(&said, &prompts);
}

#[test]
fn what_holds_no_model_yet_is_refused_with_the_way_on() {
    let workshop = Workshop::new();
    workshop.job("effective_batch = 8\nsteps = 400\n");
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(1).signal(rustix::process::Signal::INT);
    trainer.end().must(4, &[]);
    for verb in [&["generate", "run", "--prompt", "hello"][..], &["eval", "run"]] {
        let said = workshop.plimsoll(verb);
        said.must(
            2,
            &["error: `run` holds no model", "hint: the run is not finished; go on with it: plimsoll resume run"],
        );
        assert_eq!(said.stdout, "");
    }
    let said = workshop.plimsoll(&["generate", ".", "--prompt", "hello"]);
    said.must(2, &["error: `./model` has no `model.safetensors`"]);
    workshop.plimsoll(&["generate", "nowhere", "--prompt", "hello"]).must(2, &["error: `nowhere` does not exist"]);
    workshop.plimsoll(&["eval", "nowhere"]).must(2, &["error: `nowhere` "]);
    workshop.plimsoll(&["checkpoints", "model"]).must(2, &["error: `model` has no checkpoints"]);
}

#[test]
fn eval_finds_what_the_run_found_at_its_end() {
    let workshop = finished();
    let summary: Value =
        serde_json::from_str(&fs_err::read_to_string(workshop.path("run/summary.json")).unwrap()).unwrap();
    let last = summary["evals"].as_array().and_then(|evals| evals.last()).expect("an evaluation at the end");
    let said = workshop.plimsoll(&["eval", "run", "--json"]);
    let found: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
    let (ours, theirs) = (found["loss"].as_f64().unwrap(), last["loss"].as_f64().unwrap());
    assert!((ours - theirs).abs() <= 1e-6 * theirs, "{ours} and {theirs}");
    assert_eq!((&found["bleu"], &found["exact"]), (&last["bleu"], &last["exact"]));
    assert_eq!((found["rows"].as_u64(), found["generated"].as_u64()), (Some(10), Some(10)));
    let text = workshop.plimsoll(&["eval", "run"]);
    let expected = format!("eval loss {ours:.4}, BLEU-4 ");
    assert!(
        text.must(0, &[]).stdout.starts_with(&expected) && text.stdout.contains("of 10 answers exactly right"),
        "{}",
        text.stdout
    );
    // What was trained on is known better than what was not.
    let said = workshop.plimsoll(&["eval", "run", "--json", "--data", "train.jsonl"]);
    let trained: Value = serde_json::from_str(&said.must(0, &[]).stdout).unwrap();
    assert_eq!(trained["rows"].as_u64(), Some(support_run::ROWS as u64));
    assert!(trained["loss"].as_f64().unwrap() < ours, "{trained} and {found}");
    workshop.plimsoll(&["eval", "run", "--data", "none.jsonl"]).must(2, &["none.jsonl"]);
}

#[test]
fn checkpoints_are_listed_and_a_broken_one_is_found_only_by_reading_it() {
    let workshop = Workshop::new();
    workshop.job("effective_batch = 8\nsteps = 9\nsave_every = 3\nkeep = 3\n");
    Trainer::train(&workshop, "run").end().must(0, &[]);
    let list = |more: &[&str]| workshop.plimsoll(&[&["checkpoints", "run"], more].concat());
    let steps = |said: &Said| -> Vec<u64> {
        let rows: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
        rows.iter().map(|row| row["step"].as_u64().unwrap()).collect()
    };
    let said = list(&["--json"]);
    assert_eq!(steps(said.must(0, &[])), [3, 6, 9]);
    let said = list(&["--verify"]);
    assert_eq!(said.must(0, &[]).stdout.matches("  verified  ").count(), 3, "{}", said.stdout);

    let file = Path::new("checkpoints/step-6/optimizer.safetensors");
    let path = workshop.path("run").join(file);
    let mut bytes = fs_err::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs_err::write(&path, &bytes).unwrap();
    // A quick look sees names and lengths; only --verify reads.
    assert_eq!(list(&[]).must(0, &[]).stdout.matches("  complete  ").count(), 3);
    let said = list(&["--verify"]);
    assert_eq!(said.code, Some(1));
    let line = said.stdout.lines().find(|line| line.starts_with("step 6 ")).expect("a line for step 6");
    assert!(line.contains("broken: ") && line.contains("optimizer.safetensors`: expected checksum"), "{line}");
    assert_eq!(said.stdout.matches("  verified  ").count(), 2);

    fs_err::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let said = list(&["--json"]);
    assert_eq!((said.code, steps(&said)), (Some(1), vec![3, 6, 9]));
    assert!(said.stdout.contains("broken: "), "{}", said.stdout);
}
