//! Changes of the result that the user allows, as an ordered list of jobs: tried one after the other where nothing with the
//! same result fits.

use crate::dtype::Dtype;
use crate::program::{Allow, Job};
use crate::train::OptimizerSpec;
use crate::trained::TrainSpec;

/// How the rung begins that holds frozen weights in fewer bits.
const QUANTISED: &str = "frozen weights of blocks in";
/// How the rung begins that trains LoRA's factors alone.
const ADAPTED: &str = "LoRA of rank";

/// A job that was changed, and by what, in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What was changed.
    pub rungs: Vec<String>,
    /// The job with it.
    pub job: Job,
}

impl Variant {
    fn and(&self, change: Option<(String, Job)>) -> Option<Variant> {
        let (word, job) = change?;
        Some(Variant { rungs: self.rungs.iter().cloned().chain([word]).collect(), job })
    }

    fn eight_bits(&self) -> Option<Variant> {
        let OptimizerSpec::AdamW { lr, betas, eps, weight_decay } = self.job.optimizer else { return None };
        let optimizer = OptimizerSpec::AdamW8bit { lr, betas, eps, weight_decay };
        let job = Job { optimizer, ..self.job.clone() };
        self.and(self.job.allow.adamw8bit.then(|| ("AdamW's moments in 8 bits".into(), job)))
    }

    fn bf16(&self) -> Option<Variant> {
        // Products read one kind of 16 bits.
        let in_f16 = self.job.device.cuda().is_some_and(|form| form.activations == Dtype::F16);
        let full = self.job.storage.trained == Dtype::F32 && !matches!(self.job.train, TrainSpec::Lora(_)) && !in_f16;
        let mut job = self.job.clone();
        job.storage.trained = Dtype::Bf16;
        let allowed = self.job.allow.bf16_weights && full;
        self.and(allowed.then(|| ("weights in bf16 with stochastic rounding".into(), job)))
    }

    fn lora(&self) -> Option<Variant> {
        let spec = self.job.allow.lora.clone().filter(|_| !matches!(self.job.train, TrainSpec::Lora(_)))?;
        let word = format!("{ADAPTED} {} in place of training every weight", spec.r);
        let mut job = Job { train: TrainSpec::Lora(spec), ..self.job.clone() };
        job.storage.trained = Dtype::F32;
        self.and(Some((word, job)))
    }

    fn quantised(&self) -> Option<Variant> {
        let lora = matches!(self.job.train, TrainSpec::Lora(_)) && self.job.storage.quantised.is_none();
        let dtype = self.job.allow.quantise.filter(|_| lora)?;
        let name = match dtype {
            Dtype::Nf4 => "4 bits (NF4)",
            _ => "8 bits",
        };
        let mut job = self.job.clone();
        job.storage.quantised = Some(dtype);
        self.and(Some((format!("{QUANTISED} {name}"), job)))
    }

    fn shorter(&self, len: usize) -> Option<Variant> {
        let (source_len, target_len) = (self.job.source_len.min(len), self.job.target_len.min(len));
        let changed = (source_len, target_len) != (self.job.source_len, self.job.target_len);
        let job = Job { source_len, target_len, ..self.job.clone() };
        self.and(changed.then(|| (format!("samples of at most {len} tokens"), job)))
    }

    /// What leaves the lengths as they are, the mildest first.
    fn at_this_length(&self) -> Vec<Variant> {
        let (eight, bf16) = (self.eight_bits(), self.bf16());
        let both = eight.as_ref().and_then(Variant::bf16);
        let lora = self.lora();
        let small = lora.as_ref().and_then(Variant::quantised);
        [eight, bf16, both, self.quantised(), lora, small].into_iter().flatten().collect()
    }
}

/// The changed jobs that a job allows, in the order in which they are tried.
pub fn variants(job: &Job) -> Vec<Variant> {
    if job.allow == Allow::default() {
        return Vec::new();
    }
    let same = Variant { rungs: Vec::new(), job: job.clone() };
    let mut list = same.at_this_length();
    let least = job.allow.shorter.unwrap_or(usize::MAX).max(1);
    let mut len = job.source_len.max(job.target_len);
    while len > least {
        len = (len / 2).max(least);
        if let Some(shorter) = same.shorter(len) {
            let more = shorter.at_this_length();
            list.push(shorter);
            list.extend(more);
        }
    }
    list
}

/// Whether these rungs hold the frozen weights in fewer bits than the job says.
pub fn quantises(rungs: &[String]) -> bool {
    rungs.iter().any(|rung| rung.starts_with(QUANTISED))
}

/// Whether these rungs train LoRA's factors where the job says that all weights are.
pub fn adapts(rungs: &[String]) -> bool {
    rungs.iter().any(|rung| rung.starts_with(ADAPTED))
}

/// The job that a run has been training since it took these rungs, with nothing further allowed: the weights and the state
/// that it has saved are of this job and of no other. None where the job knows no such rungs.
pub fn with_rungs(job: &Job, rungs: &[String]) -> Option<Job> {
    let changed = match rungs.is_empty() {
        true => Some(job.clone()),
        false => variants(job).into_iter().find(|variant| variant.rungs == rungs).map(|variant| variant.job),
    };
    changed.map(|job| Job { allow: Allow::default(), ..job })
}
