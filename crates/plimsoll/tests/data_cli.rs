//! `plimsoll data`: what is in files, and what is said of an order that a shuffle cannot mix; a tokenizer of their words; rows tokenised
//! once, and trained from.

mod support_run;

use rustix::process::Signal;
use serde_json::Value;
use support_run::decoder::Rows;
use support_run::model::Family;
use support_run::trainer::Trainer;
use support_run::{PINS, Result, Workshop, tree};

#[test]
fn inspect_tells_rows_lengths_repeats_and_what_would_be_cut() {
    let workshop = Workshop::new().with_own_cache();
    let line = |n: usize| format!("{{\"prompt\":\"what is my {n} dog called?\",\"response\":\"Pickle {n}\"}}\n");
    // Of 100 rows the last 20 are there already.
    let rows: String = (0..100).map(|n| line(n % 80)).collect();
    fs_err::write(workshop.path("a.jsonl"), rows).unwrap();
    let said = workshop.plimsoll(&["data", "inspect", "a.jsonl", "--model", "model", "--max-len", "6", "--json"]);
    said.must(0, &[]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&found["rows"], &found["files"], &found["kind"]), (&100.into(), &1.into(), &"pairs".into()));
    assert_eq!(found["columns"]["source"], "prompt");
    assert_eq!(found["repeats"]["share"], 0.2);
    assert_eq!(found["bytes"]["count"], 100);
    assert_eq!(found["max_len"]["of"], 100);
    assert!(found["max_len"]["longer"].as_u64().unwrap() > 0);
    assert_eq!(found["mixing"]["needed"], Value::Null);
    let said = workshop.plimsoll(&["data", "inspect", "a.jsonl"]);
    said.must(0, &[]);
    for words in ["100 rows in 1 file(s)", "source `prompt`, target `response`", "repeated: 20.00 %", "one window"] {
        assert!(said.stdout.contains(words), "`{words}` is not in: {}", said.stdout);
    }
    workshop
        .plimsoll(&["data", "inspect", "a.jsonl", "--max-len", "6"])
        .must(2, &["`--max-len` counts tokens", "--model"]);
    workshop.plimsoll(&["data", "inspect", "a.jsonl", "--kind", "x"]).must(2, &["must be `pairs`, `chat` or `text`"]);
    workshop.plimsoll(&["data", "inspect", "none.jsonl"]).must(2, &["none.jsonl"]);
}

#[test]
fn a_ceiling_for_the_loader_is_kept_or_refused_with_what_is_needed() {
    let workshop = Workshop::new();
    let row = |n: usize| serde_json::json!({"prompt": "w1 ".repeat(200_000 + n), "response": "w2"}).to_string() + "\n";
    fs_err::write(workshop.path("long.jsonl"), (0..40).map(row).collect::<String>()).unwrap();
    workshop.job("effective_batch = 8\nsteps = 2\n");
    let plan = |memory: &str| workshop.plimsoll(&["plan", "job.toml", "--data", "long.jsonl", "--data-memory", memory]);
    plan("1MiB").must(2, &["--data-memory", "expected at least 16.0 MiB"]);
    plan("16MiB").must(2, &["`data.memory` is 16.0 MiB", "for the tokenizer's tables", "is enough"]);
    let said = plan("40MiB");
    said.must(0, &["instead of 64"]);
}

