//! Both sides over two pipes, in one process: what arrives, what is sent, and what is left when a pipe breaks anywhere.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_remote::pull::pull;
use plimsoll_remote::push::{Care, Item, Pushed, push};
use plimsoll_remote::serve::{Deeds, Progress, serve};
use plimsoll_remote::wire::{
    Answer, Ask, BLOCK, Ending, Fault, GREETING, Listed, RunSeen, Stamp, There, Word, read_message, write_message,
};
use plimsoll_remote::{FarPath, Link, Patience, Refusal, RemoteError, digest_of};
use proptest::prelude::*;

struct NoRuns;

impl Deeds for NoRuns {
    fn look(&self, _run: &Path) -> Option<Progress> {
        None
    }

    fn resolve(&self, _job: &Path) -> Result<String, Refusal> {
        Err(Refusal::of_asked("there are no jobs here"))
    }
}

/// Breaks behind so many bytes.
struct Brittle<T> {
    inner: T,
    left: Arc<AtomicU64>,
}

impl<T> Brittle<T> {
    fn some(&self, wanted: usize) -> io::Result<usize> {
        match self.left.load(Ordering::SeqCst) {
            0 => Err(io::ErrorKind::BrokenPipe.into()),
            left => Ok(wanted.min(left as usize)),
        }
    }
}

impl Write for Brittle<PipeWriter> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = self.some(bytes.len())?;
        let written = self.inner.write(&bytes[..some])?;
        self.left.fetch_sub(written as u64, Ordering::SeqCst);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Read for Brittle<PipeReader> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let some = self.some(into.len())?;
        let read = self.inner.read(&mut into[..some])?;
        self.left.fetch_sub(read as u64, Ordering::SeqCst);
        Ok(read)
    }
}

/// A connection to `dir` over which so many bytes can go out and come in.
fn link(dir: &Path, out: u64, back: u64) -> Result<Link, RemoteError> {
    patient_link(dir, "/bin/false", (out, back), [Patience::default(); 2])
}

/// The same, with the patience of the near and of the far side, and the program that is run there.
fn patient_link(
    dir: &Path,
    program: &str,
    (out, back): (u64, u64),
    patience: [Patience; 2],
) -> Result<Link, RemoteError> {
    let (far_in, near_out) = pipe().unwrap();
    let (near_in, far_out) = pipe().unwrap();
    let (dir, program) = (dir.to_path_buf(), program.to_string());
    std::thread::spawn(move || serve(&dir, Path::new(&program), far_in, far_out, &NoRuns, patience[1]));
    let left = |n: u64| Arc::new(AtomicU64::new(n));
    let (input, output) = (Brittle { inner: near_in, left: left(back) }, Brittle { inner: near_out, left: left(out) });
    Link::over_pipes("here", input, output, patience[0])
}

