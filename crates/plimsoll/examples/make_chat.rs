//! Makes `examples/chat`: little stories that a user tells about themselves, a question, and the answer.
//!
//! Invariants: the same bytes on every machine (own generator, no hash order, no clock); some pairs of values (see
//! `held_out`) never meet in a training story, and every evaluation answer is one half of such a pair, so that a right
//! answer was read in the story and not remembered. It refuses to know how the model is trained.
//!
//! Run with `cargo run -p plimsoll --example make_chat`; a test compares the committed files with these.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;

const TRAIN_PAIRS: usize = 8000;
const EVAL_PAIRS: usize = 250;

/// A kind of fact: its values, the ways to state one, the ways to ask for it, and the answer. `{v}` is the value; of a
/// pet, `{k}` is its kind.
struct Topic {
    values: &'static [&'static str],
    statements: &'static [&'static str],
    questions: &'static [&'static str],
    answer: &'static str,
}

const PET_KINDS: &[&str] = &["cat", "dog", "parrot", "rabbit", "hamster", "pony", "goat", "turtle"];

const PETS: Topic = Topic {
    values: &[
        "Pixel", "Rex", "Luna", "Biscuit", "Milo", "Ziggy", "Pepper", "Shadow", "Coco", "Bruno", "Waffle", "Olive",
        "Comet", "Maple", "Noodle", "Pickle", "Sunny", "Tiger", "Velvet", "Whisky",
    ],
    statements: &["my {k} is called {v}", "i have a {k} named {v}", "{v} is my {k}", "the name of my {k} is {v}"],
    questions: &["what is my {k} called?", "what is the name of my {k}?", "how do i call my {k}?"],
    answer: "your {k} is called {v}.",
};

const TOPICS: &[Topic] = &[
    Topic {
        values: &[
            "Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ines", "Jonas", "Karin", "Leo", "Mira",
            "Nils", "Olga", "Paul", "Rosa", "Samir", "Tara", "Viktor",
        ],
        statements: &["my name is {v}", "i am {v}", "people call me {v}", "hello, this is {v}"],
        questions: &["what is my name?", "who am i?", "do you know my name?"],
        answer: "your name is {v}.",
    },
    Topic {
        values: &[
            "Oslo", "Lisbon", "Vienna", "Prague", "Madrid", "Dublin", "Athens", "Warsaw", "Berlin", "Rome", "Paris",
            "Geneva", "Tokyo", "Lima", "Cairo", "Nairobi", "Boston", "Delhi", "Sydney", "Quito",
        ],
        statements: &["i live in {v}", "my home is in {v}", "i moved to {v}", "my flat is in {v}"],
        questions: &["where do i live?", "in which city is my home?", "where is my flat?"],
        answer: "you live in {v}.",
    },
    Topic {
        values: &[
            "red", "blue", "green", "yellow", "purple", "orange", "pink", "brown", "black", "white", "silver", "golden",
        ],
        statements: &["my favourite colour is {v}", "i like {v} things", "i paint everything {v}"],
        questions: &["what is my favourite colour?", "which colour do i like?"],
        answer: "your favourite colour is {v}.",
    },
    Topic {
        values: &[
            "pizza", "soup", "rice", "pasta", "salad", "bread", "cheese", "curry", "noodles", "pancakes", "omelette",
            "beans", "cake", "fish", "apples", "plums",
        ],
        statements: &["i like to eat {v}", "my favourite food is {v}", "i could eat {v} every day"],
        questions: &["what do i like to eat?", "what is my favourite food?"],
        answer: "you like to eat {v}.",
    },
    Topic {
        values: &[
            "baker", "teacher", "nurse", "pilot", "farmer", "painter", "doctor", "lawyer", "singer", "writer",
            "driver", "builder", "chemist", "dentist", "tailor", "gardener",
        ],
        statements: &["i work as a {v}", "my job is to be a {v}", "i earn my money as a {v}"],
        questions: &["what is my job?", "what do i work as?"],
        answer: "you work as a {v}.",
    },
    Topic {
        values: &["piano", "violin", "guitar", "flute", "drums", "harp", "cello", "trumpet", "banjo", "organ"],
        statements: &["i play the {v}", "i am learning the {v}", "on sundays i practise the {v}"],
        questions: &["which instrument do i play?", "what do i practise?"],
        answer: "you play the {v}.",
    },
];

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// One fact of a story.
struct Fact {
    topic: &'static Topic,
    value: &'static str,
    /// What kind of pet, if it is about one.
    kind: Option<&'static str>,
}

