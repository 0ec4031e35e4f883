//! Series of files, opened: every row was looked at, the cut was found, the training part was measured, and all rows are stored normalised.
//!
//! Three passes over the files: which series there are and where the cut is; mean and spread of what is before it; and the rows
//! themselves. Invariant: nothing behind the cut has a part in what features are normalised by; passes that differ are an error. A file of
//! rows that an earlier run left takes the place of all three.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_err::File;
use plimsoll_plan::batch::IGNORE;
use serde::{Deserialize, Serialize};

use super::cut::Times;
use super::error::SeriesError;
use super::file_of_rows::{self, RowsWriter};
use super::files::{self, SeriesFile};
use super::fit::{Applying, Fitting};
use super::names::name_bytes;
use super::scale::{Normalisation, Scale, Spread};
use super::spec::{ClassTarget, Normalise, SeriesBy, SeriesSpec};
use super::store::{RowShape, Store, StoreWriter};
use super::target::Targets;
use super::time::TimeForm;
use super::walk::{Row, Seen, Walk, file_names, names_share, series_bytes};
use super::windows::{Part, Samples, Stretch, Windows, check_leak, check_samples};
use super::{Series, SeriesFacts};
use crate::page_cache::Pages;
use crate::{DataError, Elsewhere, LOADER_CEILING};

/// How files of series are opened.
#[derive(Clone, Copy, Debug)]
pub struct SeriesOpening<'a> {
    /// Where a file of rows is kept, where they do not fit, and parts of files that lie elsewhere.
    pub folder: Option<&'a Path>,
    /// One ceiling for all that is held (`data.memory`); half of it is for the rows.
    pub memory: u64,
    /// Bytes of files that the kernel may keep in memory for us.
    pub cached: u64,
    /// How files that lie elsewhere are read.
    pub elsewhere: Option<Elsewhere<'a>>,
    /// What features are normalised by; none: it is fitted on the training part of these files.
    pub normalisation: Option<&'a Normalisation>,
}

impl Default for SeriesOpening<'_> {
    fn default() -> Self {
        let (memory, cached) = (LOADER_CEILING, u64::MAX);
        SeriesOpening { folder: None, memory, cached, elsewhere: None, normalisation: None }
    }
}

/// What is known of rows beside themselves; the description of a file of them. Nothing of it follows from how windows lie and what of a
/// column is foretold: jobs that differ in that alone share the file.
#[derive(Serialize, Deserialize)]
struct Known {
    stretches: Vec<Stretch>,
    /// What they are normalised by; in a file without single series where that was given.
    normalisation: Normalisation,
    cut: Option<i64>,
    form: TimeForm,
    digest: u64,
}

impl Series {
    /// Finds the files of `patterns` (paths, URLs or globs, in the order given, each glob sorted) and reads them.
    pub fn open(patterns: &[PathBuf], spec: SeriesSpec, opening: SeriesOpening<'_>) -> Result<Series, DataError> {
        spec.check()?;
        if let Some(normalisation) = opening.normalisation {
            normalisation.check(&spec)?;
        }
        let mut files = files::find(patterns, opening.folder, opening.elsewhere)?;
        let stored: u64 = files.iter().map(|file| file.origin.bytes()).sum();
        let remote = files.iter().filter(|file| file.origin.is_remote()).map(|file| file.origin.bytes()).sum();
        let pages = if stored > opening.cached { Pages::Go } else { Pages::Stay };
        files.iter_mut().for_each(|file| file.origin.keep(pages));
        let shape = RowShape { features: spec.features.len(), cells: spec.cells().len() };

        let place =
            opening.folder.map(|folder| name(&files, &spec, &opening).map(|name| (folder, name))).transpose()?;
        let place = place.map(|(folder, name)| (folder, file_of_rows::place(folder, &name)));
        let kept = place.as_ref().and_then(|(_, path)| Series::found(path, &spec, shape, opening.memory / 2));
        let (known, store) = match kept {
            Some((file, rows, mut known)) => {
                if let Some(given) = opening.normalisation {
                    known.normalisation.series = given.series.clone();
                }
                let filed = Store::filed(shape, rows, file, pages_of(shape, rows, opening.cached));
                let fits = shape.bytes(rows).is_some_and(|bytes| bytes <= opening.memory / 2);
                (known, if fits { filed.into_held(rows)? } else { filed })
            }
            None => Series::read(&files, &spec, opening, shape, place)?,
        };
        let mut series = Series::whole(spec, known, opening.normalisation, shape, store)?;
        series.facts.remote_bytes = remote;
        Ok(series)
    }

