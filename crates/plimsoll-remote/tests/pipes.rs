//! Both sides over two pipes, in one process: what arrives, what is sent, and what is left when a pipe breaks anywhere.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_remote::pull::pull;
use plimsoll_remote::push::{Care, Item, Pushed, push};
use plimsoll_remote::serve::{Deeds, Progress, serve};
use plimsoll_remote::wire::{Answer, Ask, BLOCK, Ending, Stamp, Word};
use plimsoll_remote::{FarPath, Link, RemoteError, digest_of};
use proptest::prelude::*;

struct NoRuns;

impl Deeds for NoRuns {
    fn look(&self, _run: &Path) -> Option<Progress> {
        None
    }

    fn resolve(&self, _job: &Path) -> Result<String, String> {
        Err("there are no jobs here".to_string())
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
    let (far_in, near_out) = pipe().unwrap();
    let (near_in, far_out) = pipe().unwrap();
    let dir = dir.to_path_buf();
    std::thread::spawn(move || serve(&dir, Path::new("/bin/false"), far_in, far_out, &NoRuns));
    let left = |n: u64| Arc::new(AtomicU64::new(n));
    Link::over_pipes("here", Brittle { inner: near_in, left: left(back) }, Brittle { inner: near_out, left: left(out) })
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
    let stamp = Stamp { length: 1, seconds: 0, nanos: 0, executable: false };
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
                assert!(link.ask(&Ask::Begin { path: FarPath::new("x").unwrap() }).is_err());
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
