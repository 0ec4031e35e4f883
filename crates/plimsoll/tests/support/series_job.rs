//! A random job over series: its model, its rows and its flags.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::draw::Draw;
use super::flags::Flags;
use super::job::{Budget, OPTIMIZERS};

/// Weight updates: with an evaluation and a checkpoint before the last of them, or not.
const STEPS: usize = 3;
const LARGE_STEPS: usize = 2;
const EVERY: usize = 2;
/// A step costs at most so many operations.
const MOST_FLOPS: f64 = 8e9;
/// Numbers of a large model, and of a small one at most.
const LARGE: std::ops::RangeInclusive<usize> = 6_000_000..=11_000_000;
const SMALL: usize = 400_000;
/// `data.memory` of a job whose rows do not fit it, in MiB; half of it is for rows.
const LITTLE_MIB: usize = 16;
/// Bytes of rows that are more than that half.
const FILED_BYTES: usize = 9 << 20;

/// The build that a model is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    V1,
    V2,
}

/// A job.
#[derive(Clone, Debug)]
pub struct SeriesJob {
    pub number: u64,
    pub build: Build,
    pub flat: bool,
    pub batch_norm: bool,
    pub channels: [usize; 3],
    pub hidden: usize,
    pub layers: usize,
    pub mixup: bool,
    pub features: usize,
    pub window: usize,
    pub horizon: usize,
    /// Series, and rows of each.
    pub series: usize,
    pub times: usize,
    /// The rows are in a file of the cache.
    pub filed: bool,
    pub parquet: bool,
    /// Rows say which series they are of; else all are one.
    pub by_column: bool,
    pub values: usize,
    pub batch: usize,
    pub recompute: Option<&'static str>,
    pub optimizer: &'static str,
    pub clip: bool,
    pub eval: bool,
    pub shuffle: bool,
    pub loader_threads: usize,
    pub threads: usize,
    pub budget: Budget,
    pub steps: usize,
    /// None: the last step alone is saved.
    pub save_every: Option<usize>,
}

impl SeriesJob {
    /// The job of a number; drawn again until it is affordable. Most are large, as those of texts are.
    pub fn draw(number: u64) -> SeriesJob {
        let mut draw = Draw::new(0x5e21_e500 ^ (number << 32));
        let large = !number.is_multiple_of(4);
        loop {
            let job = SeriesJob::any(number, large, &mut draw);
            let sizes = if large { LARGE } else { 0..=SMALL };
            if sizes.contains(&job.params()) && job.flops() <= MOST_FLOPS {
                return job;
            }
        }
    }

    fn any(number: u64, large: bool, draw: &mut Draw) -> SeriesJob {
        let build = if number.is_multiple_of(2) { Build::V1 } else { Build::V2 };
        let (features, window) = (draw.within(2..=24), draw.within(8..=96));
        let width = |draw: &mut Draw| if large { draw.within(24..=160) } else { draw.within(3..=24) };
        // A model that reads flat windows walks a long way.
        let (flat, filed) = (draw.once_in(3), number % 6 == 5);
        let series = draw.within(1..=4);
        let row_bytes = 4 * features + 8;
        let times = match filed {
            true => FILED_BYTES / (row_bytes * series) + 1,
            false => draw.within(300..=if large { 8000 } else { 1500 }),
        };
        let fraction = draw.within(0..=100) as f64 / 100.0;
        SeriesJob {
            number,
            build,
            flat,
            batch_norm: !draw.once_in(4),
            channels: [width(draw), width(draw), width(draw)],
            hidden: 2 * if large { draw.within(130..=256) } else { draw.within(4..=24) },
            layers: draw.within(1..=2),
            mixup: draw.once_in(3),
            features,
            window,
            horizon: draw.within(1..=5),
            series,
            times,
            filed,
            parquet: filed || draw.once_in(2),
            by_column: series > 1,
            values: draw.within(0..=2),
            batch: draw.within(4..=if large { 24 } else { 128 }),
            recompute: *draw.one_of(&[None, None, Some("all"), Some("none"), Some("1")]),
            optimizer: draw.one_of::<&str>(&OPTIMIZERS),
            clip: draw.once_in(2),
            eval: !draw.once_in(4),
            shuffle: !draw.once_in(4),
            loader_threads: draw.within(1..=2),
            threads: draw.within(1..=2),
            budget: match draw.within(0..=4) {
                0 => Budget::Machine,
                1 => Budget::Generous,
                2 => Budget::Between(0.0),
                _ => Budget::Between(fraction),
            },
            steps: if large { LARGE_STEPS } else { STEPS },
            save_every: draw.once_in(2).then_some(EVERY),
        }
    }

