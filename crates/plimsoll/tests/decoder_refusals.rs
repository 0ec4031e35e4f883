//! Jobs with decoders, adapters, frozen parts, chats and texts: what is wrong with one is found before step 1, said with
//! its place, and leaves the folder as it was.

mod support_run;

use support_run::Workshop;
use support_run::decoder::{POSITIONS, Rows};
use support_run::model::Family;

const COURSE: &str = "steps = 3\n";

fn workshop() -> Workshop {
    let workshop = Workshop::of_decoder(Family::Llama, Rows::Chats);
    workshop.decoder_job("", "", COURSE);
    workshop
}

#[test]
fn what_cannot_be_trained_is_refused_with_what_can() {
    let workshop = workshop();
    let cases: [(&str, &[&str]); 12] = [
        (
            "{ lora = { targets = [\"q_prok\"] } }",
            &["`model.train`: no module of the model is called `q_prok`", "hint: it has `down_proj`, `gate_proj`"],
        ),
        ("{ lora = { targets = [\"norm\"] } }", &["no module of the model is called `norm`"]),
        ("{ lora = { r = 0 } }", &["`--train` must have an `r` from 1 to 4096, found `0`"]),
        ("{ lora = { alpha = 0 } }", &["`--train` must have an `alpha` above 0, found `0`"]),
        ("{ lora = { dropout = 1.0 } }", &["`--train` must have a `dropout` from 0 to less than 1, found `1`"]),
        ("{ lora = { rank = 8 } }", &["`--train` = ", "unknown field `rank`"]),
        ("{ lora = {}, freeze = [\"lm_head\"] }", &["`--train` needs either `freeze` with patterns or `lora`"]),
        (
            "{ freeze = [\"encoder.*\"] }",
            &["`model.train`: no parameter matches `encoder.*`", "hint: parameters have names such as `model."],
        ),
        ("{ freeze = [\"*\"] }", &["`model.train` freezes every parameter: nothing would be trained"]),
        ("{ freeze = [\"model\"] }", &["`model.train` freezes every parameter"]),
        ("{ freeze = [] }", &["`--train` needs either `freeze` with patterns or `lora`"]),
        ("adapters", &["`--train` is `\"adapters\"`", "hint: `all`, `lora`"]),
    ];
    for (train, words) in cases {
        workshop.refused(&["--train", train], 2, words);
    }
    let none = ["trains factors beside a base, and `model.init` = `random` has none"];
    workshop.refused(&["--train", "lora", "--init", "random"], 2, &none);
}

#[test]
fn a_form_that_weights_cannot_have_is_refused() {
    let workshop = workshop();
    for base in ["int8", "nf4"] {
        let words = [&format!("`--base` = `{base}` needs LoRA"), "hint: add `train = { lora"];
        workshop.refused(&["--base", base], 2, &words);
        workshop.refused(&["--base", base, "--train", "{ freeze = [\"model.layers.0\"] }"], 2, &words);
    }
    workshop.refused(&["--base", "int3"], 2, &["`--base` must be `file`, `f32`, `int8` or `nf4`, found `int3`"]);
    workshop.refused(&["--precision", "fp8"], 2, &["`--precision` must be `f32` or `bf16`, found `fp8`"]);
    // With the place, where a file says it: the base is line 3 of the job, the precision comes behind the steps.
    workshop.decoder_job("base = \"int3\"", "", COURSE);
    workshop.refused(&[], 2, &["error: job.toml:3:8: `model.base` must be `file`"]);
    workshop.decoder_job("", "", "precision = \"f8\"\nsteps = 3\n");
    workshop.refused(&[], 2, &["error: job.toml:12:13: `train.precision` must be `f32` or `bf16`, found `f8`"]);
}

