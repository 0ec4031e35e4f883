//! Prepared data that are damaged, unfinished, or asked for with something else: an error that names file, place and both sides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use tempfile::{TempDir, tempdir};

use crate::fixture::*;
use crate::prepared::folder_bytes;

struct Made {
    dir: TempDir,
    folder: PathBuf,
    sources: Sources,
    tokenizer: Arc<TextTokenizer>,
}

fn settings() -> PrepareSettings {
    PrepareSettings { lengths: [8, 8], threads: 2, shard_bytes: 20_000, on_thread_start: None }
}

fn made() -> Made {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let rows: Vec<(String, String)> = numbered(15_000, 40);
    jsonl(&path, &rows);
    let (sources, tokenizer) = (open(&path).unwrap(), words_tokenizer(dir.path(), 40));
    let folder = dir.path().join("prepared");
    let report = prepare(&sources, &tokenizer, &Recipe::pairs(), &settings(), &folder, &mut |_| ()).unwrap();
    assert!(report.shards > 2 && sources.facts().blocks > 4, "{report:?}");
    Made { dir, folder, sources, tokenizer }
}

impl Made {
    fn open(&self) -> Result<Sources, DataError> {
        Sources::open(std::slice::from_ref(&self.folder), Columns::default())
    }

    fn start(&self, tokenizer: &Arc<TextTokenizer>, recipe: Recipe) -> Result<Loader, DataError> {
        let shape = BatchShape { samples: 2, source_len: 8, target_len: 8, documents: 1 };
        let settings = crate::fixture::settings(shape, 1, 1, Cursor::default());
        Loader::start(Arc::new(self.open()?), Order::new(1, false), tokenizer.clone(), recipe, settings)
    }

    fn again(&self, recipe: &Recipe) -> Result<PreparedReport, DataError> {
        prepare(&self.sources, &self.tokenizer, recipe, &settings(), &self.folder, &mut |_| ())
    }
}

#[test]
fn another_tokenizer_or_kind_is_named_beside_the_one_that_made_it() {
    let made = made();
    let other = words_tokenizer(made.dir.path(), 41);
    let e = made.start(&other, Recipe::pairs()).err().unwrap();
    let DataError::PreparedOtherwise { what, prepared, asked, .. } = &e else { panic!("{e}") };
    assert_eq!(*what, "the tokenizer");
    let print = |t: &TextTokenizer| format!("{:016x}", t.fingerprint());
    assert!(prepared.contains(&print(&made.tokenizer)) && asked.contains(&print(&other)), "{e}");
    assert!(e.to_string().contains("43 tokens") && e.to_string().contains("44 tokens"), "{e}");
    assert!(made.start(&made.tokenizer, Recipe::pairs()).is_ok());

    let e = Sources::open_kind(std::slice::from_ref(&made.folder), Kind::Chat, Columns::default()).unwrap_err();
    assert!(matches!(e, DataError::OtherKind { opened: Kind::Pairs, asked: Kind::Chat }));
    let e = Sources::open(std::slice::from_ref(&made.folder), Columns { source: Some("no".into()), target: None })
        .unwrap_err();
    assert!(e.to_string().contains("expected the column `no`, found `source, target`"), "{e}");
    assert_eq!(prepared_kind(std::slice::from_ref(&made.folder)), Some(Kind::Pairs));
    assert_eq!(prepared_kind(&[made.dir.path().join("a.jsonl")]), None);
}

#[test]
fn another_template_bos_or_way_with_long_texts_is_named() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let line = |i: usize| {
        let talk = [Message::new("user", "w1"), Message::new("assistant", &format!("w{}", i % 9))];
        serde_json::json!({"messages": talk, "text": format!("w{} w2", i % 9)}).to_string() + "\n"
    };
    fs_err::write(&path, (0..50).map(line).collect::<String>()).unwrap();
    let tokenizer = words_tokenizer(dir.path(), 40);
    let template = |text: &str| Recipe::chat(Arc::new(ChatTemplate::new(text, &Default::default()).unwrap()));
    let said = |first: &Recipe, second: &Recipe| {
        let folder = dir.path().join("prepared");
        forget_prepared(&folder).unwrap();
        let sources = Sources::open_kind(std::slice::from_ref(&path), first.kind(), Columns::default()).unwrap();
        prepare(&sources, &tokenizer, first, &settings(), &folder, &mut |_| ()).unwrap();
        let opened = Sources::open_kind(&[folder], first.kind(), Columns::default()).unwrap();
        opened.check_fit(&tokenizer, second, [8, 8]).map_err(|e| e.to_string())
    };
    let body = "{% for m in messages %}{{ m.content }} {% endfor %}";
    let (one, two) = (template(body), template(&format!("{body}!")));
    assert!(said(&one, &two).unwrap_err().contains("the chat template"));
    let plain = Recipe::plain_chat(&tokenizer, &Default::default()).unwrap();
    assert!(said(&one, &plain).unwrap_err().contains("the chat template"));
    let dated = |year| {
        let template = ChatTemplate::new(body, &Default::default()).unwrap();
        Recipe::chat(Arc::new(template.with_date(Date { year, month: 1, day: 1 })))
    };
    assert!(said(&dated(2024), &dated(2025)).unwrap_err().contains("the chat template"));
    assert_eq!(said(&one, &one.clone().dropping()), Ok(()), "cut or dropped, the tokens are the same");
    let text = Recipe::text;
    assert!(
        said(&text(Long::Cut, None), &text(Long::Cut, Some(2))).unwrap_err().contains("the token before texts none")
    );
    let e = said(&text(Long::Cut, None), &text(Long::Split, None)).unwrap_err();
    assert!(e.contains("long texts cut or dropped, and is asked for with split"), "{e}");
    assert_eq!(said(&text(Long::Cut, None), &text(Long::Drop, None)), Ok(()));
}