    /// A job whose steps need far more than its weights, so that other choices would make it fit.
    pub fn of_activations(number: u64) -> SeriesJob {
        SeriesJob {
            flat: true,
            batch_norm: true,
            channels: [64, 48, 32],
            hidden: 32,
            features: 16,
            window: 64,
            batch: 128,
            recompute: None,
            optimizer: OPTIMIZERS[0],
            clip: true,
            eval: true,
            ..SeriesJob::draw(number)
        }
    }

    /// Evaluations of the whole run: the last step is always followed by one.
    pub fn evaluations(&self) -> usize {
        if self.eval { self.steps.div_ceil(EVERY) } else { 0 }
    }

    /// Channels and steps that reach the LSTM, and what convolutions cost a sample, in products.
    fn convolved(&self) -> (usize, usize, usize) {
        let (channels, steps) = if self.flat { (1, self.window * self.features) } else { (self.features, self.window) };
        let each = self.channels.iter().zip([3, 5, 7]);
        each.fold((channels, steps, 0), |(before, steps, cost), (channels, kernel)| {
            (*channels, steps / 2, cost + steps * before * channels * kernel)
        })
    }

    /// Numbers of the LSTM.
    fn lstm_params(&self) -> usize {
        let layer = |inputs: usize| 2 * 4 * self.hidden * (inputs + self.hidden);
        (0..self.layers).map(|nth| layer(if nth == 0 { self.channels[2] } else { 2 * self.hidden })).sum()
    }

    /// Numbers of the model, about.
    fn params(&self) -> usize {
        let [a, b, c] = self.channels;
        let first = if self.flat { 1 } else { self.features };
        3 * first * a + 5 * a * b + 7 * b * c + self.lstm_params() + self.attention_params()
    }

    /// Numbers of the attention, about.
    fn attention_params(&self) -> usize {
        let width = 2 * self.hidden;
        if self.build == Build::V2 { 4 * width * width } else { 24 * width }
    }

    /// Operations of one update, about.
    fn flops(&self) -> f64 {
        let (_, steps, cost) = self.convolved();
        6.0 * (self.batch * (cost + steps * (self.lstm_params() + self.attention_params()))) as f64
    }

    /// Writes the model, the rows, and the job with and without validation.
    pub fn write(&self, dir: &Path) {
        fs_err::write(dir.join("model.toml"), self.model()).unwrap();
        for (name, eval) in [("job.toml", self.eval), (WITHOUT_VALIDATION, false)] {
            fs_err::write(dir.join(name), self.job(eval)).unwrap();
        }
        if self.parquet { self.write_parquet(&dir.join("rows.parquet")) } else { self.write_csv(&dir.join("rows.csv")) }
    }

    fn model(&self) -> String {
        let [a, b, c] = self.channels;
        let (preset, attention, hidden) = match self.build {
            Build::V1 => ("hybrid-v1", "{ kind = \"additive\", units = 24 }", "[{ width = 40, dropout = 0.3 }]"),
            Build::V2 => ("hybrid-v2", "{ kind = \"multi-head\", heads = 4, dropout = 0.1 }", "[{ width = 33 }]"),
        };
        let layout = if self.flat { "flat" } else { "channels" };
        let norm = if self.batch_norm { "batch" } else { "none" };
        let mixup = if self.mixup { "loss = { mixup = { alpha = 0.3, probability = 0.5 } }\n" } else { "" };
        let SeriesJob { hidden: width, layers, values, .. } = self;
        let values = match values {
            // What a preset has stays unless it is said: a job without values has a model of its own.
            0 => return self.plain_model(layout, norm, mixup),
            n => format!("values = {{ hidden = {hidden}, outputs = {n} }}\n"),
        };
        format!(
            "family = \"cnn-lstm\"\npreset = \"{preset}\"\nlayout = \"{layout}\"\nnorm = \"{norm}\"\n\
             conv = [{{ channels = {a}, kernel = 3 }}, {{ channels = {b}, kernel = 5 }}, {{ channels = {c}, kernel = 7 }}]\n\
             lstm = {{ hidden = {width}, layers = {layers} }}\nattention = {attention}\n\
             classes = {{ hidden = {hidden}, outputs = 3 }}\n{values}{mixup}"
        )
    }

    /// Classes alone, without a preset.
    fn plain_model(&self, layout: &str, norm: &str, mixup: &str) -> String {
        let [a, b, c] = self.channels;
        let SeriesJob { hidden, layers, build, .. } = self;
        let attention = match build {
            Build::V1 => "{ kind = \"additive\", units = 24 }",
            Build::V2 => "{ kind = \"multi-head\", heads = 4 }",
        };
        format!(
            "family = \"cnn-lstm\"\nlayout = \"{layout}\"\nnorm = \"{norm}\"\nresidual = {}\n\
             conv = [{{ channels = {a}, kernel = 3 }}, {{ channels = {b}, kernel = 5 }}, {{ channels = {c}, kernel = 7 }}]\n\
             lstm = {{ hidden = {hidden}, layers = {layers}, bidirectional = true }}\nattention = {attention}\n\
             classes = {{ name = \"classes_head\", outputs = 3 }}\n{mixup}",
            *build == Build::V2
        )
    }

