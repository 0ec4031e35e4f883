//! The stream of samples: each once a pass, the same for any threads, batches and ranks, and from any place on.

use std::path::Path;
use std::sync::Arc;

use plimsoll_data::series::*;
use plimsoll_data::*;
use proptest::prelude::*;

use crate::fixture::*;

fn series(folder: &Path) -> Arc<Series> {
    let path = write(folder, "a.csv", &Table::prices(150, 3).csv());
    Arc::new(open(&path, SeriesSpec { validation: fraction(0.2, 0), ..spec() }).unwrap())
}

/// `count` samples from `cursor` on, in batches of `samples`.
fn take(
    series: &Arc<Series>,
    order: Order,
    cursor: Cursor,
    (samples, threads): (usize, usize),
    count: usize,
) -> Vec<Sample> {
    let settings = SeriesSettings { threads, cursor, ..settings(series, samples) };
    let shape = settings.shape;
    let mut loader = SeriesLoader::start(series.clone(), Part::Training, order, settings).unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let (facts, samples) = next(&mut loader, shape);
        assert_eq!(facts.cursor_after, loader.cursor());
        all.extend(samples);
    }
    all.truncate(count);
    all
}

#[test]
fn a_pass_has_each_sample_once_and_the_next_has_another_order() {
    let folder = tempfile::tempdir().unwrap();
    let series = series(folder.path());
    let pass = series.samples(Part::Training) as usize;
    let stream = take(&series, Order::new(5, true), Cursor::default(), (7, 3), 2 * pass);
    let plain = take(&series, Order::new(5, false), Cursor::default(), (4, 1), pass);
    let sorted = |samples: &[Sample]| {
        let mut list: Vec<String> = samples.iter().map(|sample| format!("{sample:?}")).collect();
        list.sort();
        list
    };
    assert_eq!(sorted(&stream[..pass]), sorted(&plain));
    assert_eq!(sorted(&stream[pass..]), sorted(&plain));
    assert!(stream[..pass] != stream[pass..] && stream[..pass] != plain[..]);
    assert_ne!(take(&series, Order::new(6, true), Cursor::default(), (7, 3), pass), stream[..pass]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_stream_is_the_same_from_any_place_on(
        samples in 1usize..9, threads in 1usize..5, start in 0u64..400, seed in any::<u64>(), shuffle in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let series = series(folder.path());
        let (order, pass) = (Order::new(seed, shuffle), series.samples(Part::Training));
        let whole = take(&series, order, Cursor::default(), (5, 2), 450);
        let rest = take(&series, order, Cursor::at(start, pass), (samples, threads), 450 - start as usize);
        prop_assert_eq!(&rest[..], &whole[start as usize..]);
    }
}

#[test]
fn a_run_that_was_ended_goes_on_at_each_batch() {
    let folder = tempfile::tempdir().unwrap();
    let series = series(folder.path());
    let order = Order::new(1, true);
    let whole = take(&series, order, Cursor::default(), (8, 2), 400);
    let (mut cursor, mut at) = (Cursor::default(), 0);
    // A new loader for each batch, as if each had been the last before a kill; the cursor goes through its text.
    while at + 8 <= whole.len() {
        let settings = SeriesSettings { cursor, ..settings(&series, 8) };
        let shape = settings.shape;
        let mut loader = SeriesLoader::start(series.clone(), Part::Training, order, settings).unwrap();
        let (facts, samples) = next(&mut loader, shape);
        assert_eq!(samples, whole[at..at + 8]);
        at += 8;
        let text = serde_json::to_string(&facts.cursor_after).unwrap();
        assert!(text.len() < 60, "{text}");
        cursor = serde_json::from_str(&text).unwrap();
    }
}

#[test]
fn ranks_have_the_stream_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let series = series(folder.path());
    let order = Order::new(3, true);
    let whole = take(&series, order, Cursor::default(), (5, 2), 180);
    for of in 1..4 {
        let limit = 173;
        let mut loaders: Vec<SeriesLoader> = (0..of)
            .map(|rank| {
                let ranks = Ranks { rank, of };
                let settings = SeriesSettings { ranks, limit: Some(limit), ..settings(&series, 5) };
                SeriesLoader::start(series.clone(), Part::Training, order, settings).unwrap()
            })
            .collect();
        let mut dealt = Vec::new();
        loop {
            let round: Vec<_> = loaders.iter_mut().map(|loader| next(loader, series.shape(5))).collect();
            let together: usize = round.iter().map(|(facts, _)| facts.samples).sum();
            assert!(round.iter().all(|(facts, _)| facts.round_samples == together));
            if together == 0 {
                break;
            }
            dealt.extend(round.into_iter().flat_map(|(_, samples)| samples));
            let place = Cursor::at(dealt.len() as u64, series.samples(Part::Training));
            assert!(loaders.iter().all(|loader| loader.cursor() == place));
        }
        assert_eq!(dealt, whole[..limit as usize]);
    }
}