/// A far side that answers what `answer` makes up, as often as that wants.
fn made_up(mut answer: impl FnMut(Ask, &mut dyn FnMut(&Answer, &[u8]) -> bool) + Send + 'static) -> Link {
    let (mut far_in, near_out) = pipe().unwrap();
    let (near_in, mut far_out) = pipe().unwrap();
    std::thread::spawn(move || {
        far_out.write_all(GREETING).unwrap();
        let hello = Answer::Hello { version: "0".to_string(), dir: "/far".to_string() };
        write_message(&mut far_out, &hello, &[]).unwrap();
        while let Ok(Some((ask, _))) = read_message::<Ask>(&mut far_in) {
            answer(ask, &mut |answer, body| write_message(&mut far_out, answer, body).is_ok());
        }
    });
    Link::over_pipes("here", near_in, near_out, Patience::default()).unwrap()
}

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let by = std::time::Instant::now() + Duration::from_secs(120);
    while !so() {
        assert!(std::time::Instant::now() < by, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const ALL: u64 = u64::MAX;

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Small files, an empty one, a program, one that packs well, and one of several blocks.
fn fill(folder: &Path) -> Vec<Item> {
    use std::os::unix::fs::PermissionsExt;
    let files = [
        ("a/empty", Vec::new()),
        ("a/small", bytes(1000, 1)),
        ("b/exact", bytes(BLOCK, 2)),
        ("b/even", vec![7; 3 * BLOCK]),
        ("large", bytes(5 * BLOCK + 17, 3)),
        ("run.sh", b"#!/bin/sh\n".to_vec()),
    ];
    let mut items = Vec::new();
    for (name, content) in files {
        let from = folder.join(name);
        fs_err::create_dir_all(from.parent().unwrap()).unwrap();
        fs_err::write(&from, content).unwrap();
        items.push(Item { from, to: FarPath::new(format!("in/{name}")).unwrap() });
    }
    fs_err::set_permissions(folder.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    items
}

fn assert_same(items: &[Item], dir: &Path) {
    for item in items {
        let far = item.to.in_folder(dir);
        assert!(fs_err::read(&item.from).unwrap() == fs_err::read(&far).unwrap(), "{}", item.to);
        let executable = |path: &Path| {
            use std::os::unix::fs::PermissionsExt;
            fs_err::metadata(path).unwrap().permissions().mode() & 0o100
        };
        assert_eq!(executable(&item.from), executable(&far), "{}", item.to);
    }
}

fn send(dir: &Path, items: &[Item], out: u64, back: u64) -> Result<Pushed, RemoteError> {
    push(&link(dir, out, back)?, items, Care::default(), &mut |_| {})
}

#[test]
fn what_differs_is_sent_and_nothing_else() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let items = fill(near.path());
    let first = send(far.path(), &items, ALL, ALL).unwrap();
    assert_same(&items, far.path());
    assert_eq!((first.files, first.unchanged, first.done), (6, 0, first.total));
    // What packs well is packed.
    assert!(first.sent.0 < 7 * BLOCK as u64, "{first:?}");
    let second = send(far.path(), &items, ALL, ALL).unwrap();
    assert_eq!((second.unchanged, second.sent.0), (6, 0));
    let mut changed = fs_err::read(&items[4].from).unwrap();
    changed[3 * BLOCK + 5] ^= 1;
    fs_err::write(&items[4].from, &changed).unwrap();
    let third = send(far.path(), &items, ALL, ALL).unwrap();
    assert_same(&items, far.path());
    assert_eq!((third.unchanged, third.sent.0), (5, BLOCK as u64));
}

#[test]
fn a_change_that_neither_length_nor_date_shows_is_found_where_all_is_compared() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let items = fill(near.path());
    send(far.path(), &items, ALL, ALL).unwrap();
    let (path, date) =
        (items[4].to.in_folder(far.path()), fs_err::metadata(&items[4].from).unwrap().modified().unwrap());
    let mut damaged = fs_err::read(&path).unwrap();
    damaged[0] ^= 1;
    fs_err::write(&path, damaged).unwrap();
    fs_err::OpenOptions::new().write(true).open(&path).unwrap().file().set_modified(date).unwrap();
    assert_eq!(send(far.path(), &items, ALL, ALL).unwrap().sent.0, 0);
    let care = Care { compare_all: true };
    let pushed = push(&link(far.path(), ALL, ALL).unwrap(), &items, care, &mut |_| {}).unwrap();
    assert!(pushed.sent.0 < 2 * BLOCK as u64 + 2000, "{pushed:?}");
    assert_same(&items, far.path());
}

#[test]
fn nothing_is_written_without_the_lock_or_damaged() {
    let far = tempfile::tempdir().unwrap();
    let link = link(far.path(), ALL, ALL).unwrap();
    let path = FarPath::new("x").unwrap();
    let stamp = Stamp { length: 1, seconds: 0, nanos: 0, executable: false, private: false };
    let write = |digest| Ask::Write { path: path.clone(), stamp, digest, packed: false };
    link.tell(&write(digest_of(b"x")), b"x").unwrap();
    assert!(link.answer().unwrap_err().to_string().contains("lock"));
    link.have_done(&Ask::Lock {}).unwrap();
    link.tell(&write(digest_of(b"y")), b"x").unwrap();
    assert!(link.answer().unwrap_err().to_string().contains("damaged"));
    assert!(!far.path().join("x").exists());
    link.tell(&write(digest_of(b"x")), b"x").unwrap();
    link.answer().unwrap();
    assert_eq!(fs_err::read(far.path().join("x")).unwrap(), b"x");
}

#[test]
fn what_was_pushed_is_pulled_again_and_only_differences_come() {
    let (near, far, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let items = fill(near.path());
    send(far.path(), &items, ALL, ALL).unwrap();
    let folder = FarPath::new("in").unwrap();
    let fetch = |exclude: &[&str]| {
        let exclude: Vec<String> = exclude.iter().map(|text| text.to_string()).collect();
        pull(&link(far.path(), ALL, ALL).unwrap(), &folder, &exclude, back.path(), &mut |_| {}).unwrap()
    };
    assert_eq!(fetch(&["large", "a"]).files, 3);
    assert!(!back.path().join("large").exists() && !back.path().join("a").exists());
    assert_eq!(fetch(&[]).unchanged, 3);
    for item in &items {
        let name = item.to.as_str().strip_prefix("in/").unwrap();
        assert!(fs_err::read(&item.from).unwrap() == fs_err::read(back.path().join(name)).unwrap(), "{name}");
    }
    // One block differs, and the file is longer.
    let path = far.path().join("in/large");
    let mut changed = fs_err::read(&path).unwrap();
    changed[0] ^= 1;
    changed.extend(b"more");
    fs_err::write(&path, &changed).unwrap();
    let pulled = fetch(&[]);
    assert!(pulled.sent.0 <= BLOCK as u64 + 40, "{pulled:?}");
    assert_eq!(fs_err::read(back.path().join("large")).unwrap(), changed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Pipes that break anywhere, again and again: names stand for whole files all the while, and it comes to an end.
    #[test]
    fn a_push_that_is_cut_anywhere_leaves_whole_files_and_goes_on(
        cuts in proptest::collection::vec((0u64..9 * BLOCK as u64, 60u64..4000), 1..5)
    ) {
        let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let items = fill(near.path());
        for (out, back) in cuts {
            if let Err(error) = send(far.path(), &items, out, back) {
                prop_assert!(error.is_cut(), "{error}");
            }
            for item in &items {
                if let Ok(there) = fs_err::read(item.to.in_folder(far.path())) {
                    prop_assert!(there == fs_err::read(&item.from).unwrap(), "{}", item.to);
                }
            }
        }
        send(far.path(), &items, ALL, ALL).unwrap();
        assert_same(&items, far.path());
        let left: Vec<_> = ["in", "in/a", "in/b"].iter().flat_map(|folder| fs_err::read_dir(far.path().join(folder)).unwrap())
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with('~')).collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_far_side_that_falls_silent_is_a_cut_and_one_that_is_busy_is_not() {
    let quick = |silence| Patience {
        silence: Duration::from_millis(silence),
        beat: Duration::from_millis(50),
        ..Patience::default()
    };
    // It stands, and never says anything again.
    let (_far_in, near_out) = pipe().unwrap();
    let (near_in, mut far_out) = pipe().unwrap();
    far_out.write_all(GREETING).unwrap();
    let hello = Answer::Hello { version: "0".to_string(), dir: "/far".to_string() };
    write_message(&mut far_out, &hello, &[]).unwrap();
    let silent = Link::over_pipes("here", near_in, near_out, quick(300)).unwrap();
    let error = silent.ask(&Ask::Room {}).unwrap_err();
    assert!(error.is_cut() && error.to_string().contains("nothing was heard"), "{error}");
    // One near side has the lock and falls silent. Its far side gives it back, and the next one, which waits for that longer
    // than it would wait in silence, has it.
    let far = tempfile::tempdir().unwrap();
    let mute = Patience { beat: Duration::from_secs(3600), ..Patience::default() };
    let first = patient_link(far.path(), "/bin/false", (ALL, ALL), [mute, quick(2000)]).unwrap();
    first.have_done(&Ask::Lock {}).unwrap();
    let patient = Patience { beat: Duration::from_millis(50), ..Patience::default() };
    let second = patient_link(far.path(), "/bin/false", (ALL, ALL), [quick(700), patient]).unwrap();
    second.have_done(&Ask::Lock {}).unwrap();
    assert!(first.have_done(&Ask::Lock {}).unwrap_err().is_cut());
}

#[test]
fn what_a_program_says_last_is_never_lost() {
    let far = tempfile::tempdir().unwrap();
    let link = patient_link(far.path(), "/bin/sh", (ALL, ALL), [Patience::default(); 2]).unwrap();
    // At about the time at which somebody looks whether it goes on.
    for wait in ["0", "0.05", "0.5"] {
        for _ in 0..2 {
            let words =
                ["-c".to_string(), format!("echo first; sleep {wait}; echo -n last; echo -n talk >&2")].to_vec();
            link.tell(&Ask::Exec { words, folder: None }, &[]).unwrap();
            let mut said = [String::new(), String::new()];
            let ending = loop {
                match link.answer().unwrap() {
                    (Answer::Output { talk }, bytes) => {
                        said[usize::from(talk)].push_str(&String::from_utf8(bytes).unwrap())
                    }
                    (Answer::Exited { ending }, _) => break ending,
                    (other, _) => panic!("{other:?}"),
                }
            };
            assert_eq!((said, ending), (["first\nlast".to_string(), "talk".to_string()], Ending::Code(0)));
        }
    }
}

#[test]
fn a_far_side_that_sends_without_end_waits_on_the_wire() {
    const ALL_SENT: u64 = 64;
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let link = made_up(move |_, say| {
        for _ in 0..ALL_SENT {
            if say(&Answer::Output { talk: false }, &[0; BLOCK]) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    link.tell(&Ask::Room {}, &[]).unwrap();
    for taken in 1..ALL_SENT / 2 {
        link.answer().unwrap();
        wait_until("as much is sent as can be", || sent.load(Ordering::SeqCst) >= taken + 2);
        // Time enough for much more to come, if it could.
        (0..8).for_each(|_| _ = digest_of(&vec![7; BLOCK]));
        let waiting = sent.load(Ordering::SeqCst) - taken;
        assert!(waiting <= 5, "{waiting} MiB wait here");
    }
}

#[test]
fn what_a_far_side_makes_up_is_refused() {
    let into = tempfile::tempdir().unwrap();
    let pulled = |link: Link, exclude: &[&str]| {
        let exclude: Vec<String> = exclude.iter().map(|text| text.to_string()).collect();
        pull(&link, &FarPath::new("runs/a-1").unwrap(), &exclude, into.path(), &mut |_| {})
    };
    let listed = |path: String, length: u64| {
        let stamp = Stamp { length, seconds: 0, nanos: 0, executable: false, private: false };
        Listed { path: FarPath::new(path).unwrap(), stamp }
    };
    // A listing without an end.
    let mut count = 0u64;
    let endless = made_up(move |_, say| {
        let name = |n| [format!("{n:020}"), "x".repeat(200), "y".repeat(200)].join("/");
        let files = (count..count + 5000).map(|n| listed(name(n), 0)).collect();
        count += 5000;
        say(&Answer::Files { files, more: true }, &[]);
    });
    assert!(matches!(pulled(endless, &[]), Err(RemoteError::TooMuch { .. })));
    // Lengths whose sum is none.
    let huge = made_up(move |_, say| {
        let files = ["a", "b"].map(|name| listed(name.to_string(), 1 << 63)).to_vec();
        say(&Answer::Files { files, more: false }, &[]);
    });
    assert!(matches!(pulled(huge, &[]), Err(RemoteError::NoRoom { .. })));
    // What was left out is not written over.
    fs_err::write(into.path().join("mark"), "ours").unwrap();
    let sly = made_up(move |ask, say| {
        let file = listed("mark".to_string(), 6);
        _ = match ask {
            Ask::List { .. } => say(&Answer::Files { files: vec![file], more: false }, &[]),
            Ask::Get { .. } => say(&Answer::Block { digest: digest_of(b"theirs"), packed: false }, b"theirs"),
            _ => say(&Answer::Seen { files: vec![There { stamp: Some(file.stamp), part: 0 }] }, &[]),
        };
    });
    assert_eq!(pulled(sly, &["mark"]).unwrap().files, 0);
    assert_eq!(fs_err::read(into.path().join("mark")).unwrap(), b"ours");
    // What would move a terminal's cursor.
    let loud = made_up(move |ask, say| {
        let run = RunSeen {
            run: "a-1\n".to_string(),
            status: "\u{1b}[2Jdone".to_string(),
            step: 0,
            total_steps: 0,
            loss: None,
            eta_seconds: None,
            why: Some("\u{9b}1mbold".to_string()),
            alive: false,
            by_hand: false,
            ending: None,
            began_unix_ms: 0,
            host: None,
        };
        _ = match ask {
            Ask::Runs {} => say(&Answer::Runs { runs: vec![run] }, &[]),
            _ => say(
                &Answer::Failed { fact: "no\u{1b}]0;title\u{7}\nroom".to_string(), full: None, fault: Fault::Machine },
                &[],
            ),
        };
    });
    let Answer::Runs { runs } = loud.ask(&Ask::Runs {}).unwrap().0 else { panic!() };
    let shown = [&runs[0].run, &runs[0].status, runs[0].why.as_ref().unwrap()].map(String::as_str);
    assert_eq!(shown, ["a-1 ", "\u{fffd}[2Jdone", "\u{fffd}1mbold"]);
    let fact = loud.ask(&Ask::Room {}).unwrap_err().to_string();
    assert_eq!(fact.split_once(": ").unwrap().1, "no\u{fffd}]0;title\u{fffd}\nroom");
}

#[test]
fn a_file_that_changes_while_it_is_fetched_is_fetched_again_and_one_that_grows_is_taken_as_it_was() {
    let (near, far, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let items = fill(near.path());
    send(far.path(), &items, ALL, ALL).unwrap();
    let journal = far.path().join("in/journal.jsonl");
    fs_err::write(&journal, bytes(2 * BLOCK + 9, 5)).unwrap();
    let large = far.path().join("in/large");
    let (mut rewrites, other) = (2, bytes(5 * BLOCK + 17, 77));
    let mut told = |pulled: &Pushed| {
        // Rewritten before it is asked for, and again when its first block has come; the journal grows all the while.
        if pulled.files >= 5 && rewrites > 0 {
            rewrites -= 1;
            // At once, so that it is never shorter than it was.
            let new = far.path().join("new");
            fs_err::write(&new, if rewrites == 0 { other.clone() } else { bytes(other.len(), 55) }).unwrap();
            let date = std::time::UNIX_EPOCH + Duration::from_secs(rewrites);
            fs_err::OpenOptions::new().write(true).open(&new).unwrap().file().set_modified(date).unwrap();
            fs_err::rename(&new, &large).unwrap();
        }
        use std::io::Write as _;
        fs_err::OpenOptions::new().append(true).open(&journal).unwrap().write_all(b"{}\n").unwrap();
    };
    let link = link(far.path(), ALL, ALL).unwrap();
    pull(&link, &FarPath::new("in").unwrap(), &[], back.path(), &mut told).unwrap();
    assert_eq!(rewrites, 0);
    assert!(fs_err::read(back.path().join("large")).unwrap() == other);
    let (here, there) = (fs_err::read(back.path().join("journal.jsonl")).unwrap(), fs_err::read(&journal).unwrap());
    assert!(here.len() > 2 * BLOCK && there.starts_with(&here));
}

#[test]
fn a_folder_is_walked_once_however_many_pages_its_listing_has() {
    let far = tempfile::tempdir().unwrap();
    let folder = far.path().join("in");
    fs_err::create_dir(&folder).unwrap();
    (0..1200).for_each(|n| fs_err::write(folder.join(format!("{n:04}")), "x").unwrap());
    let link = link(far.path(), ALL, ALL).unwrap();
    let page = |after: Option<&str>| {
        let (path, after) = (FarPath::new("in").unwrap(), after.map(|after| FarPath::new(after).unwrap()));
        match link.ask(&Ask::List { path, exclude: Vec::new(), after }).unwrap().0 {
            Answer::Files { files, more } => {
                let names = [&files[0], &files[files.len() - 1]].map(|file| file.path.to_string());
                (names, files.len(), more)
            }
            other => panic!("{other:?}"),
        }
    };
    let names = |from: &str, to: &str| [from, to].map(str::to_string);
    assert_eq!(page(None), (names("0000", "0499"), 500, true));
    // Whoever walks it again finds this one.
    fs_err::write(folder.join("0777a"), "x").unwrap();
    assert_eq!(page(Some("0499")), (names("0500", "0999"), 500, true));
    assert_eq!(page(Some("0999")), (names("1000", "1199"), 200, false));
    assert_eq!(page(Some("0499")), (names("0500", "0998"), 500, true));
}

#[test]
fn a_text_longer_than_a_block_is_written_whole() {
    let far = tempfile::tempdir().unwrap();
    let link = link(far.path(), ALL, ALL).unwrap();
    let path = FarPath::new("jobs/a.toml").unwrap();
    for length in [3 * BLOCK + 1, BLOCK, 7, 2 * BLOCK] {
        let text = bytes(length, length as u64);
        plimsoll_remote::push::write(&link, &path, &text).unwrap();
        assert!(fs_err::read(path.in_folder(far.path())).unwrap() == text, "{length}");
    }
}

#[test]
fn a_start_that_is_asked_for_again_is_not_done_again_also_where_it_has_ended() {
    let far = tempfile::tempdir().unwrap();
    // Each over a connection of its own; what is started there ends at once.
    let start = |token: &str, beside: bool| {
        let link = link(far.path(), ALL, ALL).unwrap();
        link.have_done(&Ask::Lock {}).unwrap();
        let (name, words, asked) = ("a".to_string(), vec![Word::Run], digest_of(b"a"));
        let ask = Ask::Start { name, fresh: true, words, folder: None, asked, beside, token: token.to_string() };
        match link.ask(&ask).unwrap().0 {
            Answer::Started { run, already, .. } => {
                let again = link.ask(&Ask::Run { run: run.clone() }).unwrap().0;
                let Answer::Runs { runs } = again else { panic!("{again:?}") };
                assert_eq!((runs[0].alive, runs[0].ending), (false, Some(Ending::Unseen)));
                // The right to write is given back with the start.
                assert!(link.ask(&Ask::Begin { path: FarPath::new("x").unwrap(), private: false }).is_err());
                (run, already)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(start("one", false), ("a-1".to_string(), false));
    assert_eq!(start("one", false), ("a-1".to_string(), false));
    assert_eq!(start("one", true), ("a-1".to_string(), false));
    assert_eq!(start("two", false), ("a-2".to_string(), false));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The same of what is fetched.
    #[test]
    fn a_pull_that_is_cut_anywhere_leaves_whole_files_and_goes_on(
        cuts in proptest::collection::vec((60u64..4000, 0u64..9 * BLOCK as u64), 1..5)
    ) {
        let (near, far, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let items = fill(near.path());
        send(far.path(), &items, ALL, ALL).unwrap();
        let fetch = |out, come| pull(&link(far.path(), out, come)?, &FarPath::new("in").unwrap(), &[], back.path(), &mut |_| {});
        let here = |item: &Item| back.path().join(item.to.as_str().strip_prefix("in/").unwrap());
        for (out, come) in cuts {
            if let Err(error) = fetch(out, come) {
                prop_assert!(error.is_cut(), "{error}");
            }
            for item in &items {
                if let Ok(found) = fs_err::read(here(item)) {
                    prop_assert!(found == fs_err::read(&item.from).unwrap(), "{}", item.to);
                }
            }
        }
        fetch(ALL, ALL).unwrap();
        for item in &items {
            prop_assert!(fs_err::read(here(item)).unwrap() == fs_err::read(&item.from).unwrap(), "{}", item.to);
        }
    }
}

#[test]
fn blocks_that_came_before_a_cut_are_not_sent_again() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let item = Item { from: near.path().join("big"), to: FarPath::new("big").unwrap() };
    fs_err::write(&item.from, bytes(40 * BLOCK, 9)).unwrap();
    let items = [item];
    let error = send(far.path(), &items, 30 * BLOCK as u64 + BLOCK as u64 / 2, ALL).unwrap_err();
    assert!(error.is_cut(), "{error}");
    let pushed = send(far.path(), &items, ALL, ALL).unwrap();
    assert!(pushed.sent.0 <= 11 * BLOCK as u64, "{pushed:?}");
    assert_same(&items, far.path());
}
