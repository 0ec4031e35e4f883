//! Data of a real S3 server and of a real HTTP server: the stream of local files, whatever goes wrong on the way.

#[path = "../src/elsewhere.rs"]
#[allow(dead_code, reason = "the program uses more of it")]
mod elsewhere;
mod support_mirror;
mod support_run;
mod support_store;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use elsewhere::Store;
use plimsoll_data::*;
use plimsoll_mirror::Objects;
use rustix::process::{Signal, kill_process};
use support_mirror::Place;
use support_mirror::server::SECRET;
use support_run::series::{self, SeriesJob};
use support_run::trainer::Trainer;
use support_run::{PINS, Result as RunResult, Workshop};
use support_store::{Fault, FileServer, Skill};
use tempfile::TempDir;

/// Rows whose files have several blocks of the cache.
fn rows() -> Vec<(String, String)> {
    let mut state = 5u64;
    let mut word = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        format!("{:08x} ", state >> 32)
    };
    (0..9000).map(|i| ((0..20 + i % 50).map(|_| word()).collect(), format!("answer {i}"))).collect()
}

fn jsonl(rows: &[(String, String)]) -> String {
    rows.iter().map(|(s, t)| format!("{{\"source\": \"{s}\", \"target\": \"{t}\"}}\n")).collect()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, bytes).unwrap();
    packer.finish().unwrap()
}

fn parquet(path: &Path, rows: &[(String, String)]) {
    use ::parquet::data_type::{ByteArray, ByteArrayType};
    use ::parquet::file::writer::SerializedFileWriter;
    let schema = "message m { REQUIRED BYTE_ARRAY source (UTF8); REQUIRED BYTE_ARRAY target (UTF8); }";
    let schema = Arc::new(::parquet::schema::parser::parse_message_type(schema).unwrap());
    let (file, _) = fs_err::File::create(path).unwrap().into_parts();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let columns: [Vec<ByteArray>; 2] =
        [rows.iter().map(|r| r.0.as_str().into()).collect(), rows.iter().map(|r| r.1.as_str().into()).collect()];
    for values in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// A folder with files, a server over it, a cache, and who reads from it.
struct Scene {
    dir: TempDir,
    server: FileServer,
    files: Arc<dyn RemoteFiles>,
}

const NAMES: [&str; 4] = ["a.jsonl", "a b.csv", "a.jsonl.gz", "a.parquet"];

impl Scene {
    fn new(skill: Skill) -> Scene {
        Scene::heard(skill, || false, |_| {})
    }

    fn heard(
        skill: Skill,
        asked_to_end: impl Fn() -> bool + Send + Sync + 'static,
        hear: impl Fn(&str) + Send + Sync + 'static,
    ) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (files, rows) = (dir.path().join("files"), rows());
        fs_err::create_dir(&files).unwrap();
        let lines = jsonl(&rows);
        fs_err::write(files.join("a.jsonl"), &lines).unwrap();
        fs_err::write(files.join("a.jsonl.gz"), gz(lines.as_bytes())).unwrap();
        let cells: String = rows.iter().map(|(s, t)| format!("{s},{t}\n")).collect();
        fs_err::write(files.join("a b.csv"), format!("source,target\n{cells}")).unwrap();
        parquet(&files.join("a.parquet"), &rows);
        let server = FileServer::start(&files, skill);
        Scene { dir, server, files: Arc::new(Store(Objects::new(asked_to_end, hear))) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("files").join(name)
    }

    fn url(&self, name: &str) -> PathBuf {
        self.server.url(&name.replace(' ', "%20"))
    }

    fn open(&self, name: &str) -> Result<Arc<Sources>, DataError> {
        let cache = self.dir.path().join("cache");
        let elsewhere = Some(Elsewhere { files: &self.files, cache: LEAST_CACHE });
        let opening = Opening { folder: Some(&cache), elsewhere, ..Opening::default() };
        Sources::open_with(&[self.url(name)], Kind::Pairs, Columns::default(), opening).map(Arc::new)
    }

    fn local(&self, name: &str) -> Arc<Sources> {
        let cache = self.dir.path().join("frames");
        Arc::new(Sources::open_in(&[self.path(name)], Kind::Pairs, Columns::default(), Some(&cache)).unwrap())
    }

    /// Forgets all parts of files.
    fn forget(&self) {
        for entry in fs_err::read_dir(self.dir.path().join("cache/blocks")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "block") {
                fs_err::remove_file(path).unwrap();
            }
        }
    }
}

