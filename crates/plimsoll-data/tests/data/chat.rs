//! Chats: every form of row, what is refused with its place, what is trained.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, IGNORE};
use tempfile::tempdir;

use crate::fixture::*;
use crate::jsonl::all_rows;

const TALK: &str = "{% for m in messages %}{{ m.role }} {{ m.content }} stop {% endfor %}\
                    {% if add_generation_prompt %}assistant {% endif %}";

fn open_chat(path: &Path, columns: Columns) -> Result<Sources, DataError> {
    Sources::open_kind(&[path.to_path_buf()], Kind::Chat, columns)
}

fn error_of(line: &str) -> String {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let good = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    fs_err::write(&path, format!("{good}\n\n{line}\n")).unwrap();
    let e = open_chat(&path, Columns::default()).unwrap_err().to_string();
    e.replace(&format!("{}/", dir.path().display()), "")
}

fn recipe(template: &str) -> Recipe {
    Recipe::chat(Arc::new(ChatTemplate::new(template, &BTreeMap::new()).unwrap()))
}

/// A tokenizer that knows the words of `TALK`: user 3, assistant 4, stop 5, then a to f.
fn talk_tokenizer(dir: &Path) -> Arc<TextTokenizer> {
    let file = word_level(dir, 9, true);
    let mut text = fs_err::read_to_string(&file).unwrap();
    for (i, word) in ["user", "assistant", "stop", "a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        text = text.replace(&format!("\"w{i}\""), &format!("\"{word}\""));
    }
    fs_err::write(&file, text).unwrap();
    Arc::new(TextTokenizer::load(&file, 12, EOS, PAD).unwrap())
}

fn shape(samples: usize, length: usize, documents: usize) -> BatchShape {
    BatchShape { samples, source_len: length, target_len: length, documents }
}

