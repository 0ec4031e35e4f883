//! What a caller is told of a round, and how it stops waiting for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_data::*;
use plimsoll_plan::batch::BatchShape;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::tempdir;

use crate::fixture::*;

const SHAPE: BatchShape = BatchShape { samples: 3, source_len: 8, target_len: 8, documents: 1 };
const ROWS: usize = 16;

/// Pairs, which are texts too: the source alone.
fn rows(dir: &Path) -> PathBuf {
    let path = dir.join("a.jsonl");
    jsonl(&path, &numbered(ROWS, 50));
    path
}

fn opened(path: &Path, kind: Kind) -> Arc<Sources> {
    let columns = Columns { source: Some("source".into()), target: None };
    Arc::new(Sources::open_kind(&[path.to_path_buf()], kind, columns).unwrap())
}

fn start(sources: Arc<Sources>, dir: &Path, ranks: Ranks) -> Loader {
    let kind = sources.kind();
    let recipe = if kind == Kind::Pairs { Recipe::pairs() } else { Recipe::text(Long::Cut, None) };
    let settings = LoaderSettings { ranks, ..settings(SHAPE, 2, 2, Cursor::default()) };
    let tokenizer = words_tokenizer(dir, 50);
    Loader::start_pass(sources, Order::new(1, true), tokenizer, recipe, settings).unwrap()
}

#[test]
fn a_batch_tells_how_many_samples_its_round_has() {
    let dir = tempdir().unwrap();
    let path = rows(dir.path());
    for kind in [Kind::Pairs, Kind::Text] {
        for rank in 0..2 {
            let mut loader = start(opened(&path, kind), dir.path(), Ranks { rank, of: 2 });
            let rounds: Vec<(usize, usize)> = take(&mut loader, SHAPE, 4)
                .iter()
                .map(|batch| (batch.facts.samples, batch.facts.round_samples))
                .collect();
            // 16 rows, 3 for each of two ranks in a round.
            let last = if rank == 0 { 3 } else { 1 };
            assert_eq!(rounds, [(3, 6), (3, 6), (last, 4), (0, 0)], "{kind:?}, rank {rank}");
        }
    }
}

#[test]
fn who_waits_for_a_batch_can_stop_waiting() {
    for kind in [Kind::Pairs, Kind::Text] {
        let dir = tempdir().unwrap();
        let path = rows(dir.path());
        let sources = opened(&path, kind);
        // Whoever reads now waits for somebody to write.
        fs_err::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut loader = start(sources, dir.path(), Ranks::ONE);
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        loader.give_up_when(Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) == 2));
        let mut owned = Owned::new(SHAPE);
        let stopped = loader.next(owned.slot()).unwrap_err();
        assert!(matches!(stopped, DataError::Stopped), "{stopped}");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        // Lets the threads go, which dropping the loader waits for.
        let writer = fs_err::OpenOptions::new().write(true).open(&path).unwrap();
        drop(loader);
        drop(writer);
    }
}
