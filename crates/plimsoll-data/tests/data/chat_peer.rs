//! Chat templates beside transformers: the same text, the same tokens, the same part trained. Skipped where there is no
//! Python with transformers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, IGNORE};
use tempfile::tempdir;

use crate::fixture::*;

#[derive(serde::Deserialize)]
struct Expected {
    name: String,
    template: String,
    rows: Vec<ExpectedRow>,
}

#[derive(serde::Deserialize)]
struct ExpectedRow {
    text: String,
    prompt: String,
    ids: Vec<u32>,
    mask: Vec<u32>,
}

#[test]
fn templates_give_the_text_and_the_trained_tokens_of_transformers() {
    let python = match python("transformers") {
        Ok(python) => python,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer/chat_templates.py");
    let done = Command::new(python).arg(script).arg(dir.path()).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let expected: Vec<Expected> =
        serde_json::from_slice(&fs_err::read(dir.path().join("expected.json")).unwrap()).unwrap();
    assert_eq!(expected.len(), 5);

    let tokenizer = Arc::new(TextTokenizer::load(&dir.path().join("tokenizer.json"), 600, 2, 0).unwrap());
    let sources = Sources::open_kind(&[dir.path().join("chats.jsonl")], Kind::Chat, Columns::default()).unwrap();
    let sources = Arc::new(sources);
    let special: BTreeMap<String, String> =
        [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")].map(|(k, v)| (k.into(), v.into())).into();
    let shape = BatchShape { samples: 1, source_len: 4096, target_len: 4096, documents: 1 };
    let mut texts = RowTexts::new(sources.clone());
    for Expected { name, template, rows } in expected {
        let template = Arc::new(ChatTemplate::new(&template, &special).unwrap());
        assert_eq!(template.marks_generation(), ["zephyr", "gadgets"].contains(&name.as_str()));
        let settings = settings(shape, 2, 2, Cursor::default());
        let recipe = Recipe::chat(template.clone());
        let mut loader =
            Loader::start(sources.clone(), Order::new(0, false), tokenizer.clone(), recipe, settings).unwrap();
        let mut owned = Owned::new(shape);
        let mut trained = 0;
        for (i, row) in rows.iter().enumerate() {
            let messages: Vec<Message> = serde_json::from_str(texts.pair(i as u64).unwrap().0).unwrap();
            assert_eq!(template.render(&messages, false).unwrap(), row.text, "{name}, row {i}");
            assert_eq!(template.render(&messages, true).unwrap(), row.prompt, "{name}, row {i}");
            let facts = loader.next(owned.slot()).unwrap();
            let (inputs, labels) = owned.documents(facts).remove(0).remove(0);
            assert_eq!(inputs, row.ids[..row.ids.len() - 1], "{name}, row {i}");
            let wanted: Vec<u32> =
                row.ids.iter().zip(&row.mask).skip(1).map(|(id, on)| if *on == 1 { *id } else { IGNORE }).collect();
            assert_eq!(labels, wanted, "{name}, row {i}");
            trained += facts.labels;
        }
        assert!(trained > 500, "{name}: {trained}");
    }
}
