//! What reading from a server takes of the heap, with every allocation counted, against what the plan says of it. The server is a
//! process of its own, so that it does not count.

#[path = "../../plimsoll-data/tests/counting/mod.rs"]
mod counting;
#[path = "../src/elsewhere.rs"]
#[allow(dead_code, reason = "the program uses more of it")]
mod elsewhere;
#[allow(dead_code, reason = "faults are for other tests")]
mod support_store;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use counting::peak_of;
use plimsoll_data::*;
use plimsoll_mirror::{Objects, READING};
use support_store::{FileServer, Skill};

const FOLDER: &str = "PLIMSOLL_TEST_FILES";
const BEGINS: &str = "it listens at ";

#[test]
#[ignore = "is the server, when it is started as one"]
fn serve() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let server = FileServer::start(&folder, Skill::Usual);
    println!("{BEGINS}{}", server.url("a.jsonl").display());
    std::io::stdout().flush().unwrap();
    // Until whoever started it is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn reading_from_a_server_stays_below_what_is_planned_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{{\"source\": \"{}\", \"target\": \"x\"}}\n", "word ".repeat(200));
    fs_err::write(dir.path().join("a.jsonl"), line.repeat(40_000)).unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve", "--ignored", "--nocapture", "--test-threads", "1"])
        .env(FOLDER, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let url = lines.find_map(|line| Some(line.split_once(BEGINS)?.1.to_string())).unwrap();

    let objects = Objects::new(|| false, |_| {});
    let mut bytes = 0;
    let (peak, ()) = peak_of(|| {
        let object = objects.look(&url).unwrap();
        let mut take = |piece: &[u8]| {
            bytes += piece.len();
            Ok(())
        };
        for _ in 0..3 {
            objects.read(&object, 0..object.bytes.0, &mut take).unwrap().unwrap();
        }
    });
    println!("{bytes} bytes in {peak} of heap, planned {}", READING.0);
    assert!(bytes > 100 << 20);
    assert!(peak <= READING.0, "{peak} of {}", READING.0);

    // All of it: client, cache and scan.
    let files: Arc<dyn RemoteFiles> = Arc::new(elsewhere::Store(Objects::new(|| false, |_| {})));
    let cache = dir.path().join("cache");
    let elsewhere = Some(Elsewhere { files: &files, cache: LEAST_CACHE });
    let opening = Opening { folder: Some(&cache), elsewhere, ..Opening::default() };
    let open = || Sources::open_with(&[PathBuf::from(&url)], Kind::Pairs, Columns::default(), opening).unwrap();
    let (peak, sources) = peak_of(open);
    let planned = sources.load_facts(Order::new(0, false)).row_texts_bytes();
    println!("opening: {peak} of heap, planned {planned}");
    assert!(peak <= planned, "{peak} of {planned}");
    assert!(kept(&cache) <= LEAST_CACHE);
    drop(server.stdin.take());
    server.wait().unwrap();
}

fn kept(cache: &Path) -> u64 {
    let entries = fs_err::read_dir(cache.join("blocks")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}