impl Fact {
    fn fill(&self, template: &str) -> String {
        template.replace("{v}", self.value).replace("{k}", self.kind.unwrap_or_default())
    }

    fn words(&self) -> impl Iterator<Item = &'static str> {
        self.kind.into_iter().chain([self.value])
    }
}

/// A story, its question, and the answer.
pub struct Pair {
    /// The story and the question.
    pub prompt: String,
    /// The answer.
    pub response: String,
    /// Pairs of values that meet in the story and are kept out of training.
    pub held_out: usize,
    /// The answer's value is in one of those.
    pub asks_held_out: bool,
}

/// Whether two values may meet in evaluation only: one in seven of all pairs, the same whichever comes first.
pub fn held_out(a: &str, b: &str) -> bool {
    let (first, second) = if a < b { (a, b) } else { (b, a) };
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    (first.bytes().chain([b' ']).chain(second.bytes()).fold(0x811C_9DC5, fnv) >> 8) % 7 == 0
}

fn story(random: &mut Random) -> Pair {
    let count = 2 + random.below(3);
    let mut facts: Vec<Fact> = Vec::new();
    while facts.len() < count {
        let about_pet = random.below(4) == 0;
        let topic: &'static Topic = if about_pet { &PETS } else { &TOPICS[random.below(TOPICS.len())] };
        if !facts.iter().any(|f| std::ptr::eq(f.topic, topic)) {
            let kind = about_pet.then(|| random.pick(PET_KINDS));
            facts.push(Fact { topic, value: random.pick(topic.values), kind });
        }
    }
    let asked = random.below(count);
    let words: Vec<&str> = facts.iter().flat_map(Fact::words).collect();
    let apart: Vec<(&str, &str)> = (0..words.len())
        .flat_map(|i| (0..i).map(move |j| (i, j)))
        .map(|(i, j)| (words[i], words[j]))
        .filter(|(a, b)| held_out(a, b))
        .collect();
    let asked_value = facts[asked].value;

    let stated: Vec<String> = facts.iter().map(|f| f.fill(random.pick(f.topic.statements))).collect();
    let (last, first) = stated.split_last().expect("a story has two facts or more");
    let told = match random.below(3) {
        0 => format!("{} and {last}.", first.join(", ")),
        1 => format!("{}. {last}.", first.join(". ")),
        _ => format!("{}, and {last}.", first.join(". ")),
    };
    let fact = &facts[asked];
    Pair {
        prompt: format!("{told} {}", fact.fill(random.pick(fact.topic.questions))),
        response: fact.fill(fact.topic.answer),
        held_out: apart.len(),
        asks_held_out: apart.iter().any(|&(a, b)| a == asked_value || b == asked_value),
    }
}