    fn job(&self, eval: bool) -> String {
        let SeriesJob { window, horizon, series, times, .. } = self;
        let features: Vec<String> = (0..self.features).map(|n| format!("\"f{n}\"")).collect();
        let by = if self.by_column { "by = { column = \"symbol\" }\n" } else { "" };
        let values: Vec<String> =
            (0..self.values).map(|n| format!("{{ column = \"f{n}\", of = \"change\" }}")).collect();
        // A few windows of each series.
        let behind = 3 * (window + horizon) * series;
        let validation = match eval {
            true => format!("validation = {{ fraction = {} }}\n", behind as f64 / (times * series) as f64),
            false => String::new(),
        };
        let memory = if self.filed { format!("memory = \"{LITTLE_MIB}MiB\"\n") } else { String::new() };
        format!(
            "[model]\npath = \"model.toml\"\ninit = \"random\"\n[data]\nkind = \"series\"\ntrain = \"{}\"\n{memory}[data.series]\n\
             features = [{}]\ntime = \"time\"\n{by}window = {window}\nhorizon = {horizon}\n\
             class = {{ direction = {{ column = \"f0\", of = \"change\", flat = 0.1 }} }}\nvalues = [{}]\n{validation}",
            if self.parquet { "rows.parquet" } else { "rows.csv" },
            features.join(", "),
            values.join(", "),
        )
    }

    /// Numbers of a row, in -1 .. 1.
    fn cells(&self) -> impl FnMut() -> f64 {
        let mut draw = Draw::new(self.number + 77);
        move || draw.within(0..=1 << 20) as f64 / f64::from(1 << 19) - 1.0
    }

    fn write_csv(&self, path: &Path) {
        let mut cell = self.cells();
        let names: String = (0..self.features).map(|n| format!(",f{n}")).collect();
        let mut text = format!("time,symbol{names}\n");
        for time in 0..self.times {
            for series in 0..self.series {
                // Where all rows are one series, time goes on with each of them.
                let time = if self.by_column { time } else { time * self.series + series };
                let cells: String = (0..self.features).map(|_| format!(",{}", cell())).collect();
                text += &format!("{time},s{series}{cells}\n");
            }
        }
        fs_err::write(path, text).unwrap();
    }

    fn write_parquet(&self, path: &Path) {
        let mut cell = self.cells();
        let features: String = (0..self.features).map(|n| format!("REQUIRED DOUBLE f{n}; ")).collect();
        let schema = format!("message m {{ REQUIRED INT64 time; REQUIRED BYTE_ARRAY symbol (UTF8); {features} }}");
        let file = fs_err::File::create(path).unwrap();
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
        let rows = self.times * self.series;
        for (first, last) in [(0, rows / 2), (rows / 2, rows)] {
            let mut group = writer.next_row_group().unwrap();
            let time = |row: usize| (if self.by_column { row / self.series } else { row }) as i64;
            column::<Int64Type>(&mut group, (first..last).map(time));
            let symbol = |row: usize| ByteArray::from(format!("s{}", row % self.series).as_str());
            column::<ByteArrayType>(&mut group, (first..last).map(symbol));
            for _ in 0..self.features {
                column::<DoubleType>(&mut group, (first..last).map(|_| cell()));
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    /// The flags of `plan` and `train`, without a budget.
    pub fn flags(&self, dir: &Path) -> Flags {
        let mut flags = Flags::default();
        flags.bare(&dir.join("job.toml").display().to_string());
        flags.set("--effective-batch", self.batch);
        flags.set("--steps", self.steps);
        flags.set("--save-every", self.save_every.unwrap_or(0));
        if self.save_every.is_none() {
            flags.set("--save-minutes", 0);
        }
        flags.set("--keep", 1);
        flags.set("--optimizer", self.optimizer);
        flags.set("--threads", self.threads);
        flags.set("--loader-threads", self.loader_threads);
        self.recompute.into_iter().for_each(|recompute| flags.set("--recompute", recompute));
        if self.clip {
            flags.set("--clip-norm", 1.0);
        }
        if self.eval {
            flags.set("--eval-every", EVERY);
        }
        if !self.shuffle {
            flags.bare("--no-shuffle");
        }
        flags
    }

    /// The same flags, of a job that keeps nothing for validation.
    pub fn without_validation(dir: &Path, flags: &mut Flags) {
        flags.drop(&dir.join("job.toml").display().to_string());
        flags.drop("--eval-every");
        flags.bare(&dir.join(WITHOUT_VALIDATION).display().to_string());
    }
}

const WITHOUT_VALIDATION: &str = "job-without-validation.toml";

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, fs_err::File>,
    cells: impl Iterator<Item = <T as DataType>::T>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(&cells.collect::<Vec<_>>(), None, None).unwrap();
    column.close().unwrap();
}