    /// Rows that an earlier run left, and what is known of them, where opening has room for that. An earlier run with more memory may
    /// have found more series.
    fn found(path: &Path, spec: &SeriesSpec, shape: RowShape, memory: u64) -> Option<(File, u64, Known)> {
        let (file, rows, description) = file_of_rows::find(path, shape, memory / 2)?;
        let known: Known = serde_json::from_slice(&description).ok()?;
        let each = |stretch: &Stretch| name_bytes(&stretch.name, series_bytes(spec));
        let room = known.stretches.iter().map(each).sum::<u64>() <= names_share(memory);
        let all: u64 = known.stretches.iter().map(|stretch| stretch.rows).sum();
        let whole = all == rows && known.stretches.iter().all(|stretch| stretch.before <= stretch.rows);
        (room && whole).then_some((file, rows, known))
    }

    fn read(
        files: &[SeriesFile],
        spec: &SeriesSpec,
        opening: SeriesOpening<'_>,
        shape: RowShape,
        place: Option<(&Path, PathBuf)>,
    ) -> Result<(Known, Store), DataError> {
        let mut walk = Walk::new(files, spec, opening.memory / 2);
        let fits = opening.normalisation.is_none() && Fitting::is_needed(spec);
        let mut fitting = Fitting::of(spec);

        // Which series there are, and where the cut is; where that is known before, the first pass measures too.
        let asked = spec.validation.as_ref();
        let fraction = asked.and_then(|validation| validation.fraction);
        let from = asked.and_then(|validation| validation.from.as_ref()).and_then(|from| from.as_time());
        let known = fraction.is_none();
        let mut times = fraction.map(|_| Times::new());
        let before = |time: i64, cut: Option<i64>| cut.is_none_or(|cut| time < cut);
        let given = from.map(|(_, time)| time);
        let seen = walk.pass(&mut |row| {
            if let Some(times) = &mut times {
                times.add(row.time);
            }
            if fits && known && before(row.time, given) {
                fitting.add(row.series, row.features);
            }
            Ok(())
        })?;
        walk.names.close();
        if let (Some((form, _)), Some(found)) = (from, seen.form)
            && form != found
        {
            let (found, expected) = (form.name().into(), format!("{}, as the column of times has", found.name()));
            return Err(SeriesError::BadSpec { key: "validation.from".into(), found, expected }.into());
        }
        let cut = times.and_then(|times| times.cut(fraction.unwrap_or_default())).or(given);

        // What is before the cut.
        if fits && !known {
            let again = walk.pass(&mut |row| {
                if before(row.time, cut) {
                    fitting.add(row.series, row.features);
                }
                Ok(())
            })?;
            walk.same(&seen, &again)?;
        }
        let names = walk.names.list();
        let texts: Vec<&str> = names.iter().map(|name| &**name).collect();
        let normalisation = match opening.normalisation {
            Some(given) => given.clone(),
            None => fitting.finish(spec, &texts)?,
        };

        // The rows.
        let bytes =
            shape.bytes(seen.rows).ok_or(SeriesError::TooLarge { bytes: u64::MAX, share: opening.memory / 2 })?;
        let share = opening.memory / 2;
        let writer = match place {
            _ if bytes <= share => StoreWriter::held(shape, seen.rows),
            Some((folder, place)) => StoreWriter::Filed(Box::new(RowsWriter::start(folder, place, shape, seen.rows)?)),
            None => return Err(SeriesError::TooLarge { bytes, share }.into()),
        };
        let (stretches, writer) = put_rows(&mut walk, &seen, cut, (&normalisation, &texts), writer)?;
        drop(walk);
        let form = seen.form.unwrap_or(TimeForm::Number);
        let mut known = Known { stretches, normalisation, cut, form, digest: seen.digest };
        let store = match writer {
            StoreWriter::Held { features, cells, .. } => Store::held(shape, features, cells),
            StoreWriter::Filed(writer) => {
                // What was given is at hand for whoever has a use for the file; it may know thousands of series more than these.
                let own = opening.normalisation.map(|_| std::mem::take(&mut known.normalisation.series));
                let description = serde_json::to_vec(&known).map_err(io::Error::from)?;
                known.normalisation.series = own.unwrap_or(known.normalisation.series);
                let file = writer.finish(&description)?;
                Store::filed(shape, seen.rows, file, pages_of(shape, seen.rows, opening.cached))
            }
        };
        Ok((known, store))
    }