#[test]
fn a_file_of_groups_is_told_with_the_window_that_would_mix_it_and_that_one_does() {
    let workshop = Workshop::new().with_own_cache();
    // Groups of 600 rows, about a block each, in no order.
    let letter = |n: usize| char::from(b'a' + (n / 600 * 7919 % 20) as u8).to_string();
    let rows: String = (0..60_000).map(|n| format!("{},{n}\n", letter(n).repeat(100))).collect();
    fs_err::write(workshop.path("groups.csv"), "prompt,response\n".to_string() + &rows).unwrap();
    let inspect = |more: &[&str]| {
        let said = workshop.plimsoll(&[&["data", "inspect", "groups.csv", "--json"], more].concat());
        said.must(0, &[]);
        serde_json::from_str::<Value>(&said.stdout).unwrap()["mixing"].clone()
    };
    let found = inspect(&["--window", "16"]);
    let needed = found["needed"].as_u64().expect("a window that would mix");
    assert!(found["excess"].as_f64().unwrap() > 0.1 && needed > 16, "{found}");
    assert_eq!(inspect(&["--window", &needed.to_string()])["needed"], Value::Null);
    let said = workshop.plimsoll(&["data", "inspect", "groups.csv", "--window", "16"]);
    assert!(said.stdout.contains(&format!("--window {needed}")), "{}", said.stdout);
    // And a run takes it.
    workshop.job("effective_batch = 8\nsteps = 2\n");
    let args = ["train", "job.toml", "--data", "groups.csv", "--window", &needed.to_string(), "--out", "run"];
    workshop.plimsoll(&args).must(0, &["done: 2 steps"]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    assert!(job.contains(&format!("window = {needed}")), "{job}");
}

#[test]
fn the_sets_of_a_mixture_are_told_with_their_shares_and_a_run_keeps_them() {
    let workshop = Workshop::new().with_own_cache();
    let rows =
        |n: usize, of: &str| (0..n).map(|k| format!("what is my {of} {k} called?,Pickle {k}\n")).collect::<String>();
    fs_err::write(workshop.path("cats.csv"), "x,y\n".to_string() + &rows(30, "cat")).unwrap();
    fs_err::write(workshop.path("dogs.csv"), "q,a\n".to_string() + &rows(40, "dog")).unwrap();
    // The columns of the first set, which nobody would guess.
    fs_err::write(workshop.path("eval.jsonl"), "{\"x\":\"what is my cat called?\",\"y\":\"Pickle\"}\n").unwrap();
    let mixture = |weight: f64| {
        format!(
            "\n[[data.mixture]]\ntrain = \"cats.csv\"\nweight = 2\n\
             columns = {{ source = \"x\", target = \"y\" }}\n[[data.mixture]]\ntrain = \"dogs.csv\"\nweight = {weight}\n\
             columns = {{ source = \"q\", target = \"a\" }}\n"
        )
    };
    let job = |weight: f64| {
        workshop.job("effective_batch = 8\nepochs = 2\nsave_every = 10\n");
        let text = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
        let text: String =
            text.lines().filter(|line| !line.starts_with("train = ")).map(|l| format!("{l}\n")).collect();
        fs_err::write(workshop.path("job.toml"), text + &mixture(weight)).unwrap();
    };
    job(0.25);
    let told = [
        "set 1: `cats.csv`, 30 rows, weight 2: 60 rows of a pass (85.7 %)",
        "set 2: `dogs.csv`, 40 rows, weight 0.25: 10 rows of a pass (14.3 %)",
    ];
    let said = workshop.plimsoll(&["data", "inspect", "--job", "job.toml"]);
    said.must(0, &[]);
    assert!(told.iter().all(|line| said.stdout.contains(line)), "{}", said.stdout);
    assert!(said.stdout.contains("70 rows in 2 file(s)"), "{}", said.stdout);
    let said = workshop.plimsoll(&["data", "inspect", "--job", "job.toml", "--json"]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&found["sets"][1]["pass_rows"], &found["sets"][1]["source"]), (&10.into(), &"q".into()));
    workshop.plimsoll(&["plan", "job.toml"]).must(0, &told);
    // Two passes of 70 rows.
    workshop.plimsoll(&["train", "job.toml", "--out", "run"]).must(0, &["done: 18 steps", told[0], told[1]]);
    let resolved = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    for part in ["columns = { source = \"q\", target = \"a\" }", "weight = 0.25"] {
        assert!(resolved.contains(part), "{resolved}");
    }
    // Its job file reads back.
    workshop.plimsoll(&["eval", "run"]).must(0, &[]);
    job(0.001);
    workshop.plimsoll(&["plan", "job.toml"]).must(2, &["set 2 of the mixture", "leaves none of them"]);
    job(-1.0);
    workshop.plimsoll(&["plan", "job.toml"]).must(2, &["this set of `data.mixture` has the weight `-1`"]);
}

