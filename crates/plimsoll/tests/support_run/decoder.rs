//! A workshop for decoders: a small model with weights, a tokenizer with learnt merges, and chats, texts or both.

use plimsoll_plan::dtype::Dtype;
use serde_json::{Value, json};

use super::Workshop;
use super::model::{Family, Model, write_weights};
use super::tokenizer::{SPECIAL, chat_ml, learnt_from};

/// Merges that the tokenizer has learnt.
const MERGES: usize = 160;
/// Entries of the model's table: a little more than the tokenizer has.
const VOCAB: usize = 448;
/// The token that ends a turn.
const END: usize = 4;
/// Longest context.
pub const POSITIONS: usize = 96;

/// What the data of a workshop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Lists of messages.
    Chats,
    /// Tasks with more of the task, and answers.
    Instructions,
    /// Texts.
    Texts,
}

/// The numbers of a model that is trained in seconds.
pub fn tiny(family: Family) -> Model {
    Model {
        family,
        vocab: VOCAB,
        d_model: 32,
        d_head: 8,
        heads: 4,
        kv_heads: if family == Family::Gpt2 { 4 } else { 2 },
        d_ff: 64,
        layers: 2,
        decoder_layers: 0,
        gated: true,
        tied: true,
        positions: POSITIONS,
        window: None,
    }
}

impl Workshop {
    /// A workshop whose `model/` is a tiny decoder with weights and whose data is of this kind.
    pub fn of_decoder(family: Family, rows: Rows) -> Workshop {
        Workshop::of_model(&tiny(family), rows)
    }

    /// The same with a model of these numbers.
    pub fn of_model(numbers: &Model, rows: Rows) -> Workshop {
        let workshop = Workshop::new();
        fs_err::remove_dir_all(workshop.path("model")).unwrap();
        let text = fs_err::read_to_string(workshop.path("train.jsonl")).unwrap();
        for name in ["train.jsonl", "eval.jsonl"] {
            let pairs = fs_err::read_to_string(workshop.path(name)).unwrap();
            let lines = pairs.lines().map(|line| row(&serde_json::from_str(line).unwrap(), rows).to_string() + "\n");
            fs_err::write(workshop.path(name), lines.collect::<String>()).unwrap();
        }
        let config = workshop.path("config");
        fs_err::create_dir(&config).unwrap();
        let write = |name: &str, value: Value| fs_err::write(config.join(name), value.to_string()).unwrap();
        // An answer ends as a turn does, and nothing goes before the first: what Qwen's models have.
        let (mut model, mut tokenizer) = (numbers.config(), chat_ml(true));
        (model["eos_token_id"], model["bos_token_id"]) = (json!(END), Value::Null);
        tokenizer["eos_token"] = json!(SPECIAL[END]);
        write("config.json", model);
        write("tokenizer.json", learnt_from(&text, MERGES));
        write("tokenizer_config.json", tokenizer);
        write_weights(&config, &workshop.path("model"), Dtype::F32);
        fs_err::remove_dir_all(config).unwrap();
        workshop
    }

    /// Writes `job.toml`: `model` and `train` are the rest of those tables, `data` of that.
    pub fn decoder_job(&self, model: &str, data: &str, train: &str) {
        let text = format!(
            "[model]\npath = \"model\"\n{model}\n[data]\ntrain = [\"train.jsonl\"]\neval = \"eval.jsonl\"\n\
             max_len = {{ tokens = 64 }}\n{data}\n[train]\nthreads = 2\neffective_batch = 8\n{train}\n\
             [budget]\nram = \"256MiB\"\n"
        );
        fs_err::write(self.path("job.toml"), text).unwrap();
    }
}

fn row(pair: &Value, rows: Rows) -> Value {
    let (prompt, response) = (&pair["prompt"], &pair["response"]);
    match rows {
        Rows::Chats => {
            let messages =
                [json!({"role": "user", "content": prompt}), json!({"role": "assistant", "content": response})];
            json!({ "messages": messages })
        }
        Rows::Instructions => {
            let (facts, question) = prompt.as_str().unwrap().rsplit_once(". ").unwrap();
            json!({"instruction": question, "input": facts, "output": response})
        }
        Rows::Texts => json!({"text": format!("{} {}", prompt.as_str().unwrap(), response.as_str().unwrap())}),
    }
}
