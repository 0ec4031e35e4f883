//! From what was said to what it means: flag over job file over default, then every value is judged.
//!
//! A refusal names the flag, or file, line and column, and what was expected and found. Paths have their own file beside
//! this one.

use std::collections::BTreeMap;
use std::fmt::Display;

use plimsoll_machine::Bytes;
use serde::Deserialize;
use toml::{Spanned, Value};

use super::count::Count;
use super::early_stop::{EarlyStop, EarlyStopTable, Measure};
use super::optimizer::{OptimizerTable, Wrong};
use super::paths::{Paths, is_description};
use super::read::{JobFile, explain};
use super::schedule::ScheduleTable;
use super::series::SERIES;
use super::{Job, MirrorTable, keys};
use crate::args::{Init, JobFlags, Switch};
use plimsoll_data::series::SeriesSpec;
use plimsoll_data::{Kind, LEAST_CEILING, Long, WINDOW_BLOCKS};
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::trained::TrainSpec;

use crate::render::Fail;
use crate::settings::{Mirror, Origin, Pins, RunLength, Settings, kind_named};

/// Most threads of a kind.
const THREADS: u64 = 1024;
/// Most tokens of a text.
const LONGEST: u64 = 1 << 20;
/// Places that checkpoints can be copied to.
const MIRRORS: [&str; 4] = ["s3", "gs", "az", "file"];

/// How a job uses a card.
#[derive(Clone, Copy, Debug)]
struct CardUse {
    /// Of activations.
    form: Dtype,
    /// The CPU will do where there is none.
    optional: bool,
}

/// What has been decided so far, and where from.
pub(super) struct Resolver<'a> {
    pub(super) file: Option<&'a JobFile>,
    pub(super) paths: Paths,
    pub(super) origins: BTreeMap<&'static str, Origin>,
    pub(super) places: BTreeMap<&'static str, String>,
}

