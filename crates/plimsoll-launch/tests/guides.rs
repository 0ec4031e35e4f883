//! The guides as they were read: 148 vectors answered by the real functions, 376 rows mapped in `docs/guides.md`.
//!
//! A vector's expectation is compared with an answer that was made without it. A kind of vector that nobody answers
//! fails.

use serde_json::Value;

#[path = "guides/document.rs"]
mod document;
#[path = "guides/memory.rs"]
mod memory;
#[path = "guides/rules.rs"]
mod rules;

/// Texts of ours that say more than the vector does: the vector's words must be in them.
const CONTAINED: [&str; 3] = ["reject", "message", "reason"];

#[test]
fn every_vector_of_the_guides_is_answered_as_it_expects() {
    let vectors: Vec<Value> = serde_json::from_str(include_str!("guides/vectors.json")).unwrap();
    assert_eq!(vectors.len(), 148);
    let mut wrong = Vec::new();
    for vector in &vectors {
        let kind = vector["kind"].as_str().unwrap();
        let (input, seed) = (&vector["input"], vector["seed"].as_str().unwrap());
        let answer = memory::answer(kind, input).or_else(|| rules::answer(kind, seed, input));
        let answer = answer.unwrap_or_else(|| panic!("nobody answers vectors of the kind `{kind}`"));
        if let Err(why) = agree("", &vector["expect"], &answer) {
            wrong.push(format!("{} ({kind}){why}", vector["id"].as_str().unwrap()));
        }
    }
    assert!(wrong.is_empty(), "{} of 148 vectors:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether an answer has all that is expected. Numbers agree to the places that the expectation has, two at least.
fn agree(at: &str, expect: &Value, answer: &Value) -> Result<(), String> {
    let differ = || Err(format!("{at}: expected `{expect}`, found `{answer}`"));
    match (expect, answer) {
        (Value::Object(expect), Value::Object(answer)) => {
            // A warning that nobody expects is as wrong as one that is missing.
            if answer.get("warn").is_some_and(|warn| !warn.is_null()) && !expect.contains_key("warn") {
                return Err(format!("{at}: unexpected warning `{}`", answer["warn"]));
            }
            for (key, expect) in expect {
                let found = answer.get(key).ok_or(format!("{at}.{key}: no answer"))?;
                match (expect.as_str(), found.as_str()) {
                    (Some(words), Some(text)) if CONTAINED.contains(&key.as_str()) => {
                        if !text.replace('`', "").contains(words) {
                            return Err(format!("{at}.{key}: `{words}` is not in `{text}`"));
                        }
                    }
                    _ => agree(&format!("{at}.{key}"), expect, found)?,
                }
            }
            Ok(())
        }
        (Value::Array(expect), Value::Array(answer)) => {
            if expect.len() != answer.len() {
                return differ();
            }
            expect.iter().zip(answer).try_for_each(|(expect, answer)| agree(&format!("{at}[]"), expect, answer))
        }
        (Value::Number(expect), Value::Number(answer)) => {
            let places = expect.to_string().split_once('.').map_or(0, |(_, places)| places.len()).max(2);
            let off = (expect.as_f64().unwrap() - answer.as_f64().unwrap()).abs();
            if off <= 0.5001 * 10f64.powi(-(places as i32)) { Ok(()) } else { differ() }
        }
        _ if expect == answer => Ok(()),
        _ => differ(),
    }
}

#[test]
fn the_comparison_itself_can_fail() {
    use serde_json::json;
    assert!(agree("", &json!({"a": 1.35, "b": [1, 2]}), &json!({"a": 1.3458, "b": [1, 2], "c": 0})).is_ok());
    assert!(agree("", &json!({"a": 1.35}), &json!({"a": 1.356})).is_err());
    assert!(agree("", &json!({"a": 38}), &json!({"a": 38.01})).is_err());
    assert!(agree("", &json!({"a": 1}), &json!({})).is_err());
    assert!(agree("", &json!({}), &json!({"warn": "x"})).is_err());
    assert!(agree("", &json!({"reject": "x y"}), &json!({"reject": "a `x` z"})).is_err());
    assert!(agree("", &json!([1]), &json!([1, 2])).is_err());
}