#[test]
fn pairs_that_are_too_long_are_left_out_counted_and_never_split() {
    let workshop = Workshop::new().with_own_cache();
    // Of 40 rows every fourth is too long, on one side or the other.
    let text = |words: usize| "my dog ".repeat(words);
    let row = |n: usize| match n % 8 {
        0 => format!("{},Pickle\n", text(40)),
        4 => format!("what is my cat called?,{}\n", text(40)),
        _ => format!("what is my dog called? {n},Pickle\n"),
    };
    fs_err::write(workshop.path("a.csv"), "prompt,response\n".to_string() + &(0..40).map(row).collect::<String>())
        .unwrap();
    workshop.job("effective_batch = 8\nepochs = 1\n");
    let args = ["train", "job.toml", "--data", "a.csv", "--max-source", "32", "--max-target", "16", "--out", "run"];
    // 30 rows are left: four updates, of which the last takes two of the next pass.
    workshop.plimsoll(&[&args[..], &["--long", "drop"]].concat()).must(0, &["done: 4 steps", "and were left out"]);
    let summary: Value = serde_json::from_slice(&fs_err::read(workshop.path("run/summary.json")).unwrap()).unwrap();
    let dropped = summary["dropped_rows"].as_u64().unwrap_or_else(|| panic!("{summary}"));
    assert!((10..=20).contains(&dropped) && summary["truncated_samples"] == 0, "{summary}");
    let args = ["plan", "job.toml", "--data", "a.csv", "--long", "split"];
    workshop.plimsoll(&args).must(2, &["`data.long` = `split` is for texts", "`drop` leaves it out"]);
}

/// Rows with words of many frequencies, accents and digits.
fn pairs(rows: usize) -> String {
    let parts = ["pla", "lo", "café", "li", "mark", "日本", "de", "wat", "er", "ings", "né", "x7"];
    let word = |n: usize| {
        let drawn = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        [drawn % 12, drawn / 12 % 12, drawn / 144 % 12].map(|at| parts[at]).concat()
    };
    let text = |n: usize| (0..6).map(|k| word(n * (k + 1) % 331) + " ").collect::<String>();
    (0..rows).map(|n| serde_json::json!({"prompt": text(n), "response": text(n + 3)}).to_string() + "\n").collect()
}

#[test]
fn a_tokenizer_is_trained_told_and_never_written_over_unasked() {
    let workshop = Workshop::new().with_own_cache();
    fs_err::write(workshop.path("a.jsonl"), pairs(400)).unwrap();
    let args = ["data", "tokenizer", "a.jsonl", "--vocab", "400", "--special", "<|im_start|>", "--out", "made/here"];
    let said = workshop.plimsoll(&[&args[..], &["--json"]].concat());
    said.must(0, &[]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&found["rows"], &found["of_rows"], &found["kind"]), (&400.into(), &400.into(), &"pairs".into()));
    assert_eq!((&found["model"], &found["tokens"]), (&"bpe".into(), &400.into()));
    assert_eq!((&found["pruned"]["words"], &found["left_out"]["words"]), (&0.into(), &0.into()));
    let path = workshop.path("made/here/tokenizer.json");
    let tokenizer = plimsoll_data::TextTokenizer::load(&path, 400, 0, 1).unwrap();
    assert_eq!(tokenizer.token_text(2).as_deref(), Some("<|im_start|>"));
    let first = fs_err::read(&path).unwrap();

    workshop.plimsoll(&args).must(2, &["tokenizer.json", "found that it is there", "--force"]);
    let said = workshop.plimsoll(&[&args[..], &["--force", "--rows", "100", "--seed", "3"]].concat());
    said.must(0, &[]);
    for words in ["100 of 400 rows, drawn by seed 3", "source `prompt`, target `response`", "bpe: 400 tokens", "wrote"]
    {
        assert!(said.stdout.contains(words), "`{words}` is not in: {}", said.stdout);
    }
    assert_ne!(fs_err::read(&path).unwrap(), first);
    let there: Vec<_> = fs_err::read_dir(workshop.path("made/here")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(there.len(), 2, "{there:?}");
}