/// Settings from a job file and flags.
pub fn settings(file: Option<&JobFile>, flags: &JobFlags, paths: Paths) -> Result<Settings, Fail> {
    let job = file.map(|file| file.job.clone()).unwrap_or_default();
    let mut said = Resolver { file, paths, origins: BTreeMap::new(), places: BTreeMap::new() };

    let model = said.model_folder(&job, flags)?;
    let init = said.init(&job, flags, is_description(&model))?;
    let dropout = said.pick("model.dropout", flags.dropout, job.model.dropout.clone());
    if let Some(p) = dropout.filter(|p| !(0.0..1.0).contains(p)) {
        return Err(said.refuse("model.dropout", format!("must be from 0 to less than 1, found `{p}`")));
    }

    let train = said.trained(&job, flags)?;
    if init == Init::Random && matches!(train, TrainSpec::Lora(_)) {
        let fact = "trains factors beside a base, and `model.init` = `random` has none";
        return Err(said.refuse("model.train", fact).hint("give a folder with weights, or `train = \"all\"`"));
    }
    let base = said.base(&job, flags, &train)?;
    let precision = said.precision(&job, flags)?;
    let card = said.card(&job, flags)?;
    if card.is_some_and(|card| card.form == Dtype::F16) && precision == Dtype::Bf16 {
        let refused = said.refuse("train.precision", "= `bf16` does not go with `train.compute` = `f16`");
        return Err(
            refused.hint("products read one kind of 16 bits: take `compute` = `bf16`, or leave `precision` out")
        );
    }
    let allow = said.allowed(&job)?;
    let series = said.series(&job, flags)?;
    let kind = if series.is_some() { None } else { said.kind(&job, flags)? };
    let long = said.long(&job, flags)?;
    let packed_flag = flags.packed.map(|switch| switch == Switch::On);
    let packed = said.pick("data.packed", packed_flag, job.data.packed.clone()).unwrap_or(false);
    let max_tokens = said.count("data.max_len.tokens", LONGEST, flags.max_len, job.data.max_len.tokens.clone())?;

    let mixture = said.mixture(&job, flags)?;
    let train_data = match mixture.is_empty() {
        true => said.train_files(&job, flags)?,
        false => mixture.iter().flat_map(|set| set.files.clone()).collect(),
    };
    let eval_data = said.eval_file(&job, flags)?;
    let source = said.pick("data.columns.source", flags.source.clone(), job.data.columns.source);
    let target = said.pick("data.columns.target", flags.target.clone(), job.data.columns.target);
    if let (Some(source), Some(target)) = (&source, &target)
        && source == target
    {
        return Err(said.refuse("data.columns.target", format!("is `{target}`, which is the source already")));
    }
    let max_source = said.count("data.max_len.source", LONGEST, flags.max_source, job.data.max_len.source)?;
    let max_target = said.count("data.max_len.target", LONGEST, flags.max_target, job.data.max_len.target)?;
    let shuffle_flag = if flags.shuffle { Some(true) } else { flags.no_shuffle.then_some(false) };
    let shuffle = said.pick("data.shuffle", shuffle_flag, job.data.shuffle).unwrap_or(true);
    let window = said.window(flags, job.data.window)?.unwrap_or(WINDOW_BLOCKS as u64);
    let data_memory = said.data_memory(flags, job.data.memory)?;
    let skip_oversized = match said.pick("data.oversized", flags.oversized.clone(), job.data.oversized).as_deref() {
        None | Some("refuse") => false,
        Some("skip") => true,
        Some(other) => {
            return Err(said.refuse("data.oversized", format!("must be `refuse` or `skip`, found `{other}`")));
        }
    };
    let unpack_flag = flags.unpack.map(|switch| switch == Switch::On);
    let unpack = said.pick("data.unpack", unpack_flag, job.data.unpack).unwrap_or(true);
    let cache = said.bytes("data.cache", flags.data_cache, job.data.cache)?;
    let evaluates = match &series {
        Some(series) => {
            said.no_texts()?;
            series.validation.is_some()
        }
        None => eval_data.is_some(),
    };

    let batch = said.count("train.effective_batch", 1 << 24, flags.effective_batch, job.train.effective_batch)?;
    let effective_batch = batch.unwrap_or(32);
    let length = said.length(flags, job.train.epochs, job.train.steps)?;
    let optimizer = said.optimizer(flags, job.train.optimizer, series.is_some())?;
    let schedule = said.schedule(flags, job.train.schedule)?;
    if optimizer.lr().is_none() && (schedule.name() != "constant" || schedule.warmup_steps() > 0) {
        return Err(said
            .refuse("train.schedule", format!("is `{schedule}`, but a relative step has no rate to schedule"))
            .hint("give `lr` to the optimizer, or leave out the schedule"));
    }
    if let Some(lr) = optimizer.lr().filter(|lr| schedule.least() > *lr) {
        let fact = format!("has eta_min = {}, above the optimizer's rate of {lr}", schedule.least());
        return Err(said.refuse("train.schedule", fact));
    }
    let clip_norm = said.pick("train.clip_norm", flags.clip_norm, job.train.clip_norm);
    if let Some(norm) = clip_norm.filter(|norm| !(norm.is_finite() && *norm >= 0.0)) {
        return Err(said.refuse("train.clip_norm", format!("must be a finite number of 0 or more, found `{norm}`")));
    }
    let clip_norm = clip_norm.filter(|norm| *norm > 0.0);
    let eval_every = said.pick("train.eval_every", flags.eval_every, job.train.eval_every).map(|every| every.0);
    if !evaluates && eval_every.is_some_and(|every| every > 0) {
        let hint = match &series {
            Some(_) => "give `validation` in `[data.series]`, such as `{ fraction = 0.2 }`",
            None => "give `data.eval` or `--eval FILE`",
        };
        return Err(said.refuse("train.eval_every", "needs data to evaluate on").hint(hint));
    }
    let eval_every = eval_every.unwrap_or(if evaluates { 200 } else { 0 });
    let early_stop = said.early_stop(flags, job.train.early_stop, (eval_every > 0, series.as_ref()))?;
    let save_every = said.pick("train.save_every", flags.save_every, job.train.save_every).map_or(500, |n| n.0);
    let keep = said.count("train.keep", 1 << 20, flags.keep, job.train.keep)?.unwrap_or(3);
    let number = |n: Option<Count>, default: u64| n.map_or(default, |n| n.0);
    let save_minutes = number(said.pick("train.save_minutes", flags.save_minutes, job.train.save_minutes), 15);
    let stop_within = number(said.pick("train.stop_within", flags.stop_within, job.train.stop_within), 0);
    let max_skips = said.count("train.max_skips", 1 << 20, flags.max_skips, job.train.max_skips)?.unwrap_or(5);
    let threads = said.count("train.threads", THREADS, flags.threads, job.train.threads)?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let seed = said.pick("train.seed", flags.seed, job.train.seed).map_or(1, |seed| seed.0);

    let ram = said.bytes("budget.ram", flags.ram, job.budget.ram)?;
    let vram = said.bytes("budget.vram", flags.vram, job.budget.vram)?;
    if vram.is_some() && card.is_none() {
        let hint = "give `train.device` = `cuda` or `--device cuda`";
        return Err(said.refuse("budget.vram", "needs a run on a card").hint(hint));
    }
    let disk = said.bytes("budget.disk", flags.disk, job.budget.disk)?;

    let mirror = said.mirror(flags, job.mirror)?;

    let in_backward = flags.optimizer_in_backward.map(|switch| switch == Switch::On);
    let pins = Pins {
        micro_batch: said.count("pin.micro_batch", 1 << 24, flags.micro_batch, job.pin.micro_batch)?,
        recompute: said.pick("pin.recompute", flags.recompute, job.pin.recompute),
        loss_chunk: said.count("pin.loss_chunk", 1 << 32, flags.loss_chunk, job.pin.loss_chunk)?,
        optimizer_in_backward: said.pick("pin.optimizer_in_backward", in_backward, job.pin.optimizer_in_backward),
        loader_threads: said.count("pin.loader_threads", THREADS, flags.loader_threads, job.pin.loader_threads)?,
        lstm_every: said.steps_apart(flags, job.pin.lstm_every)?,
        snapshot: said.pick("pin.snapshot", flags.snapshot.map(|switch| switch == Switch::On), job.pin.snapshot),
    };
    said.judge_pins(&pins, effective_batch)?;
    if series.is_some() {
        said.no_choices_of_texts(&train, precision, &allow, &pins)?;
    }

    Ok(Settings {
        job_file: file.map(|file| file.path.clone()),
        model,
        init,
        dropout,
        train,
        base,
        precision,
        card: card.map(|card| card.form),
        card_optional: card.is_some_and(|card| card.optional),
        allow,
        kind,
        series,
        packed,
        long,
        max_tokens,
        train_data,
        mixture,
        eval_data,
        source,
        target,
        max_source,
        max_target,
        shuffle,
        window,
        data_memory,
        skip_oversized,
        unpack,
        cache,
        effective_batch,
        length,
        optimizer,
        schedule,
        clip_norm,
        eval_every: Some(eval_every).filter(|every| *every > 0),
        early_stop,
        save_every: Some(save_every).filter(|every| *every > 0),
        save_minutes: Some(save_minutes).filter(|minutes| *minutes > 0),
        keep,
        stop_within: Some(stop_within).filter(|seconds| *seconds > 0),
        max_skips,
        threads: threads.map_or(cores, |n| n as usize),
        seed,
        ram,
        vram,
        disk,
        mirror,
        pins,
        origins: said.origins,
    })
}