fn texts(sources: &Arc<Sources>) -> Result<Vec<(String, String)>, DataError> {
    let mut texts = RowTexts::new(sources.clone());
    (0..sources.rows()).map(|row| texts.pair(row).map(|(s, t)| (s.to_string(), t.to_string()))).collect()
}

#[test]
fn files_of_an_http_server_are_read_as_local_ones_and_a_second_time_from_the_disk() {
    let scene = Scene::new(Skill::Usual);
    let want = rows();
    for name in NAMES {
        let (remote, local) = (scene.open(name).unwrap(), scene.local(name));
        assert_eq!(remote.fingerprint(), local.fingerprint(), "{name}");
        assert!(texts(&remote).unwrap() == want, "{name}");
        let asked = scene.server.requests(&["GET"]).len();
        assert!(texts(&scene.open(name).unwrap()).unwrap() == want, "{name}");
        assert_eq!(scene.server.requests(&["GET"]).len(), asked, "{name} was fetched again");
    }
    // Where a server points elsewhere, that is followed.
    scene.forget();
    scene.server.faults(&[Fault::Moved]);
    assert!(texts(&scene.open("a.jsonl").unwrap()).unwrap() == want);
    assert_eq!(scene.server.requests(&["GET /moved/a.jsonl", "206"]).len(), 1);
}

#[test]
fn busy_answers_and_broken_connections_are_tried_again_from_where_they_broke() {
    let want = rows();
    for skill in [Skill::Usual, Skill::NoTags] {
        let scene = Scene::new(skill);
        for name in NAMES {
            let faults = [503, 503, 429, 500, 503, 503].map(Fault::Status);
            scene.server.faults(&faults);
            scene.server.faults(&[Fault::Cut(100_000), Fault::Cut(0), Fault::Cut(70_000)]);
            assert!(texts(&scene.open(name).unwrap()).unwrap() == want, "{name}, {skill:?}");
            assert_eq!(scene.server.faults_left(), 0);
        }
        // What has come is not asked for again.
        let begins = |line: &String| line.split("bytes=").nth(1)?.split('-').next()?.parse::<u64>().ok();
        let inside = |line: &String| begins(line).is_some_and(|at| at % (1 << 20) != 0);
        let requests = scene.server.requests(&["GET /a.jsonl ", "206"]);
        assert!(requests.iter().any(inside), "{skill:?}: {requests:?}");
    }
}

#[test]
fn a_file_that_is_replaced_is_told_with_its_url() {
    for (skill, kept) in [(Skill::Usual, 9000), (Skill::NoTags, 8999)] {
        let scene = Scene::new(skill);
        for name in ["a.jsonl", "a.parquet"] {
            let sources = scene.open(name).unwrap();
            scene.forget();
            let mut rows = rows();
            rows.truncate(kept);
            rows[0].0 = rows[0].0.replace('0', "1");
            match name {
                "a.jsonl" => fs_err::write(scene.path(name), jsonl(&rows)).unwrap(),
                _ => parquet(&scene.path(name), &rows),
            }
            let error = texts(&sources).unwrap_err().to_string();
            let named = format!("`{}` changed after it was opened", scene.url(name).display());
            assert!(error.starts_with(&named), "{error}");
        }
    }
}