#[test]
fn prepared_data_are_read_alone_and_mixtures_are_not_prepared() {
    let made = made();
    let file = made.dir.path().join("a.jsonl");
    let set = |files: &[&PathBuf], weight: f64| {
        let files = files.iter().map(|path| path.to_path_buf()).collect();
        DataSet { files, columns: Columns::default(), weight: Weight::new(weight).unwrap() }
    };
    let open = |sets: &[DataSet]| Sources::open_mixture(sets, Kind::Pairs, Opening::default());
    let url = PathBuf::from("https://host/a.jsonl");
    for sets in [
        vec![set(&[&made.folder], 2.0)],
        vec![set(&[&made.folder, &file], 1.0)],
        vec![set(&[&url, &made.folder], 1.0)],
        vec![set(&[&file], 1.0), set(&[&made.folder], 1.0)],
        vec![set(&[&made.folder], 1.0), set(&[&made.folder], 1.0)],
    ] {
        let e = open(&sets).unwrap_err();
        assert!(matches!(&e, DataError::PreparedNotAlone { path } if *path == made.folder), "{e}");
        assert!(e.to_string().contains("in a mixture or with a weight; name it alone"), "{e}");
    }
    let alone = open(&[set(&[&made.folder], 1.0)]).unwrap();
    assert!(alone.is_prepared() && !alone.is_mixture());
    assert_eq!((alone.sets().len(), alone.sets()[0].rows, alone.sets()[0].pass_rows), (1, 15_000, 15_000));

    let out = made.dir.path().join("mixture");
    for sets in [vec![set(&[&file], 0.5)], vec![set(&[&file], 1.0), set(&[&file], 1.0)]] {
        let sources = open(&sets).unwrap();
        let e = prepare(&sources, &made.tokenizer, &Recipe::pairs(), &settings(), &out, &mut |_| ()).unwrap_err();
        assert!(e.to_string().contains("a mixture cannot be prepared"), "{e}");
        assert!(!out.exists());
    }
}

#[test]
fn a_damaged_set_is_refused_with_the_file_and_the_place() {
    let made = made();
    let shard = made.folder.join("shard-00001.tokens");
    let whole = fs_err::read(&shard).unwrap();
    let say = || {
        let opened = made.open().and_then(|_| verify_prepared(&made.folder, u64::MAX, &mut |_| ()));
        opened.unwrap_err().to_string()
    };
    // In a block: found when it is read, and by the loader.
    let mut bytes = whole.clone();
    bytes[500] ^= 1;
    fs_err::write(&shard, &bytes).unwrap();
    let e = say();
    assert!(e.contains("shard-00001.tokens") && e.contains("at byte 40") && e.contains("the checksum"), "{e}");
    let mut loader = made.start(&made.tokenizer, Recipe::pairs()).unwrap();
    let shape = BatchShape { samples: 2, source_len: 8, target_len: 8, documents: 1 };
    let mut owned = Owned::new(shape);
    let read: Result<Vec<_>, _> = (0..7500).map(|_| loader.next(owned.slot())).collect();
    assert_eq!(read.unwrap_err().to_string(), e);
    // Cut short, or gone.
    fs_err::write(&shard, &whole[..whole.len() / 2]).unwrap();
    assert!(say().contains("shard-00001.tokens"));
    fs_err::remove_file(&shard).unwrap();
    assert!(say().contains("shard-00001.tokens"));
    // Another shard under this name.
    fs_err::copy(made.folder.join("shard-00000.tokens"), &shard).unwrap();
    assert!(say().contains("shard-00001.tokens"));
    fs_err::write(&shard, &whole).unwrap();
    assert!(made.open().is_ok());
    // Cut short while it is open.
    let opened = Arc::new(made.open().unwrap());
    fs_err::write(&shard, &whole[..whole.len() - 1]).unwrap();
    let settings = crate::fixture::settings(shape, 1, 1, Cursor::default());
    let (order, tokenizer) = (Order::new(1, false), made.tokenizer.clone());
    let mut loader = Loader::start(opened, order, tokenizer, Recipe::pairs(), settings).unwrap();
    let read: Result<Vec<_>, _> = (0..7500).map(|_| loader.next(owned.slot())).collect();
    let e = read.unwrap_err().to_string();
    assert!(e.contains(&format!("expected {} bytes, found {}", whole.len(), whole.len() - 1)), "{e}");
}