#[test]
fn data_of_another_kind_than_the_model_reads_is_refused() {
    let workshop = workshop();
    let pairs = ["`data.kind` = `pairs` is for encoder-decoder models, and the model is a decoder", "hint: `chat`"];
    workshop.refused(&["--kind", "pairs"], 2, &pairs);
    workshop.refused(
        &["--kind", "dialogue"],
        2,
        &["`--kind` must be `pairs`, `chat`, `text` or `series`, found `dialogue`"],
    );
    workshop.refused(&["--kind", "text"], 2, &["train.jsonl`: cannot guess", "`messages`"]);
    workshop.refused(&["--long", "chop"], 2, &["`--long` must be `split`, `cut` or `drop`, found `chop`"]);
    let long = format!("`data.max_len.tokens` is {}, and the model has {POSITIONS} positions", POSITIONS + 1);
    workshop.refused(&["--max-len", &(POSITIONS + 1).to_string()], 2, &[&long]);
    let side =
        ["`data.max_len.source` is for pairs, and the model is a decoder", "`data.max_len.tokens` (`--max-len`)"];
    workshop.refused(&["--max-source", "9"], 2, &side);

    let t5 = Workshop::new();
    t5.job("effective_batch = 8\nsteps = 3\n");
    t5.refused(&["--packed", "on"], 2, &["`data.packed` is for chat and text"]);
    t5.refused(&["--max-len", "9"], 2, &["`data.max_len.tokens` is for chat and text, and the model is a T5"]);
    for kind in ["chat", "text"] {
        t5.refused(&["--kind", kind], 2, &[&format!("`data.kind` = `{kind}` is for decoder models")]);
    }
}

#[test]
fn a_conversation_or_a_text_that_is_none_is_refused_by_file_and_line() {
    let workshop = workshop();
    let good =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    let cases: [(&str, &[&str]); 6] = [
        ("{\"messages\": []}", &["bad.jsonl`, line 3", "expected at least one message, found none"]),
        ("{\"turns\": []}", &["bad.jsonl`, line 3: expected the column `messages`, found `turns`"]),
        ("{\"messages\": 7}", &["bad.jsonl`, line 3", "found a number"]),
        ("{\"messages\": null}", &["bad.jsonl`, line 3", "null"]),
        ("{\"messages\": [{\"role\": \"wizard\", \"content\": \"a\"}]}", &["bad.jsonl`, line 3", "found `wizard`"]),
        ("{\"messages\": [{\"role\": \"user\"}]}", &["bad.jsonl`, line 3", "message 1"]),
    ];
    for (line, words) in cases {
        fs_err::write(workshop.path("bad.jsonl"), format!("{good}\n{line}\n{good}")).unwrap();
        workshop.refused(&["--data", "bad.jsonl"], 2, words);
        workshop.refused(&["--eval", "bad.jsonl"], 2, words);
    }
    fs_err::write(workshop.path("bad.jsonl"), "{\"text\": \"a\"}\n{\"text\": 7}\n").unwrap();
    workshop.refused(&["--data", "bad.jsonl", "--kind", "text"], 2, &["bad.jsonl`, line 2: expected a string"]);
}

#[test]
fn a_chat_template_that_is_none_is_refused() {
    let workshop = workshop();
    let path = workshop.path("model/tokenizer_config.json");
    fs_err::write(&path, "{\"chat_template\": \"{% for m in messages %}\"}").unwrap();
    workshop.refused(&[], 2, &["template"]);
    fs_err::write(&path, "{\"chat_template\": 7}").unwrap();
    workshop.refused(&[], 2, &["tokenizer_config.json`: key `chat_template` must be a text"]);
}

#[test]
fn what_may_not_be_allowed_is_refused_with_its_place() {
    let workshop = workshop();
    let cases: [(&str, &[&str]); 7] = [
        ("precision = [\"f8\"]", &["job.toml:14:13: `allow.precision` knows `bf16`, found `f8`"]),
        ("optimizer = \"adam4bit\"", &["`allow.optimizer` knows `adamw8bit`, found `adam4bit`"]),
        ("base = [\"int3\"]", &["`allow.base` knows `int8` and `nf4`, found `int3`"]),
        ("length = 3", &["`allow.length` must be a number of tokens of 8 or more, found `3`"]),
        ("lora = { rank = 3 }", &["`allow.lora` = ", "unknown field `rank`"]),
        ("batch = 4", &["`allow.batch` is not supported: the effective batch is kept"]),
        ("speed = true", &["unknown key `speed`"]),
    ];
    for (line, words) in cases {
        workshop.decoder_job("", "", &format!("{COURSE}[allow]\n{line}\n"));
        workshop.refused(&[], 2, words);
    }
}