#[test]
fn what_only_a_person_can_cure_is_told_at_once_with_url_and_remedy() {
    let scene = Scene::new(Skill::Usual);
    let told = |name: &str| scene.open(name).unwrap_err().to_string();
    scene.server.faults(&[Fault::Status(403)]);
    let error = told("a.jsonl");
    assert!(error.starts_with(&format!("`{}` answers 403; ", scene.url("a.jsonl").display())), "{error}");
    assert!(error.contains("without credentials"), "{error}");
    assert_eq!(scene.server.requests(&["GET", "403"]).len(), 1);
    let error = told("b.jsonl");
    assert!(error.contains("b.jsonl` is not there; look at the name"), "{error}");
    let scene = Scene::new(Skill::NoRanges);
    let error = scene.open("a.jsonl").unwrap_err().to_string();
    assert!(error.contains("ignores `Range`; copy it here"), "{error}");
}

#[test]
fn while_the_network_is_away_a_reader_waits_and_goes_on() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let hear = move |text: &str| tell.lock().unwrap().send(text.to_string()).unwrap();
    let mut scene = Scene::heard(Skill::Usual, || false, hear);
    let sources = scene.open("a.jsonl").unwrap();
    scene.forget();
    scene.server.end();
    let reading = std::thread::spawn(move || texts(&sources).unwrap());
    let trouble = told.recv().unwrap();
    assert!(trouble.contains("a.jsonl` does not") && trouble.contains("tried again for up to 30 minutes"), "{trouble}");
    scene.server.begin();
    assert!(reading.join().unwrap() == rows());
    assert!(told.recv().unwrap().contains("answers again"));
}

#[test]
fn a_reader_that_waits_ends_when_it_is_asked_to() {
    let asked = Arc::new(AtomicBool::new(false));
    let (ask, heard) = (asked.clone(), asked.clone());
    let mut scene = Scene::heard(
        Skill::Usual,
        move || asked.load(Ordering::Relaxed),
        move |_| heard.store(true, Ordering::Relaxed),
    );
    let sources = scene.open("a.jsonl").unwrap();
    scene.forget();
    scene.server.end();
    assert!(matches!(texts(&sources), Err(DataError::Stopped)));
    assert!(ask.load(Ordering::Relaxed));
}