impl Resolver<'_> {
    /// The value of a key, and its origin taken down.
    pub(super) fn pick<T>(&mut self, key: &'static str, flag: Option<T>, job: Option<Spanned<T>>) -> Option<T> {
        if flag.is_some() {
            self.origins.insert(key, Origin::Flag);
            return flag;
        }
        let job = job?;
        if let Some(file) = self.file {
            self.origins.insert(key, Origin::Job { file: file.name(), line: file.line(&job.span()) });
            self.places.insert(key, file.place(job.span()));
        }
        Some(job.into_inner())
    }

    /// A count from 1 to `most`. Beyond that no machine could follow, and sums of bytes could overflow.
    fn count(
        &mut self,
        key: &'static str,
        most: u64,
        flag: Option<Count>,
        job: Option<Spanned<Count>>,
    ) -> Result<Option<u64>, Fail> {
        match self.pick(key, flag, job) {
            Some(Count(0)) => Err(self.refuse(key, "must be at least 1, found `0`")),
            Some(Count(n)) if n > most => Err(self.refuse(key, format!("must be at most {most}, found `{n}`"))),
            other => Ok(other.map(|count| count.0)),
        }
    }

    /// Steps between cells of an LSTM that are kept; 0: everything is.
    fn steps_apart(&mut self, flags: &JobFlags, job: Option<Spanned<Count>>) -> Result<Option<u64>, Fail> {
        const MOST: u64 = 1 << 24;
        match self.pick("pin.lstm_every", flags.lstm_every, job) {
            Some(Count(n)) if n > MOST => {
                Err(self.refuse("pin.lstm_every", format!("must be at most {MOST}, found `{n}`")))
            }
            other => Ok(other.map(|count| count.0)),
        }
    }

    /// What the loader stays below.
    pub(super) fn data_memory(&mut self, flags: &JobFlags, job: Option<Spanned<Value>>) -> Result<Option<Bytes>, Fail> {
        let (least, memory) = (Bytes(LEAST_CEILING), self.bytes("data.memory", flags.data_memory, job)?);
        match memory {
            Some(memory) if memory < least => {
                Err(self.refuse("data.memory", format!("is {memory}, expected at least {least}")))
            }
            other => Ok(other),
        }
    }

    /// Blocks that are mixed at a time.
    pub(super) fn window(&mut self, flags: &JobFlags, job: Option<Spanned<Count>>) -> Result<Option<u64>, Fail> {
        self.count("data.window", 1 << 24, flags.window, job)
    }

    /// A refusal that says where the value was given.
    pub(super) fn refuse(&self, key: &'static str, fact: impl Display) -> Fail {
        match (self.origins.get(key), self.places.get(key)) {
            (Some(Origin::Flag), _) => Fail::usage(format!("`{}` {fact}", keys::flag(key).unwrap_or(key))),
            (Some(Origin::Job { .. }), Some(place)) => Fail::usage(format!("{place}: `{key}` {fact}")),
            _ => Fail::usage(format!("`{key}` {fact}")),
        }
    }

    /// How a card is used; none: the CPU.
    fn card(&mut self, job: &Job, flags: &JobFlags) -> Result<Option<CardUse>, Fail> {
        let device = self.pick("train.device", flags.device.clone(), job.train.device.clone());
        let compute = self.pick("train.compute", flags.compute.clone(), job.train.compute.clone());
        let (on_card, optional) = match device.as_deref() {
            None | Some("cpu") => (false, false),
            Some("cuda") => (true, false),
            Some("auto") => (true, true),
            Some(other) => {
                return Err(self.refuse("train.device", format!("must be `cpu`, `cuda` or `auto`, found `{other}`")));
            }
        };
        let form = match compute.as_deref() {
            None | Some("f32") => Dtype::F32,
            Some("bf16") if on_card => Dtype::Bf16,
            Some("f16") if on_card => Dtype::F16,
            Some(form @ ("bf16" | "f16")) => {
                let hint = "give `train.device` = `cuda` or `--device cuda`";
                return Err(self.refuse("train.compute", format!("= `{form}` needs a run on a card")).hint(hint));
            }
            Some(other) => {
                return Err(self.refuse("train.compute", format!("must be `f32`, `bf16` or `f16`, found `{other}`")));
            }
        };
        Ok(on_card.then_some(CardUse { form, optional }))
    }

    /// What a row is; none: as the model asks for.
    pub(super) fn kind(&mut self, job: &Job, flags: &JobFlags) -> Result<Option<Kind>, Fail> {
        let said = self.pick("data.kind", flags.kind.clone(), job.data.kind.clone());
        let Some(name) = said else { return Ok(None) };
        match kind_named(&name) {
            Some(kind) => Ok(Some(kind)),
            None if name == SERIES => Err(self.refuse("data.kind", "= `series` is not for this")),
            None => {
                Err(self.refuse("data.kind", format!("must be `pairs`, `chat`, `text` or `series`, found `{name}`")))
            }
        }
    }

    fn long(&mut self, job: &Job, flags: &JobFlags) -> Result<Long, Fail> {
        match self.pick("data.long", flags.long.clone(), job.data.long.clone()).as_deref() {
            None | Some("split") => Ok(Long::Split),
            Some("cut") => Ok(Long::Cut),
            Some("drop") => Ok(Long::Drop),
            Some(other) => Err(self.refuse("data.long", format!("must be `split`, `cut` or `drop`, found `{other}`"))),
        }
    }

    fn init(&mut self, job: &Job, flags: &JobFlags, described: bool) -> Result<Init, Fail> {
        let flag = flags.init.map(|init| if init == Init::Random { "random" } else { "weights" }.to_string());
        match self.pick("model.init", flag, job.model.init.clone()).as_deref() {
            None if described => Ok(Init::Random),
            Some("weights") if described => {
                Err(self.refuse("model.init", "= `weights` needs a model folder: a description has none"))
            }
            None | Some("weights") => Ok(Init::Weights),
            Some("random") => Ok(Init::Random),
            Some(other) => Err(self.refuse("model.init", format!("must be `weights` or `random`, found `{other}`"))),
        }
    }

    fn length(
        &mut self,
        flags: &JobFlags,
        epochs: Option<Spanned<Count>>,
        steps: Option<Spanned<Count>>,
    ) -> Result<RunLength, Fail> {
        if epochs.is_some() && steps.is_some() {
            self.pick("train.steps", None, steps);
            return Err(self.refuse("train.steps", "and `train.epochs` exclude each other").hint("keep one of them"));
        }
        // A flag for the one outweighs the file's other.
        let epochs = epochs.filter(|_| flags.steps.is_none());
        let steps = steps.filter(|_| flags.epochs.is_none());
        if let Some(steps) = self.count("train.steps", 1 << 48, flags.steps, steps)? {
            return Ok(RunLength::Steps(steps));
        }
        Ok(RunLength::Epochs(self.count("train.epochs", 1 << 20, flags.epochs, epochs)?.unwrap_or(3)))
    }

    fn optimizer(
        &mut self,
        flags: &JobFlags,
        job: Option<Spanned<OptimizerTable>>,
        series: bool,
    ) -> Result<plimsoll_plan::train::OptimizerSpec, Fail> {
        let flag = match flags.optimizer.as_deref() {
            Some(text) if text.trim_start().starts_with('{') => Some(inline_table("--optimizer", text)?),
            // The job's own optimizer, named again: its numbers stay.
            Some(name) if job.as_ref().is_some_and(|job| job.get_ref().name.as_deref() == Some(name)) => None,
            Some(name) => Some(OptimizerTable::named(name)),
            None => None,
        };
        let table = self.pick("train.optimizer", flag, job);
        // Models of series are small, and trained from the start with AdamW wherever they are published.
        let usual = || match series {
            true => OptimizerTable { lr: Some(1e-3), ..OptimizerTable::named("adamw") },
            false => OptimizerTable::named("adafactor"),
        };
        let mut table = table.unwrap_or_else(usual);
        if let Some(lr) = flags.lr {
            self.origins.insert("train.optimizer.lr", Origin::Flag);
            table.lr = Some(lr);
        }
        table.resolve().map_err(|wrong| self.refuse_in("train.optimizer", "train.optimizer.lr", wrong))
    }

    fn schedule(
        &mut self,
        flags: &JobFlags,
        job: Option<Spanned<ScheduleTable>>,
    ) -> Result<plimsoll_plan::train::ScheduleSpec, Fail> {
        let flag = match flags.schedule.as_deref() {
            Some(text) if text.trim_start().starts_with('{') => Some(inline_table("--schedule", text)?),
            Some(name) if job.as_ref().is_some_and(|job| job.get_ref().name.as_deref() == Some(name)) => None,
            Some(name) => Some(ScheduleTable::named(name)),
            None => None,
        };
        let mut table = self.pick("train.schedule", flag, job).unwrap_or_default();
        if flags.warmup_steps.is_some() {
            self.origins.insert("train.schedule.warmup_steps", Origin::Flag);
            table.warmup_steps = flags.warmup_steps;
        }
        table.resolve().map_err(|wrong| self.refuse_in("train.schedule", "train.schedule.warmup_steps", wrong))
    }

    /// `evaluates` has whether there are evaluations on the way, and what of series they are over.
    fn early_stop(
        &mut self,
        flags: &JobFlags,
        job: Option<Spanned<EarlyStopTable>>,
        evaluates: (bool, Option<&SeriesSpec>),
    ) -> Result<Option<EarlyStop>, Fail> {
        const KEY: &str = "train.early_stop";
        let said = job.as_ref().map(|job| job.get_ref().clone()).unwrap_or_default();
        let flag = match flags.early_stop.as_deref() {
            None => None,
            Some(text) if text.trim_start().starts_with('{') => Some(inline_table("--early-stop", text)?),
            Some(text) => match text.parse::<Count>() {
                Ok(patience) => Some(EarlyStopTable { patience: Some(patience), ..said }),
                Err(expected) => return Err(Fail::usage(format!("`--early-stop`: {expected}, found `{text}`"))),
            },
        };
        let Some(table) = self.pick(KEY, flag, job) else { return Ok(None) };
        let Some(rule) = table.resolve().map_err(|wrong| self.refuse_in(KEY, "", wrong))? else { return Ok(None) };
        let classes = evaluates.1.is_some_and(|series| series.class.is_some());
        match rule.on {
            _ if !evaluates.0 => {
                Err(self.refuse(KEY, "needs evaluations").hint("give `train.eval_every`, and data for it"))
            }
            Measure::Accuracy | Measure::MacroF1 if !classes => {
                Err(self.refuse(KEY, format!("is on the {}, which only classes of series have", rule.on)))
            }
            _ => Ok(Some(rule)),
        }
    }

    /// A refusal of a key inside `table`; `apart` is the one key of it that has a flag of its own.
    fn refuse_in(&self, table: &'static str, apart: &'static str, wrong: Wrong) -> Fail {
        let Wrong { key, fact, hint } = wrong;
        let fail = if apart.rsplit('.').next() == Some(key) && self.origins.contains_key(apart) {
            self.refuse(apart, fact)
        } else {
            match (self.origins.get(table), self.places.get(table)) {
                (Some(Origin::Flag), _) => {
                    Fail::usage(format!("`{}`: `{key}` {fact}", keys::flag(table).unwrap_or(table)))
                }
                (_, Some(place)) => Fail::usage(format!("{place}: `{table}.{key}` {fact}")),
                _ => Fail::usage(format!("`{table}.{key}` {fact}")),
            }
        };
        match hint {
            Some(hint) => fail.hint(hint),
            None => fail,
        }
    }

    fn bytes(
        &mut self,
        key: &'static str,
        flag: Option<Bytes>,
        job: Option<Spanned<Value>>,
    ) -> Result<Option<Bytes>, Fail> {
        let bytes = match flag {
            Some(bytes) => self.pick(key, Some(bytes), None),
            None => match self.pick(key, None, job) {
                None => None,
                Some(Value::Integer(n)) if n >= 0 => Some(Bytes(n as u64)),
                Some(Value::String(text)) => match text.parse() {
                    Ok(bytes) => Some(bytes),
                    Err(_) => return Err(self.refuse(key, not_bytes(&text))),
                },
                Some(other) => return Err(self.refuse(key, not_bytes(&other.to_string()))),
            },
        };
        match bytes {
            Some(Bytes(0)) => Err(self.refuse(key, "must be more than 0")),
            other => Ok(other),
        }
    }

    fn mirror(&mut self, flags: &JobFlags, job: MirrorTable) -> Result<Option<Mirror>, Fail> {
        let url = self.pick("mirror.url", flags.mirror.clone(), job.url);
        let rate = self.bytes("mirror.rate", flags.mirror_rate, job.rate)?;
        let keep = self.pick("mirror.keep", flags.mirror_keep, job.keep).map(|n| n.0).filter(|n| *n > 0);
        let Some(url) = url else {
            let alone = ["mirror.rate", "mirror.keep"].into_iter().find(|key| self.origins.contains_key(key));
            return match alone {
                Some(key) => Err(self.refuse(key, "needs a mirror").hint("give `mirror.url` or `--mirror URL`")),
                None => Ok(None),
            };
        };
        let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| MIRRORS.contains(scheme)) else {
            let known = MIRRORS.map(|scheme| format!("`{scheme}://`")).join(", ");
            return Err(self.refuse("mirror.url", format!("must begin with one of {known}, found `{url}`")));
        };
        // The job is written into the run folder, and the folder is copied to the mirror: no secret may stand in it.
        if rest.split('/').next().is_some_and(|host| host.contains('@')) || rest.contains('?') {
            return Err(self
                .refuse("mirror.url", format!("of `{scheme}` has credentials or a query in it, which are not taken"))
                .hint("give credentials by the environment or the provider's own files"));
        }
        if rest.trim_matches('/').is_empty() {
            return Err(self.refuse("mirror.url", format!("needs a bucket or folder, found `{url}`")));
        }
        Ok(Some(Mirror { url: url.trim_end_matches('/').to_string(), rate, keep }))
    }

    fn judge_pins(&self, pins: &Pins, effective_batch: u64) -> Result<(), Fail> {
        if let Some(micro) = pins.micro_batch.filter(|micro| !effective_batch.is_multiple_of(*micro)) {
            let fact = format!("must divide the effective batch of {effective_batch}, found `{micro}`");
            return Err(self.refuse("pin.micro_batch", fact));
        }
        Ok(())
    }
}

fn not_bytes(found: &str) -> String {
    format!("must be a number of bytes such as `2GiB` or `512MiB`, found `{}`", found.trim_matches('"'))
}

/// A table given in a flag.
fn inline_table<T: for<'de> Deserialize<'de>>(flag: &str, text: &str) -> Result<T, Fail> {
    #[derive(Deserialize)]
    struct Line<T> {
        v: T,
    }
    const BEFORE: &str = "v = ";
    let line: Line<T> = toml::from_str(&format!("{BEFORE}{text}")).map_err(|error| {
        explain(&error, |span| format!("`{flag}`, column {}", span.start.saturating_sub(BEFORE.len()) + 1))
    })?;
    Ok(line.v)
}

/// A value given in a flag: a table, or a bare word.
pub(super) fn inline_value(flag: &str, text: &str) -> Result<Value, Fail> {
    match text.trim_start().starts_with('{') {
        true => inline_table(flag, text),
        false => Ok(Value::String(text.to_string())),
    }
}