    /// Counts the samples, checks that the parts have some and share nothing, and measures what is to be foretold.
    fn whole(
        spec: SeriesSpec,
        known: Known,
        given: Option<&Normalisation>,
        shape: RowShape,
        store: Store,
    ) -> Result<Series, DataError> {
        let Known { stretches, mut normalisation, cut, form, digest } = known;
        // What of it says something of targets and of earlier trainings is no matter of rows.
        normalisation.values = spec.values.clone();
        normalisation.value_scales = given.map_or_else(Vec::new, |given| given.value_scales.clone());
        (normalisation.until, normalisation.instants) =
            given.map_or((None, false), |given| (given.until, given.instants));
        let latest = stretches.iter().filter_map(|stretch| stretch.latest).max().filter(|_| spec.time.is_some());
        let instants = form == TimeForm::Instant;
        normalisation.trained_until(latest, instants);
        let validation = spec.validation.as_ref();
        let (windows, gap) = (Windows::of(&spec), validation.map_or(0, |validation| validation.gap as u64));
        let parts = [Part::Training, Part::Validation].map(|part| Samples::new(part, &stretches, windows, gap));
        check_samples(Part::Training, &parts[0], &stretches, validation)?;
        if validation.is_some() {
            check_samples(Part::Validation, &parts[1], &stretches, validation)?;
            check_leak(&parts[0], &parts[1], &stretches, form)?;
        }
        let rows = stretches.iter().map(|stretch| stretch.rows).sum();
        let facts = SeriesFacts {
            rows,
            series: stretches.len() as u64,
            features: shape.features,
            values: spec.values.len(),
            classes: spec.class.as_ref().map(|class| class.classes()),
            training_samples: parts[0].count(),
            validation_samples: parts[1].count(),
            cut,
            latest,
            instants,
            row_bytes: shape.bytes(rows).unwrap_or(0),
            held: store.is_held(),
            remote_bytes: 0,
            digest,
            normalised: 0,
            unknown_series: 0,
        };
        let mut targets = Targets::of(&spec);
        if spec.scale_values {
            targets.scales = normalisation.value_scales.clone().into();
        }
        let fits_values = given.is_none() && spec.scale_values && !spec.values.is_empty();
        let mut series = Series { spec, stretches: stretches.into(), normalisation, store, parts, targets, facts };
        series.check_known()?;
        if fits_values {
            let scales = series.measured_values()?;
            series.targets.scales = scales.clone().into();
            series.normalisation.value_scales = scales;
        }
        let own = series.normalisation.own(series.stretches.iter().map(|stretch| &*stretch.name));
        series.facts.normalised = series.normalisation.digest(series.spec.missing, &own);
        if series.normalisation.over == Normalise::Series {
            series.facts.unknown_series = own.iter().filter(|own| own.is_none()).count() as u64;
        }
        Ok(series)
    }

    /// Refuses a part in which a column says nothing of what is to be foretold: nothing could be learnt of it, and a loss of nothing would
    /// pass for the best there is. Looks at windows until each has been known once.
    fn check_known(&self) -> Result<(), DataError> {
        let mut cells = self.scratch();
        for part in [Part::Training, Part::Validation] {
            let (mut class, mut values) = (self.spec.class.is_none(), vec![false; self.spec.values.len()]);
            for number in 0..self.samples(part) {
                self.read_cells(part, number, &mut cells)?;
                class |= self.targets.class(&cells.now, &cells.then) != IGNORE;
                for (which, known) in values.iter_mut().enumerate() {
                    *known |= !self.targets.value(which, &cells.now, &cells.then).is_nan();
                }
                if class && values.iter().all(|known| *known) {
                    break;
                }
            }
            let of_class = self.spec.class.as_ref().filter(|_| !class).map(|class| ("its class", class.column()));
            let of_value =
                values.iter().position(|known| !known).map(|which| ("its value", &*self.spec.values[which].column));
            if let (Some((what, column)), samples @ 1..) = (of_class.or(of_value), self.samples(part)) {
                let part = part.of_which(self.spec.validation.is_some());
                return Err(SeriesError::NothingKnown { part, what, column: column.into(), samples }.into());
            }
        }
        Ok(())
    }