/// `plimsoll data inspect --json` of files, with the server's environment.
fn inspect(place: &Place, words: &[&str], more: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = place.plimsoll(&["data", "inspect", "--json"]);
    command.args(words).env("XDG_CACHE_HOME", place.path("cache")).envs(more.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn objects_of_a_bucket_are_inspected_as_local_files_and_a_wrong_secret_is_told() {
    let place = Place::new("");
    let (rows, data) = (rows(), place.server.object("some data"));
    fs_err::create_dir_all(data.join("deeper")).unwrap();
    fs_err::create_dir(place.path("local")).unwrap();
    for (name, rows) in [("1.jsonl", &rows[..4000]), ("0.jsonl", &rows[4000..])] {
        fs_err::write(data.join(name), jsonl(rows)).unwrap();
        fs_err::write(place.path("local").join(name), jsonl(rows)).unwrap();
    }
    fs_err::write(data.join("deeper/2.jsonl"), "not for this pattern").unwrap();
    let (code, local, said) = inspect(&place, &["local/*.jsonl"], &[]);
    assert_eq!(code, Some(0), "{said}");
    let (code, remote, said) = inspect(&place, &["s3://bucket/some data/*.jsonl"], &[]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(remote, local);
    let gets = place.server.requests(&["GET", " 206"]).len();
    assert!(gets > 0);
    inspect(&place, &["s3://bucket/some data/0.jsonl", "s3://bucket/some data/1.jsonl"], &[]);
    assert_eq!(place.server.requests(&["GET", " 206"]).len(), gets, "the parts on the disk are used");

    let url = "s3://bucket/some data/0.jsonl";
    let (code, _, said) = inspect(&place, &[url], &[("AWS_SECRET_ACCESS_KEY", "wrong")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(url) && said.contains("403") && said.contains("AWS_PROFILE"), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    let (code, _, said) = inspect(&place, &["s3://bucket/some data/*.csv"], &[]);
    assert!(code == Some(2) && said.contains("matches no file"), "{said}");
    let (code, _, said) = inspect(&place, &["s3://bucket/none.jsonl"], &[]);
    assert!(code == Some(2) && said.contains("`s3://bucket/none.jsonl`"), "{said}");
}

#[test]
fn processes_share_a_cache_that_is_smaller_than_the_data_and_one_that_is_killed_leaves_nothing() {
    let place = Place::new("");
    let (data, cache) = (place.server.object("large"), place.path("cache/plimsoll/data"));
    fs_err::create_dir_all(&data).unwrap();
    fs_err::create_dir(place.path("local")).unwrap();
    let lines = jsonl(&rows());
    for name in ["0.jsonl", "1.jsonl"] {
        for folder in [&data, &place.path("local")] {
            fs_err::write(folder.join(name), lines.repeat(3)).unwrap();
        }
    }
    let words = ["--data-cache", "1MiB", "s3://bucket/large/*.jsonl"];
    let command = || {
        let mut command = place.plimsoll(&["data", "inspect", "--json"]);
        command.args(words).env("XDG_CACHE_HOME", place.path("cache"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let parts = || if cache.is_dir() { support_mirror::files_in(&cache) } else { Vec::new() };
    let mut killed = command();
    support_mirror::wait_for("a part on the disk", || parts().len() > 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (_, want, _) = inspect(&place, &["local/*.jsonl"], &[]);
    for child in [command(), command()] {
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&output.stdout), want, "{}", text(&output.stderr));
    }
    let all = 6 * lines.len() as u64;
    let kept: u64 = parts().iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
    assert!(kept <= LEAST_CACHE + 8 && all > LEAST_CACHE, "{kept} of {all} bytes are kept");
    assert!(parts().iter().all(|path| path.extension().is_none_or(|ending| ending != "part")), "{:?}", parts());
}

#[test]
fn a_run_on_data_of_a_bucket_ends_as_on_local_files_though_the_server_goes_away_and_the_worker_is_killed() {
    let course = format!(
        "effective_batch = 8\nepochs = 60\nsave_every = 40\neval_every = 70\noptimizer = {{ name = \"adamw\", lr = 3e-3 }}\n{PINS}"
    );
    let workshop = Workshop::new();
    workshop.job(&course);
    Trainer::train(&workshop, "local").end().must(0, &["done: 450 steps"]);
    let want = RunResult::of(&workshop.path("local"));

    let mut place = Place::new("");
    let data = place.server.object("data");
    fs_err::create_dir_all(&data).unwrap();
    for name in ["train.jsonl", "eval.jsonl"] {
        fs_err::copy(workshop.path(name), data.join(name)).unwrap();
    }
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
    let job = job.replace("[\"train.jsonl\"]", "\"s3://bucket/data/tr*.jsonl\"");
    let job = job.replace("\"eval.jsonl\"", "\"s3://bucket/data/eval.jsonl\"\ncache = \"20MiB\"");
    fs_err::write(workshop.path("job.toml"), job).unwrap();
    let mut run = Trainer::train_with(&workshop, "run", |command| {
        place.server.environment(command);
        command.env("AWS_SHARED_CREDENTIALS_FILE", "/nowhere").env("AWS_CONFIG_FILE", "/nowhere");
        command.env("XDG_CACHE_HOME", place.path("cache"));
    });
    run.wait_for_step(9);
    let kept = fs_err::read_to_string(workshop.path("run/job.toml")).unwrap();
    assert!(kept.contains("s3://bucket/data/train.jsonl") && kept.contains("20MiB"), "{kept}");
    place.server.kill();
    fs_err::remove_dir_all(place.path("cache/plimsoll/data/blocks")).unwrap();
    run.wait_for_words("it is tried again for up to 30 minutes");
    place.server.restart();
    run.wait_for_words("answers again");
    kill_process(run.worker(), Signal::KILL).unwrap();
    run.end().must(0, &["done: 450 steps"]);
    RunResult::of(&workshop.path("run")).must_equal(&want, "from a bucket");
    let parts = support_mirror::files_in(&place.path("cache/plimsoll/data"));
    assert!(parts.iter().all(|path| path.extension().is_none_or(|ending| ending != "part")), "{parts:?}");
    let bytes: u64 = parts.iter().map(|path| fs_err::metadata(path).unwrap().len()).sum();
    assert!(bytes > 0 && bytes <= 20 << 20, "{bytes}");
}

#[test]
fn series_of_a_server_train_as_local_ones_and_their_parts_and_the_network_are_in_the_plan() {
    let workshop = Workshop::of_series().with_own_cache();
    let train = format!("effective_batch = 24\nsteps = 6\n{}", series::PINS);
    workshop.series_job(SeriesJob { model: series::V1, series: series::SERIES, train: &train });
    let planned = || workshop.plimsoll(&["plan", "job.toml", "--json"]).must(0, &[]).json();
    let part = |plan: &serde_json::Value, of: &str, name: &str| {
        let parts = plan[of]["parts"].as_array().unwrap();
        parts.iter().find(|part| part["name"] == name).map(|part| part["bytes"].as_u64().unwrap())
    };
    let here = planned();
    let want = workshop.trained("local", &[]);

    let files = workshop.path("served");
    fs_err::create_dir(&files).unwrap();
    fs_err::rename(workshop.path("market.csv"), files.join("market.csv")).unwrap();
    let server = FileServer::start(&files, Skill::Usual);
    workshop.edit_job("market.csv", &server.url("market.csv").display().to_string());
    let there = planned();
    let bytes = fs_err::metadata(files.join("market.csv")).unwrap().len();
    let fetched = [&here, &there].map(|plan| part(plan, "disk", "fetched data"));
    assert_eq!(fetched, [None, Some(bytes)]);
    let program = [&here, &there].map(|plan| part(plan, "ram", "program").unwrap());
    assert!(program[1] > program[0] + (4 << 20), "{program:?}");
    workshop.trained("far", &[]).must_equal(&want, "series of a server");
}

#[test]
fn a_run_that_waits_for_data_is_stopped_at_once_and_can_be_resumed() {
    let workshop = Workshop::new();
    workshop.job(&format!("effective_batch = 8\nepochs = 60\nsave_every = 40\n{PINS}"));
    let mut server = FileServer::start(&workshop.path("."), Skill::Usual);
    let job = fs_err::read_to_string(workshop.path("job.toml")).unwrap();
    let job = job.replace("[\"train.jsonl\"]", &format!("[\"{}\"]", server.url("train.jsonl").display()));
    fs_err::write(workshop.path("job.toml"), job).unwrap();
    let workshop = workshop.with_own_cache();
    let mut run = Trainer::train(&workshop, "run");
    run.wait_for_step(9);
    server.end();
    fs_err::remove_dir_all(workshop.cache().join("plimsoll/data/blocks")).unwrap();
    run.wait_for_words("it is tried again for up to 30 minutes");
    run.signal(Signal::TERM);
    run.end().must(4, &["stopped after step"]);
    server.begin();
    Trainer::resume(&workshop, "run").end().must(0, &["done: 450 steps"]);
    let summary = fs_err::read(workshop.path("run/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let bytes = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("no {key} in {summary}"));
    println!("{} of {} planned", bytes("peak_ram_bytes"), bytes("planned_ram_bytes"));
    assert!(bytes("peak_ram_bytes") <= bytes("planned_ram_bytes"), "{summary}");
    assert!(bytes("loader_heap_peak_bytes") <= bytes("loader_heap_planned_bytes"), "{summary}");
}