#[test]
fn a_smaller_batch_leaves_nothing_behind_and_a_pass_ends() {
    let folder = tempfile::tempdir().unwrap();
    let series = series(folder.path());
    let pass = series.samples(Part::Validation) as usize;
    let settings = settings(&series, pass + 3);
    let shape = settings.shape;
    let mut loader =
        SeriesLoader::start_pass(series.clone(), Part::Validation, Order::new(0, false), settings).unwrap();
    let mut inputs = vec![7.0; shape.samples * shape.window * shape.features];
    let (mut classes, mut values) = (vec![7; shape.samples], vec![7.0; shape.samples]);
    let slot =
        plimsoll_plan::series_batch::SeriesSlot { inputs: &mut inputs, classes: &mut classes, values: &mut values };
    let facts = loader.next(slot).unwrap();
    assert_eq!((facts.samples, facts.classes, facts.values), (pass, pass, pass));
    assert!(classes[pass..].iter().all(|class| *class == plimsoll_plan::batch::IGNORE));
    assert!(values[pass..].iter().all(|value| value.is_nan()));
    assert!(inputs[pass * shape.window * shape.features..].iter().all(|input| *input == 0.0));
    let (facts, _) = next(&mut loader, shape);
    assert_eq!((facts.samples, facts.cursor_after), (0, Cursor { epoch: 1, ..Cursor::default() }));
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let series = series(folder.path());
    let plain = settings(&series, 4);
    let start = |settings: SeriesSettings| {
        let order = Order::new(0, false);
        SeriesLoader::start(series.clone(), Part::Training, order, settings).err().map(|error| error.to_string())
    };
    assert_eq!(start(plain.clone()), None);
    let shape = plain.shape;
    for (settings, named) in [
        (SeriesSettings { threads: 0, ..plain.clone() }, "`threads`"),
        (SeriesSettings { prefetch_batches: 0, ..plain.clone() }, "`prefetch_batches`"),
        (SeriesSettings { ranks: Ranks { rank: 2, of: 2 }, ..plain.clone() }, "`rank`"),
        (
            SeriesSettings { cursor: Cursor { position: 1 << 40, ..Cursor::default() }, ..plain.clone() },
            "`cursor.position`",
        ),
        (SeriesSettings { shape: series.shape(0), ..plain.clone() }, "`samples`"),
    ] {
        assert!(start(settings).unwrap().contains(named), "{named}");
    }
    for (shape, named) in [
        (plimsoll_plan::series_batch::SeriesShape { window: 5, ..shape }, "`window`"),
        (plimsoll_plan::series_batch::SeriesShape { features: 1, ..shape }, "`features`"),
        (plimsoll_plan::series_batch::SeriesShape { values: 0, ..shape }, "`values`"),
    ] {
        assert!(start(SeriesSettings { shape, ..plain.clone() }).unwrap().contains(named), "{named}");
    }
    let mut loader = SeriesLoader::start(series.clone(), Part::Training, Order::new(0, false), plain).unwrap();
    let slot =
        plimsoll_plan::series_batch::SeriesSlot { inputs: &mut [0.0; 31], classes: &mut [0; 4], values: &mut [0.0; 4] };
    assert!(loader.next(slot).unwrap_err().to_string().contains("`inputs` holds 31 entries, expected at least 32"));
}
