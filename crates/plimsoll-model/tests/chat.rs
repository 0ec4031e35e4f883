//! The chat template of a folder: where it is found, which one counts, and the tokens beside it.

mod folders;

use folders::{config, write_folder};
use plimsoll_model::{ChatTemplate, ModelError, ModelFolder};
use serde_json::{Value, json};

fn read(tokenizer_config: Option<Value>, own_file: Option<&[u8]>) -> Result<Option<ChatTemplate>, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    write_folder(dir.path(), &config());
    if let Some(value) = tokenizer_config {
        fs_err::write(dir.path().join("tokenizer_config.json"), value.to_string()).unwrap();
    }
    if let Some(bytes) = own_file {
        fs_err::write(dir.path().join("chat_template.jinja"), bytes).unwrap();
    }
    ModelFolder::open(dir.path()).unwrap().chat_template()
}

#[test]
fn the_template_is_the_folders_own_file_else_the_tokenizers_text_else_its_default() {
    let text = |value: Value, own: Option<&[u8]>| read(Some(value), own).unwrap().map(|template| template.text);
    assert_eq!(read(None, None).unwrap(), None);
    assert_eq!(text(json!({}), None), None);
    assert_eq!(text(json!({"chat_template": null}), None), None);
    assert_eq!(text(json!({"chat_template": "a"}), None).as_deref(), Some("a"));
    assert_eq!(text(json!({"chat_template": "a"}), Some(b"b\n")).as_deref(), Some("b\n"));
    assert_eq!(read(None, Some(b"b")).unwrap().unwrap().text, "b");
    let list = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    assert_eq!(text(json!({"chat_template": list}), None).as_deref(), Some("d"));
}

#[test]
fn tokens_are_texts_or_objects_with_a_text() {
    let tokenizer = json!({
        "chat_template": "x", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
        "pad_token": null, "add_bos_token": true, "model_max_length": 5, "unk_token": {"lstrip": false},
    });
    let tokens = read(Some(tokenizer), None).unwrap().unwrap().tokens;
    let tokens: Vec<(&str, &str)> = tokens.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    assert_eq!(tokens, [("bos_token", "<s>"), ("eos_token", "</s>")]);
}

#[test]
fn a_template_that_is_none_is_refused() {
    for said in [json!(5), json!([]), json!([{"name": "rag", "template": "t"}]), json!([5]), json!({"default": "x"})] {
        let error = read(Some(json!({"chat_template": said})), None).unwrap_err();
        assert!(matches!(error, ModelError::ConfigKey { key: "chat_template", .. }), "{error}");
    }
    assert!(matches!(read(Some(json!([])), None), Err(ModelError::NotAnObject { .. })));
    assert!(matches!(read(None, Some(b"\xff")), Err(ModelError::NotText { .. })));
}