#[test]
fn a_manifest_that_says_something_else_is_refused() {
    let made = made();
    let path = made.folder.join("prepared.json");
    let whole = fs_err::read_to_string(&path).unwrap();
    for (from, to, words) in [
        ("\"plimsoll_prepared\": 1", "\"plimsoll_prepared\": 2", "version: expected 1"),
        ("\"eos_id\": 1", "\"eos_id\": 2", "checksum"),
        ("\"rows\": 15000", "\"rows\": 15001", "checksum"),
        ("\"shards\"", "\"others\"", "unknown field `others`"),
        ("{", "", "a manifest"),
    ] {
        assert!(whole.contains(from), "{from}");
        fs_err::write(&path, whole.replacen(from, to, 1)).unwrap();
        let e = made.open().unwrap_err().to_string();
        assert!(e.contains(words) && e.contains("prepared.json") && e.contains("data prepare"), "{e}");
    }
}

#[test]
fn preparing_again_does_nothing_and_preparing_something_else_is_refused() {
    let made = made();
    let before = folder_bytes(&made.folder);
    made.again(&Recipe::pairs()).unwrap();
    assert!(folder_bytes(&made.folder) == before);
    let longer = PrepareSettings { lengths: [9, 8], ..settings() };
    let again = prepare(&made.sources, &made.tokenizer, &Recipe::pairs(), &longer, &made.folder, &mut |_| ());
    assert!(matches!(again.unwrap_err(), DataError::OtherPrepared { .. }));
    // Begun, and with other settings.
    fs_err::remove_file(made.folder.join("prepared.json")).unwrap();
    assert!(unfinished(&made.folder));
    let e = made.open().unwrap_err().to_string();
    assert!(e.contains("run the same `plimsoll data prepare` again"), "{e}");
    let again = prepare(&made.sources, &made.tokenizer, &Recipe::pairs(), &longer, &made.folder, &mut |_| ());
    assert!(matches!(again.unwrap_err(), DataError::OtherPrepared { .. }));
    // A damaged shard is made again, and what is left over is removed.
    let shard = made.folder.join("shard-00001.tokens");
    let mut bytes = fs_err::read(&shard).unwrap();
    bytes[100] ^= 4;
    fs_err::write(&shard, bytes).unwrap();
    for left_over in ["shard-00099.tokens", "shard-00003.tokens.part", "prepared.json.part"] {
        fs_err::write(made.folder.join(left_over), "x").unwrap();
    }
    made.again(&Recipe::pairs()).unwrap();
    assert!(folder_bytes(&made.folder) == before, "{:?}", folder_bytes(&made.folder).keys());
    // Prepared data are not prepared again, and not read beside others.
    let opened = made.open().unwrap();
    let nested = prepare(&opened, &made.tokenizer, &Recipe::pairs(), &settings(), Path::new("x"), &mut |_| ());
    assert!(matches!(nested.unwrap_err(), DataError::NoTexts { .. }));
    let e = RowTexts::new(Arc::new(opened)).pair(0).unwrap_err();
    assert!(matches!(e, DataError::NoTexts { .. }), "{e}");
    let both = [made.folder.clone(), made.dir.path().join("a.jsonl")];
    let e = Sources::open(&both, Columns::default()).unwrap_err();
    assert!(matches!(e, DataError::PreparedNotAlone { .. }), "{e}");
}

#[test]
fn two_at_the_same_time_are_refused() {
    let made = made();
    forget_prepared(&made.folder).unwrap();
    assert!(folder_bytes(&made.folder).is_empty());
    let mut said = None;
    let tell = &mut |_| {
        said.get_or_insert_with(|| made.again(&Recipe::pairs()).unwrap_err().to_string());
    };
    prepare(&made.sources, &made.tokenizer, &Recipe::pairs(), &settings(), &made.folder, tell).unwrap();
    assert!(said.unwrap().contains("another process is preparing"));
}

#[test]
fn a_row_that_cannot_be_tokenised_is_named_and_what_was_done_stays() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let line = |i: usize| {
        let role = if i == 4000 { "tool" } else { "user" };
        let talk = [Message::new(role, "w1 w2 w3"), Message::new("assistant", &format!("w{}", i % 9))];
        serde_json::json!({ "messages": talk }).to_string() + "\n"
    };
    fs_err::write(&path, (0..5000).map(line).collect::<String>()).unwrap();
    let text = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('who?') }}{% endif %}\
                {{ m.content }} {% endfor %}";
    let recipe = Recipe::chat(Arc::new(ChatTemplate::new(text, &Default::default()).unwrap()));
    let sources = Sources::open_kind(std::slice::from_ref(&path), Kind::Chat, Columns::default()).unwrap();
    let (tokenizer, folder) = (words_tokenizer(dir.path(), 40), dir.path().join("prepared"));
    let e = prepare(&sources, &tokenizer, &recipe, &settings(), &folder, &mut |_| ()).unwrap_err().to_string();
    assert!(e.contains("a.jsonl") && e.contains("line 4001") && e.contains("who?"), "{e}");
    assert!(unfinished(&folder) && folder_bytes(&folder).keys().all(|name| name.ends_with(".tokens")));
}