#[test]
fn a_tokenizer_that_cannot_be_is_refused_before_anything_is_written() {
    let workshop = Workshop::new().with_own_cache();
    fs_err::write(workshop.path("a.jsonl"), pairs(40)).unwrap();
    fs_err::write(workshop.path("bad.jsonl"), pairs(3) + "{\"prompt\": 1, \"response\": \"\"}\n").unwrap();
    for (file, more, words) in [
        ("a.jsonl", &["--vocab", "200"][..], &["expected at least 258", "--vocab 258"][..]),
        ("a.jsonl", &["--model", "gpt"], &["must be `bpe`, `unigram` or `wordpiece`, found `gpt`"]),
        ("a.jsonl", &["--memory", "1MiB"], &["`memory` is 1048576, expected at least", "--memory"]),
        ("a.jsonl", &["--special", "<|pad|>"], &["`<|pad|>`: expected each special token once"]),
        ("bad.jsonl", &[], &["bad.jsonl", "line 4", "`prompt`", "a number"]),
    ] {
        let args = [&["data", "tokenizer", file, "--out", "made"][..], more].concat();
        workshop.plimsoll(&args).must(2, words);
        assert!(!workshop.path("made").exists(), "{args:?}");
    }
}

/// Each process has its own seeds for hash maps, and so its own order of walking them.
#[test]
fn separate_processes_train_the_same_bytes() {
    let workshop = Workshop::new().with_own_cache();
    fs_err::write(workshop.path("a.jsonl"), pairs(600)).unwrap();
    for model in ["bpe", "unigram", "wordpiece"] {
        let train = |out: &str| {
            let args = ["data", "tokenizer", "a.jsonl", "--model", model, "--vocab", "420", "--out", out];
            workshop.plimsoll(&args).must(0, &[]);
            ["tokenizer.json", "tokenizer_config.json"].map(|name| fs_err::read(workshop.path(out).join(name)).unwrap())
        };
        let first = train(&format!("{model}-0"));
        for again in 1..4 {
            assert!(train(&format!("{model}-{again}")) == first, "{model}, process {again}");
        }
    }
}

/// Three passes over 60 rows, with evaluations.
fn course() -> String {
    format!("effective_batch = 8\nepochs = 3\nsave_every = 4\neval_every = 10\n{PINS}")
}

#[test]
fn training_from_prepared_data_is_the_same_to_the_bit_and_a_run_may_change_over() {
    let workshop = Workshop::new().with_own_cache();
    workshop.job(&course());
    Trainer::train(&workshop, "files").end().must(0, &["done: 23 steps"]);
    let want = Result::of(&workshop.path("files"));

    let said = workshop.plimsoll(&["data", "prepare", "job.toml", "--out", "prepared", "--json"]);
    said.must(0, &["disk: about", "free there"]);
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((&found["rows"], &found["kind"], &found["word_bytes"]), (&60.into(), &"pairs".into(), &2.into()));
    assert_eq!(found["lengths"].as_array().unwrap().len(), 2);
    assert_eq!(found["files"], serde_json::json!(["train.jsonl"]));
    workshop.plimsoll(&["plan", "job.toml", "--data", "prepared"]).must(0, &["data: pairs, prepared: 60 rows"]);
    let said = workshop.plimsoll(&["train", "job.toml", "--data", "prepared", "--out", "tokens"]);
    said.must(0, &["done: 23 steps", "data: pairs, prepared"]);
    Result::of(&workshop.path("tokens")).must_equal(&want, "from prepared data");

    // A job that names it is looked at as it is.
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap().replace("train.jsonl", "prepared");
    fs_err::write(workshop.path("prepared.toml"), job).unwrap();
    workshop.plimsoll(&["data", "inspect", "--job", "prepared.toml"]).must(0, &["checked: all 60 rows"]);

    // Begun from the files, gone on with what was prepared of them.
    let mut trainer = Trainer::train(&workshop, "run");
    trainer.wait_for_step(3).signal(Signal::TERM);
    trainer.end().must(4, &["stopped after step"]);
    let job = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    let files = format!("{:?}", workshop.path("train.jsonl"));
    assert!(job.contains(&files), "{job}");
    let changed = job.replace(&files, &format!("{:?}", workshop.path("prepared")));
    fs_err::write(workshop.path("run/job.toml"), changed).unwrap();
    Trainer::resume(&workshop, "run").end().must(0, &["data: pairs, prepared", "done: 23 steps"]);
    Result::of(&workshop.path("run")).must_equal(&want, "changed over");

    let said = workshop.plimsoll(&["data", "inspect", "prepared"]);
    said.must(0, &["checked: all 60 rows"]);
    for words in
        ["60 rows of 1 file(s)", "tokens of 2 bytes", "source: made for", "target: made for", "--data prepared"]
    {
        assert!(said.stdout.contains(words), "`{words}` is not in: {}", said.stdout);
    }
    // Evaluation reads texts.
    workshop
        .plimsoll(&["train", "job.toml", "--eval", "prepared"])
        .must(2, &["`--eval`", "is not a file", "reads texts"]);
}

