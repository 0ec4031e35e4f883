//! tokenizer.json, made from nothing: words, pieces, or bytes and merges. Texts are words like `w123`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// How the tokenizer cuts texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    WordLevel,
    Unigram,
    /// Bytes, and merges of them: two to three tokens a word.
    Bpe,
}

/// Tokens of every tokenizer here, with ids from 0.
pub const SPECIAL: [&str; 5] = ["<pad>", "</s>", "<s>", "<|im_start|>", "<|im_end|>"];
/// Of a T5.
pub const SPECIAL_T5: [&str; 3] = ["<pad>", "</s>", "<unk>"];

/// The fewest entries that a tokenizer of bytes has.
pub const BYTES: usize = SPECIAL.len() + 256;

/// A tokenizer with `vocab` entries at most.
pub fn tokenizer(words: Words, vocab: usize) -> Value {
    match words {
        Words::WordLevel => word_level(vocab),
        Words::Unigram => unigram(vocab),
        Words::Bpe => bytes(vocab),
    }
}

fn whole(special: &[&str], pre_tokenizer: Value, decoder: Value, model: Value) -> Value {
    let added = |(id, content): (usize, &&str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let added: Vec<Value> = special.iter().enumerate().map(added).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model,
    })
}

fn numbered(vocab: usize) -> impl Iterator<Item = String> {
    (0..vocab - SPECIAL_T5.len()).map(|n| format!("w{n}"))
}

fn word_level(vocab: usize) -> Value {
    let all = SPECIAL_T5.iter().map(|s| s.to_string()).chain(numbered(vocab));
    let ids: Map<String, Value> = all.enumerate().map(|(id, w)| (w, json!(id))).collect();
    let model = json!({"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"});
    whole(&SPECIAL_T5, json!({"type": "WhitespaceSplit"}), Value::Null, model)
}

fn unigram(vocab: usize) -> Value {
    let blank = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let special = SPECIAL_T5.iter().map(|s| json!([s, 0.0]));
    let pieces = numbered(vocab).enumerate().map(|(n, w)| json!([format!("\u{2581}{w}"), -1.0 - (n as f64).ln_1p()]));
    let pieces: Vec<Value> = special.chain(pieces).collect();
    let model = json!({"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": false});
    whole(&SPECIAL_T5, blank.clone(), blank, model)
}

/// The character that stands for a byte in a tokenizer of bytes.
fn letter(byte: u8) -> char {
    let shown = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match shown(byte) {
        true => char::from(byte),
        // Those without a picture are counted from 256.
        false => char::from_u32(256 + (0..byte).filter(|b| !shown(*b)).count() as u32).expect("below 512"),
    }
}

fn bytes(vocab: usize) -> Value {
    let digits = || (0..10).map(|d| d.to_string());
    let two: Vec<String> = digits().flat_map(|a| digits().map(move |b| format!("{a}{b}"))).collect();
    let of_two = two.iter().map(|ab| (ab[..1].to_string(), ab[1..].to_string()));
    let of_four = two.iter().flat_map(|ab| two.iter().map(move |cd| (ab.clone(), cd.clone())));
    let of_three = two.iter().flat_map(|ab| digits().map(move |c| (ab.clone(), c)));
    let blank = (letter(b' ').to_string(), "w".to_string());
    let merges = std::iter::once(blank).chain(of_two).chain(of_three).chain(of_four).take(vocab - BYTES);
    byte_pairs(&merges.collect::<Vec<_>>())
}

/// A tokenizer of bytes with these merges, most wanted first.
fn byte_pairs(merges: &[(String, String)]) -> Value {
    let letters = (0..=255u8).map(|b| letter(b).to_string());
    let merged = merges.iter().map(|(a, b)| format!("{a}{b}"));
    let all = SPECIAL.iter().map(|s| s.to_string()).chain(letters).chain(merged);
    let ids: Map<String, Value> = all.enumerate().map(|(id, w)| (w, json!(id))).collect();
    let merges: Vec<Value> = merges.iter().map(|(a, b)| json!([a, b])).collect();
    let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": ids, "merges": merges});
    let cut = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    whole(&SPECIAL, cut.clone(), cut, model)
}

#[allow(dead_code, reason = "for texts that were not made from numbers")]
/// A tokenizer of bytes that has learnt so many merges from a text: the most frequent pair first, inside words alone.
pub fn learnt_from(text: &str, merges: usize) -> Value {
    let mut words: Vec<Vec<String>> = text
        .split_inclusive(|c: char| !c.is_alphabetic())
        .scan(false, |after_blank, word| {
            let letters = word.trim_end_matches(|c: char| !c.is_alphabetic());
            let blank = if *after_blank { " " } else { "" };
            *after_blank = word.ends_with(' ');
            Some(format!("{blank}{letters}").bytes().map(|b| letter(b).to_string()).collect())
        })
        .collect();
    let mut learnt = Vec::new();
    for _ in 0..merges {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *counts.entry((&pair[0], &pair[1])).or_default() += 1;
        }
        let best = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
        let Some(((a, b), _)) = best.map(|((a, b), n)| ((a.to_string(), b.to_string()), n)) else { break };
        for word in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == a && word[at + 1] == b {
                    word[at].push_str(&b);
                    word.remove(at + 1);
                }
                at += 1;
            }
        }
        learnt.push((a, b));
    }
    byte_pairs(&learnt)
}

/// ChatML, with what the assistant says marked or not.
pub fn chat_ml(marked: bool) -> Value {
    let (open, close) = if marked { ("{% generation %}", "{% endgeneration %}") } else { ("", "") };
    let text = format!(
        "{{% for message in messages %}}<|im_start|>{{{{ message.role }}}}\n{{% if message.role == 'assistant' %}}\
         {open}{{{{ message.content }}}}<|im_end|>{close}{{% else %}}{{{{ message.content }}}}<|im_end|>{{% endif %}}{{{{ '\\n' }}}}\
         {{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
    );
    json!({"chat_template": text, "eos_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>",
           "tokenizer_class": "PreTrainedTokenizerFast"})
}