    /// Mean and spread of what the training part has to foretell.
    fn measured_values(&self) -> Result<Vec<Scale>, DataError> {
        let mut spreads = vec![Spread::default(); self.targets.values()];
        self.each_sample(Part::Training, &mut |now, then| {
            for (which, spread) in spreads.iter_mut().enumerate() {
                let value = self.targets.value(which, now, then);
                if !value.is_nan() {
                    spread.add(value);
                }
            }
        })?;
        let scale = |(which, spread): (usize, &Spread)| {
            let column = || self.spec.values[which].column.clone();
            spread.scale().ok_or_else(|| SeriesError::NoSpread { column: column() }.into())
        };
        spreads.iter().enumerate().map(scale).collect()
    }
}

fn pages_of(shape: RowShape, rows: u64, cached: u64) -> Pages {
    if shape.bytes(rows).is_some_and(|bytes| bytes > cached) { Pages::Go } else { Pages::Stay }
}

/// Hashes what is written, and keeps nothing of it.
struct Hashed<'a>(&'a mut DefaultHasher);

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A name for the rows of these files as they are now, by what of this spec they follow from.
fn name(files: &[SeriesFile], spec: &SeriesSpec, opening: &SeriesOpening<'_>) -> Result<String, DataError> {
    let (mut paths, mut versions) = (DefaultHasher::new(), DefaultHasher::new());
    let SeriesSpec { features, time, by, missing, normalise, validation, .. } = spec;
    // Rows are looked at for classes that there are.
    let classes = spec.class.as_ref().map_or(0, |class| match class {
        ClassTarget::Column { classes, .. } => *classes,
        ClassTarget::Direction { .. } | ClassTarget::Thresholds { .. } => 0,
    });
    let cut = validation.as_ref().map(|validation| (&validation.fraction, &validation.from));
    let given = opening.normalisation.map(|Normalisation { over, means, all, series, .. }| (over, means, all, series));
    let called = if *by == SeriesBy::File { file_names(files) } else { Vec::new() };
    let rows = (features, time, by, called, spec.cells(), classes, missing, normalise, cut, given);
    serde_json::to_writer(Hashed(&mut paths), &rows).map_err(io::Error::from)?;
    for file in files {
        let name = file.origin.name()?;
        name.split_once('-').map(|(path, _)| path).hash(&mut paths);
        name.hash(&mut versions);
    }
    Ok(format!("{:016x}-{:016x}", paths.finish(), versions.finish()))
}

/// The pass that stores the rows; each series in one piece, in the order of their numbers.
fn put_rows(
    walk: &mut Walk<'_>,
    seen: &Seen,
    cut: Option<i64>,
    (normalisation, names): (&Normalisation, &[&str]),
    mut writer: StoreWriter,
) -> Result<(Vec<Stretch>, StoreWriter), DataError> {
    let mut begins = Vec::with_capacity(seen.tracks.len());
    let mut stretches = Vec::with_capacity(seen.tracks.len());
    let mut rows = 0;
    for (track, name) in seen.tracks.iter().zip(names) {
        begins.push(rows);
        rows += track.rows;
        let (name, rows) = ((*name).into(), track.rows);
        stretches.push(Stretch { name, rows, before: 0, first: None, latest: None, earliest: None });
    }
    let applying = Applying::new(normalisation, names);
    let mut features = vec![0.0; normalisation.features.len()];
    let timed = walk.spec.time.is_some() || cut.is_some();
    let mut visit = |row: Row<'_>| {
        let changed = || DataError::Changed {
            path: row.file.origin.path().into(),
            place: row.place(),
            expected: "as many rows of each series as before".into(),
            found: "more".into(),
        };
        let stretch = stretches.get_mut(row.series).filter(|stretch| row.number < stretch.rows).ok_or_else(changed)?;
        if row.number == 0 {
            stretch.first = timed.then_some(row.time);
        }
        if cut.is_none_or(|cut| row.time < cut) {
            stretch.before = row.number + 1;
            stretch.latest = timed.then_some(row.time);
        } else if row.number == stretch.before {
            stretch.earliest = timed.then_some(row.time);
        }
        if let Some(which) = applying.row(row.series, row.features, &mut features) {
            return Err(SeriesError::BadCell {
                path: row.file.origin.path().into(),
                place: row.place(),
                column: normalisation.features[which].clone(),
                expected: "a number that single precision has room for when it is normalised".into(),
                found: format!("{:?}", row.features[which]),
            }
            .into());
        }
        writer.put(begins[row.series] + row.number, &features, row.cells)
    };
    let again = walk.pass(&mut visit)?;
    walk.same(seen, &again)?;
    Ok((stretches, writer))
}