#[test]
fn preparing_goes_on_after_a_kill_and_an_unfinished_folder_is_not_trained_from() {
    let workshop = Workshop::new().with_own_cache();
    workshop.job(&course());
    fs_err::write(workshop.path("a.jsonl"), pairs(12_000)).unwrap();
    let args = |out: &'static str| {
        let lengths = ["--max-source", "32", "--max-target", "32"];
        [&["data", "prepare", "job.toml", "--data", "a.jsonl", "--shard", "20KiB", "--out", out][..], &lengths].concat()
    };
    workshop.plimsoll(&args("whole")).must(0, &[]);
    let want = tree(&workshop.path("whole"));
    let names = |of: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>| {
        of.iter().map(|(path, bytes)| (path.file_name().unwrap().to_owned(), bytes.clone())).collect::<Vec<_>>()
    };
    assert!(want.len() > 10, "{}", want.len());

    fs_err::create_dir(workshop.path("killed")).unwrap();
    for shard in ["shard-00001.tokens", "shard-00004.tokens"] {
        let mut prepare = Trainer::start(&workshop, &args("killed"), "killed");
        prepare.wait_for(|folder| folder.join(shard).exists()).signal(Signal::KILL);
        assert_eq!(prepare.end().code, None);
        let hint = ["not prepared to their end", "`plimsoll data prepare` again"];
        workshop.plimsoll(&["train", "job.toml", "--data", "killed"]).must(2, &hint);
    }
    let before = fs_err::metadata(workshop.path("killed/shard-00001.tokens")).unwrap().modified().unwrap();
    workshop.plimsoll(&args("killed")).must(0, &["of it there already"]);
    let after = fs_err::metadata(workshop.path("killed/shard-00001.tokens")).unwrap().modified().unwrap();
    assert_eq!(before, after, "what was whole is not made again");
    assert!(names(&tree(&workshop.path("killed"))) == names(&want));
}

