//! Pages of files that stay in memory behind a loader: hardly any, where they may not.
#![allow(missing_docs, clippy::print_stdout)]

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::*;
use plimsoll_plan::batch::{BatchShape, BatchSlot};
use tempfile::tempdir;

const ROWS: usize = 40_000;

/// Bytes of a file that the kernel holds in memory.
fn resident(path: &Path) -> usize {
    let file = fs_err::File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    // SAFETY: a mapping of an open file, for reading, at an address that the kernel chooses.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.file().as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    let mut pages = vec![0u8; bytes.div_ceil(4096)];
    // SAFETY: the mapping is `bytes` long, and there is a byte for each of its pages.
    let seen = unsafe { libc::mincore(at, bytes, pages.as_mut_ptr()) };
    assert_eq!(seen, 0);
    // SAFETY: the mapping from above, which nobody looks into.
    unsafe { libc::munmap(at, bytes) };
    4096 * pages.iter().filter(|page| **page & 1 != 0).count()
}

/// Whether kernel and file system have reads that leave no pages.
fn leaves_no_pages(path: &Path) -> bool {
    let (file, mut byte) = (fs_err::File::open(path).unwrap(), [0]);
    let dontcache = rustix::io::ReadWriteFlags::from_bits_retain(0x80);
    rustix::io::preadv2(file.file(), &mut [std::io::IoSliceMut::new(&mut byte)], 0, dontcache).is_ok()
}

/// Rows of about a kilobyte, in files that the disk has.
fn write(dir: &Path) -> Vec<PathBuf> {
    let line = |i: usize| format!("{{\"text\": \"{}w{}\"}}\n", "w1 ".repeat(300), i % 9);
    let files = [0, 1].map(|half| {
        let path = dir.join(format!("{half}.jsonl"));
        fs_err::write(&path, (0..ROWS / 2).map(line).collect::<String>()).unwrap();
        fs_err::File::open(&path).unwrap().sync_all().unwrap();
        path
    });
    files.to_vec()
}

fn tokenizer(dir: &Path) -> Arc<TextTokenizer> {
    let words: Vec<String> = (0..9).map(|n| format!("\"w{n}\":{}", n + 2)).collect();
    let text = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{{"type":"WhitespaceSplit"}},"post_processor":null,"decoder":null,
        "model":{{"type":"WordLevel","vocab":{{"<pad>":0,"</s>":1,{}}},"unk_token":"w0"}}}}"#,
        words.join(",")
    );
    let path = dir.join("tokenizer.json");
    fs_err::write(&path, text).unwrap();
    Arc::new(TextTokenizer::load(&path, 11, 1, 0).unwrap())
}

/// The most that stayed, looked at after opening and while a pass is loaded.
fn most_resident(paths: &[PathBuf], tokenizer: &Arc<TextTokenizer>, cached: u64) -> (usize, usize) {
    let now = || paths.iter().map(|path| resident(path)).sum::<usize>();
    let opening = Opening { cached, ..Opening::default() };
    let sources = Arc::new(Sources::open_with(paths, Kind::Text, Columns::default(), opening).unwrap());
    let opened = now();
    let shape = BatchShape { samples: 64, source_len: 16, target_len: 16, documents: 1 };
    let settings = LoaderSettings {
        shape,
        effective_batch: 64,
        threads: 2,
        prefetch_batches: 4,
        cursor: Cursor::default(),
        limit: Some(ROWS as u64),
        ranks: Ranks::ONE,
        on_thread_start: None,
    };
    let recipe = Recipe::text(Long::Cut, None);
    let mut loader = Loader::start(sources, Order::new(1, true), tokenizer.clone(), recipe, settings).unwrap();
    let (mut source, mut target) = (vec![0; 64 * 16], vec![0; 64 * 16]);
    let (mut source_lens, mut target_lens) = (vec![0; 64], vec![0; 64]);
    let (mut most, mut batches) = (0, 0);
    loop {
        let slot = BatchSlot {
            source: &mut source,
            target: &mut target,
            source_lens: &mut source_lens,
            target_lens: &mut target_lens,
        };
        if loader.next(slot).unwrap().samples == 0 {
            return (opened, most);
        }
        batches += 1;
        if batches % 25 == 0 {
            most = most.max(now());
        }
    }
}

#[test]
fn files_larger_than_may_stay_leave_hardly_any_pages() {
    let dir = tempdir().unwrap();
    let (paths, tokenizer) = (write(dir.path()), tokenizer(dir.path()));
    let all: usize = paths.iter().map(|path| fs_err::metadata(path).unwrap().len() as usize).sum();
    let (opened, kept) = most_resident(&paths, &tokenizer, u64::MAX);
    assert!(opened.min(kept) > all / 2, "of {all} bytes {opened} and {kept} were kept where all may stay");
    let (opened, kept) = most_resident(&paths, &tokenizer, 0);
    println!("{all} bytes: {opened} stay behind opening, at most {kept} while a pass is loaded");
    if opened == all && kept == all {
        println!("skipped: the file system of {} keeps its pages", dir.path().display());
        return;
    }
    // What is read between two times that pages are let go.
    assert!(opened <= 1 << 20 && kept <= 18 << 20, "{opened}, {kept} of {all}");
    if leaves_no_pages(&paths[0]) {
        assert!(kept <= 1 << 20, "{kept} of {all}, though reads can leave none");
    } else {
        println!("skipped: no RWF_DONTCACHE for {}", dir.path().display());
    }
}