#[test]
fn every_form_of_row_gives_the_same_conversation() {
    let dir = tempdir().unwrap();
    let expected = r#"[{"role":"user","content":"do\n\nthis"},{"role":"assistant","content":"done"}]"#;
    let forms = [
        r#"{"id":1,"messages":[{"role":"user","content":"do\n\nthis"},{"role":"assistant","content":"done"}]}"#,
        r#"{"conversations":[{"from":"human","value":"do\n\nthis"},{"from":"gpt","value":"done"}]}"#,
        r#"{"instruction":"do","input":"this","output":"done"}"#,
        r#"{"prompt":"do\n\nthis","response":"done"}"#,
        r#"{"messages":"[{\"role\":\"user\",\"content\":\"do\\n\\nthis\"},{\"role\":\"assistant\",\"content\":\"done\"}]"}"#,
    ];
    for (i, form) in forms.iter().enumerate() {
        let path = dir.path().join(format!("{i}.jsonl"));
        fs_err::write(&path, form).unwrap();
        let sources = open_chat(&path, Columns::default()).unwrap();
        assert!(sources.columns().guessed);
        let again = sources.columns().again();
        assert_eq!(all_rows(Arc::new(sources)), [(expected.to_string(), String::new())], "{form}");
        assert_eq!(open_chat(&path, again).unwrap().rows(), 1);
    }
    let path = dir.path().join("named.jsonl");
    fs_err::write(&path, r#"{"talk":[{"role":"user","content":"x"}],"q":"a","r":"b"}"#).unwrap();
    let given = |source: &str, target: Option<&str>| {
        let columns = Columns { source: Some(source.into()), target: target.map(Into::into) };
        all_rows(Arc::new(open_chat(&path, columns).unwrap())).remove(0).0
    };
    assert_eq!(given("talk", None), r#"[{"role":"user","content":"x"}]"#);
    assert_eq!(given("q", Some("r")), r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#);
}

#[test]
fn rows_that_are_no_conversation_are_refused_with_their_place() {
    let e = error_of(r#"{"id":1}"#);
    assert_eq!(e, "`a.jsonl`, line 3: expected the column `messages`, found `id`");
    let e = error_of(r#"{"messages":7}"#);
    assert_eq!(e, "`a.jsonl`, line 3: expected a list of messages in column `messages`, found a number");
    let e = error_of(r#"{"messages":[]}"#);
    assert_eq!(e, "`a.jsonl`, line 3 of column `messages`: expected at least one message, found none");
    let e = error_of(r#"{"messages":[{"role":"user","content":"a"},{"role":"wizard","content":"b"}]}"#);
    assert_eq!(
        e,
        "`a.jsonl`, line 3, message 2 of column `messages`: expected a role (system, developer, user, assistant, tool), found `wizard`"
    );
    let e = error_of(r#"{"messages":[{"role":3,"content":"a"}]}"#);
    assert!(e.ends_with("message 1 of column `messages`: expected a string as its role, found a number"), "{e}");
    let e = error_of(r#"{"messages":[{"role":"user","content":["a"]}]}"#);
    assert!(e.ends_with("expected a string as its content, found an array"), "{e}");
    let e = error_of(r#"{"messages":"[{"}"#);
    assert!(e.ends_with("expected a list of messages in column `messages`, found a string that is not JSON"), "{e}");
}

#[test]
fn a_template_that_refuses_a_row_names_file_and_line() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let row = |role: &str| format!(r#"{{"messages":[{{"role":"{role}","content":"a"}}]}}"#) + "\n";
    fs_err::write(&path, row("user").repeat(5) + "\n" + &row("tool") + &row("user")).unwrap();
    let picky =
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}a{% endfor %}";
    let turning = "{% for m in messages %}{% if loop.last %}!{% endif %}{{ m.role }}{% endfor %}";
    let tokenizer = talk_tokenizer(dir.path());
    for threads in [1, 3] {
        let sources = Arc::new(open_chat(&path, Columns::default()).unwrap());
        let settings = settings(shape(1, 8, 1), threads, 2, Cursor::default());
        let mut loader =
            Loader::start(sources, Order::new(0, false), tokenizer.clone(), recipe(picky), settings).unwrap();
        let mut owned = Owned::new(shape(1, 8, 1));
        for _ in 0..5 {
            loader.next(owned.slot()).unwrap();
        }
        let e = loader.next(owned.slot()).unwrap_err().to_string();
        assert!(e.ends_with("a.jsonl`, line 7: the chat template failed: no tools (line 1 of the template)"), "{e}");
    }
    let talk = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
    fs_err::write(&path, talk).unwrap();
    let sources = Arc::new(open_chat(&path, Columns::default()).unwrap());
    let e = suggest_length(&sources, &tokenizer, &recipe(turning), 10, 64).unwrap_err().to_string();
    assert!(e.contains("a.jsonl`, line 1: the chat template writes message 2 in another way"), "{e}");
}

#[test]
fn only_the_assistant_is_trained_with_the_end_of_its_turn() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let lines = [
        r#"{"messages":[{"role":"user","content":"a b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"},{"role":"assistant","content":"e f"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b c d e f a b c d e f"}]}"#,
    ];
    fs_err::write(&path, lines.join("\n")).unwrap();
    let tokenizer = talk_tokenizer(dir.path());
    let sources = Arc::new(open_chat(&path, Columns::default()).unwrap());
    let shape = shape(3, 13, 1);
    let settings = settings(shape, 2, 2, Cursor::default());
    let mut loader = Loader::start(sources.clone(), Order::new(0, false), tokenizer, recipe(TALK), settings).unwrap();
    let mut owned = Owned::new(shape);
    let facts = loader.next(owned.slot()).unwrap();
    let got = owned.documents(facts);
    const NO: u32 = IGNORE;
    assert_eq!(got[0][0].0, [3, 6, 7, 5, 4, 8, 5, 3, 9, 5, 4, 10, 11]);
    assert_eq!(got[0][0].1, [NO, NO, NO, NO, 8, 5, NO, NO, NO, NO, 10, 11, 5]);
    assert_eq!(got[1][0], (vec![3, 6], vec![NO, NO]));
    assert_eq!(got[2][0].0.len(), 13);
    assert_eq!((facts.truncated, facts.unlabelled, facts.samples), (1, 1, 3));
    assert_eq!(facts.labels, 5 + 10);

    let mut rows = RowTexts::new(sources);
    let talk = rows.conversation(0).unwrap();
    assert_eq!((talk.prompt.len(), talk.answer.as_str()), (3, "e f"));
    assert_eq!(
        rows.conversation(1).unwrap(),
        Conversation { prompt: vec![Message::new("user", "a")], answer: "".into() }
    );
}

#[test]
fn a_model_without_a_template_gets_a_plain_one_and_says_so() {
    let dir = tempdir().unwrap();
    let tokenizer = talk_tokenizer(dir.path());
    let plain = Recipe::plain_chat(&tokenizer, &BTreeMap::new()).unwrap();
    assert!(plain.remark().is_some_and(|r| r.contains("plain")));
    let text = plain.template().unwrap().render(&[Message::new("assistant", "x")], false).unwrap();
    assert_eq!(text, "Assistant: x</s>\n");
    assert!(recipe(TALK).remark().is_none());
}

#[test]
fn a_prompt_that_is_too_long_keeps_its_end() {
    let dir = tempdir().unwrap();
    let tokenizer = talk_tokenizer(dir.path());
    let mut tokens = Vec::new();
    assert!(!tokenizer.encode_prompt("user a stop assistant", 4, &mut tokens).unwrap());
    assert_eq!(tokens, [3, 6, 5, 4]);
    assert!(tokenizer.encode_prompt("user a stop assistant", 2, &mut tokens).unwrap());
    assert_eq!(tokens, [5, 4]);
    assert!(tokenizer.encode_prompt(&("a ".repeat(5000) + "assistant"), 3, &mut tokens).unwrap());
    assert_eq!(tokens, [6, 6, 4]);
}

#[test]
fn packed_chats_resume_at_any_cursor_and_count_right() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let lines: String = (0..60)
        .map(|i| {
            let answer = ["a", "b", "c", "d", "e", "f"].map(|w| format!("{w} ").repeat(1 + i % 5))[i % 6].clone();
            let talk = [Message::new("user", "a"), Message::new("assistant", answer.trim())];
            serde_json::json!({"messages": talk, "x": "y".repeat(3000)}).to_string() + "\n"
        })
        .collect();
    fs_err::write(&path, lines).unwrap();
    let tokenizer = talk_tokenizer(dir.path());
    let sources = Arc::new(open_chat(&path, Columns::default()).unwrap());
    let order = Order::new(4, true).with_window(2);
    let shape = shape(1, 24, 6);
    let run = |cursor: Cursor, threads: usize, batches: usize| {
        let settings = settings(shape, threads, 3, cursor);
        let mut loader = Loader::start(sources.clone(), order, tokenizer.clone(), recipe(TALK), settings).unwrap();
        let mut owned = Owned::new(shape);
        let mut next = || {
            let facts = loader.next(owned.slot()).unwrap();
            (facts, owned.documents(facts))
        };
        (0..batches).map(|_| next()).collect::<Vec<_>>()
    };
    let whole = run(Cursor::default(), 1, 70);
    assert_eq!(run(Cursor::default(), 7, 70), whole);
    for at in 1..40 {
        assert_eq!(run(whole[at - 1].0.cursor_after, 2, 20), whole[at..at + 20]);
    }
    let first_pass = whole.iter().take_while(|b| b.0.cursor_after.epoch == 0).count() as u64 + 1;
    let count = count_samples(&sources, order, &tokenizer, &recipe(TALK), shape, 0, 2, None).unwrap();
    assert_eq!((count.samples, count.documents, count.truncated), (first_pass, 60, 0));
}