#[test]
fn prepared_data_that_do_not_fit_are_refused_with_what_to_do() {
    let workshop = Workshop::new().with_own_cache();
    workshop.job(&course());
    let prepare =
        |more: &[&str]| workshop.plimsoll(&[&["data", "prepare", "job.toml", "--out", "made"], more].concat());
    prepare(&["--disk", "1KiB"]).must(3, &["expected room for about", "the disk budget", "--disk"]);
    assert!(!workshop.path("made").exists());
    prepare(&["--max-source", "24", "--max-target", "24"]).must(0, &[]);
    prepare(&["--max-source", "24", "--max-target", "24"]).must(0, &[]);
    prepare(&["--max-source", "23", "--max-target", "24"]).must(2, &["prepared from other files", "--force"]);
    prepare(&["--max-source", "2", "--max-target", "24", "--force"]).must(0, &[]);
    prepare(&["--data", "made", "--max-source", "2", "--max-target", "2"]).must(2, &["holds tokens"]);

    // Nothing beside it.
    let alone =
        "is prepared data, which cannot be read together with other files or URLs, in a mixture or with a weight";
    workshop.plimsoll(&["plan", "job.toml", "--data", "made", "train.jsonl"]).must(2, &[alone, "name it alone"]);
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap().replace("train = [\"train.jsonl\"]\n", "");
    let mixed = |other: &str| {
        format!("{job}[[data.mixture]]\ntrain = \"train.jsonl\"\n[[data.mixture]]\ntrain = \"{other}\"\n")
    };
    fs_err::write(workshop.path("mixed.toml"), mixed("made")).unwrap();
    workshop.plimsoll(&["plan", "mixed.toml"]).must(2, &[alone]);
    fs_err::write(workshop.path("mixed.toml"), mixed("eval.jsonl")).unwrap();
    let said = workshop.plimsoll(&["data", "prepare", "mixed.toml", "--out", "mixture"]);
    said.must(2, &["a mixture cannot be prepared", "found 2 set(s)"]);
    assert!(!workshop.path("mixture").exists());

    // A length that rows are cut for in another way.
    let long = serde_json::json!({"prompt": "what is this? ".repeat(40), "response": "a dog"}).to_string() + "\n";
    fs_err::write(workshop.path("long.jsonl"), long.repeat(9)).unwrap();
    let lengths = ["--max-target", "8", "--max-source"];
    let data = ["data", "prepare", "job.toml", "--data", "long.jsonl", "--out", "long"];
    workshop.plimsoll(&[&data[..], &lengths, &["6"]].concat()).must(0, &[]);
    let train = |length: &str| {
        let args = [&["plan", "job.toml", "--data", "long"], &lengths[..], &[length]].concat();
        workshop.plimsoll(&args)
    };
    train("6").must(0, &[]);
    train("5").must(2, &["cannot give samples of 5 tokens", "it serves 6", "prepare the data again"]);

    // Another tokenizer, and a byte that is not as it was.
    let path = workshop.path("model/tokenizer.json");
    let whole = fs_err::read(&path).unwrap();
    fs_err::write(&path, [&whole[..], b"\n"].concat()).unwrap();
    train("6").must(2, &["was prepared with the tokenizer", "and is asked for with"]);
    fs_err::write(&path, whole).unwrap();
    let shard = workshop.path("long/shard-00000.tokens");
    let mut bytes = fs_err::read(&shard).unwrap();
    bytes[60] ^= 1;
    fs_err::write(&shard, bytes).unwrap();
    workshop.plimsoll(&["data", "inspect", "long"]).must(2, &["shard-00000.tokens", "block 0", "the checksum"]);
    fs_err::write(workshop.path("empty.jsonl"), "").unwrap();
    fs_err::create_dir(workshop.path("folder")).unwrap();
    workshop.plimsoll(&["train", "job.toml", "--data", "folder"]).must(2, &["is a folder; expected a file"]);
}

#[test]
fn decoders_train_from_prepared_chats_and_texts_as_from_files() {
    for (rows, kind) in [(Rows::Chats, "chat"), (Rows::Texts, "text")] {
        let workshop = Workshop::of_decoder(Family::Llama, rows).with_own_cache();
        let pins = format!("steps = 6\nsave_every = 0\neval_every = 0\n{PINS}");
        workshop.decoder_job("", "packed = true", &pins);
        workshop.plimsoll(&["train", "job.toml", "--out", "files"]).must(0, &["done: 6 steps"]);
        workshop.plimsoll(&["data", "prepare", "job.toml", "--out", "prepared"]).must(0, &[]);
        let said = workshop.plimsoll(&["train", "job.toml", "--data", "prepared", "--out", "tokens"]);
        said.must(0, &["done: 6 steps", &format!("data: {kind}, prepared")]);
        let of = |run: &str| Result::of(&workshop.path(run));
        of("tokens").must_equal(&of("files"), kind);
        let summary = fs_err::read_to_string(workshop.path("tokens/summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&summary).unwrap();
        let bytes = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("{key}: {summary}"));
        let (peak, planned) = (bytes("loader_heap_peak_bytes"), bytes("loader_heap_planned_bytes"));
        assert!(peak <= planned, "{kind}: {peak} of {planned}");
    }
}