/// The training and the evaluation pairs.
pub fn pairs() -> (Vec<Pair>, Vec<Pair>) {
    let mut random = Random(20_261_115);
    let (mut train, mut eval, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    while train.len() < TRAIN_PAIRS || eval.len() < EVAL_PAIRS {
        let pair = story(&mut random);
        if !seen.insert(pair.prompt.clone()) {
            continue;
        }
        if pair.held_out == 0 && train.len() < TRAIN_PAIRS {
            train.push(pair);
        } else if pair.asks_held_out && eval.len() < EVAL_PAIRS {
            eval.push(pair);
        }
    }
    (train, eval)
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

fn jsonl(pairs: &[Pair]) -> String {
    pairs.iter().fold(String::new(), |mut lines, pair| {
        let (prompt, response) = (quoted(&pair.prompt), quoted(&pair.response));
        writeln!(lines, "{{\"prompt\": {prompt}, \"response\": {response}}}").expect("a String takes every write");
        lines
    })
}

/// The words as the tokenizer cuts them: `▁` stands for the space before a word, punctuation stands alone.
fn tokens(text: &str) -> impl Iterator<Item = String> {
    text.split_whitespace().flat_map(|word| {
        let bare = word.trim_end_matches(['.', ',', '?']);
        [format!("▁{bare}")].into_iter().chain(word[bare.len()..].chars().map(String::from))
    })
}

/// Every token, by its id: T5's three special ones, then the words in alphabetical order.
fn vocabulary<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let words: BTreeSet<String> = texts.flat_map(tokens).collect();
    ["<pad>", "</s>", "<unk>"].into_iter().map(String::from).chain(words).collect()
}

fn tokenizer(vocabulary: &[String]) -> String {
    let special = |id: usize| {
        let content = quoted(&vocabulary[id]);
        format!(
            "    {{\"id\": {id}, \"content\": {content}, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \
             \"normalized\": false, \"special\": true}}"
        )
    };
    let specials = (0..3).map(special).collect::<Vec<_>>().join(",\n");
    let entry = |(id, token): (usize, &String)| format!("      {}: {id}", quoted(token));
    let entries = vocabulary.iter().enumerate().map(entry).collect::<Vec<_>>().join(",\n");
    let metaspace = r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}"#;
    let end = r#"{"SpecialToken": {"id": "</s>", "type_id": 0}}"#;
    let (a, b) = (r#"{"Sequence": {"id": "A", "type_id": 0}}"#, r#"{"Sequence": {"id": "B", "type_id": 0}}"#);
    format!(
        r#"{{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [
{specials}
  ],
  "normalizer": null,
  "pre_tokenizer": {{
    "type": "Sequence",
    "pretokenizers": [
      {metaspace},
      {{"type": "Punctuation", "behavior": "Isolated"}}
    ]
  }},
  "post_processor": {{
    "type": "TemplateProcessing",
    "single": [{a}, {end}],
    "pair": [{a}, {end}, {b}, {end}],
    "special_tokens": {{"</s>": {{"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}}
  }},
  "decoder": {metaspace},
  "model": {{
    "type": "WordLevel",
    "vocab": {{
{entries}
    }},
    "unk_token": "<unk>"
  }}
}}
"#
    )
}

/// What `transformers.AutoTokenizer` asks for: without it, it takes every T5 for a Unigram.
const TOKENIZER_CONFIG: &str = r#"{
  "tokenizer_class": "PreTrainedTokenizerFast",
  "pad_token": "<pad>",
  "eos_token": "</s>",
  "unk_token": "<unk>"
}
"#;

/// The vocabulary of the model is rounded up to a multiple of 8; the rows past the tokenizer's are never used.
fn config(vocabulary: usize) -> String {
    format!(
        r#"{{
  "architectures": ["T5ForConditionalGeneration"],
  "model_type": "t5",
  "vocab_size": {},
  "d_model": 96,
  "d_kv": 32,
  "d_ff": 256,
  "num_layers": 2,
  "num_decoder_layers": 2,
  "num_heads": 3,
  "relative_attention_num_buckets": 32,
  "relative_attention_max_distance": 64,
  "dropout_rate": 0.0,
  "layer_norm_epsilon": 1e-06,
  "initializer_factor": 1.0,
  "feed_forward_proj": "relu",
  "is_encoder_decoder": true,
  "tie_word_embeddings": true,
  "pad_token_id": 0,
  "eos_token_id": 1,
  "decoder_start_token_id": 0
}}
"#,
        vocabulary.next_multiple_of(8)
    )
}

/// Every generated file: its path under `examples/chat`, and what is in it.
pub fn files() -> Vec<(&'static str, String)> {
    let (train, eval) = pairs();
    let vocabulary = vocabulary(train.iter().chain(&eval).flat_map(|p| [p.prompt.as_str(), p.response.as_str()]));
    vec![
        ("data/train.jsonl", jsonl(&train)),
        ("data/eval.jsonl", jsonl(&eval)),
        ("model/config.json", config(vocabulary.len())),
        ("model/tokenizer.json", tokenizer(&vocabulary)),
        ("model/tokenizer_config.json", TOKENIZER_CONFIG.to_string()),
    ]
}

fn main() -> std::io::Result<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/chat");
    for (path, text) in files() {
        let path = folder.join(path);
        fs_err::create_dir_all(path.parent().expect("a file is in a folder"))?;
        fs_err::write(path, text)?;
    }
    Ok(())
}
