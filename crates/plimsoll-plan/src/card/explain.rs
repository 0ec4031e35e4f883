//! Why a plan on a card is as it is: what was given up for the budget, what a little more memory would buy, and what would
//! make a job fit that is too big.

use plimsoll_machine::Bytes;

use super::{Candidate, CardTerms, decide};
use crate::choose::{Plan, Terms, Verdict};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::explain::{Cut, NextFaster};
use crate::program::Job;
use crate::remedy::{Remedy, enough, in_mib, kept_otherwise, larger_budgets, shorter, smaller_batches};
use crate::train::OptimizerSpec;
use crate::trained::{LoraSpec, TrainSpec, default_targets};

/// Rank of the factors that are offered.
const RANK: usize = 16;

/// What the chosen plan does otherwise than the fastest without a budget.
fn otherwise(job: &Job, free: &Candidate, chosen: &Candidate) -> String {
    let (then, now, blocks) = (&free.choices, &chosen.choices, job.spec.blocks());
    let mut list = Vec::new();
    if now.micro_batch != then.micro_batch {
        list.push(format!("micro-batch {} in place of {}", now.micro_batch, then.micro_batch));
    }
    if now.recompute > 0 {
        list.push(format!("{} of {blocks} blocks computed again", now.recompute));
    }
    if now.recompute_attention > 0 {
        list.push(format!("attention of {} blocks computed again", now.recompute_attention));
    }
    if now.recompute_feed_forward > 0 {
        list.push(format!("feed-forward part of {} blocks computed again", now.recompute_feed_forward));
    }
    if now.lstm_every != then.lstm_every {
        list.push(format!("the LSTM's steps computed again, {} at a time", now.lstm_every));
    }
    if now.loss_chunk != then.loss_chunk && job.spec.series().is_none() {
        list.push(format!("loss {} rows at a time in place of {}", now.loss_chunk, then.loss_chunk));
    }
    if now.optimizer_in_backward != then.optimizer_in_backward {
        let place = if now.optimizer_in_backward { "in" } else { "after" };
        list.push(format!("update {place} the backward pass"));
    }
    if then.keep_norms && !now.keep_norms {
        list.push("norms written again".to_string());
    }
    if now.lean && !then.lean {
        list.push("lean".to_string());
    }
    list.join(", ")
}

/// All that was given up, as one: on a card the knobs are found together.
pub(super) fn cuts(job: &Job, free: &Candidate, chosen: &Candidate) -> Vec<Cut> {
    let slower_percent = (chosen.seconds / free.seconds - 1.0) * 100.0;
    let saved = free.vram.0 as i64 - chosen.vram.0 as i64;
    vec![Cut { what: otherwise(job, free, chosen), saved, slower_percent }]
}

/// The fastest plan without a budget, where it does not fit and is worth asking for.
pub(super) fn next_faster(free: &Candidate, chosen: &Candidate, vram: Bytes) -> Option<NextFaster> {
    let lacks = free.vram.saturating_sub(vram);
    let change = "the fastest plan of all".to_string();
    (lacks > Bytes::ZERO && free.seconds < chosen.seconds).then_some(NextFaster {
        change,
        seconds_per_update: free.seconds,
        ram_peak: free.vram,
        lacks,
    })
}

/// Changes that would make the job fit, each tried.
pub(crate) fn remedies(job: &Job, terms: &Terms, card: &CardTerms, plan: &Plan) -> Vec<Remedy> {
    let mut list = Vec::new();
    let mut offer = |change: String, job: &Job, terms: &Terms, card: &CardTerms| {
        let plan = decide(job, terms, card).plan;
        let fits = plan.verdict == Verdict::Fits;
        if fits {
            list.push(Remedy { change, ram_peak: plan.ram.peak, vram_peak: Some(plan.vram.peak) });
        }
        fits
    };
    let (mut budgets, larger) = larger_budgets(terms, plan);
    let mut larger_card = *card;
    if plan.vram.peak > card.vram {
        larger_card.vram = enough(plan.vram.peak);
        budgets.push(match larger_card.vram <= card.vram_there {
            true => format!("a VRAM budget of {}", in_mib(larger_card.vram)),
            false => format!("a card of {} (this one has {})", in_mib(larger_card.vram), in_mib(card.vram_there)),
        });
    }
    offer(budgets.join(" and "), job, &larger, &larger_card);
    for (change, terms) in kept_otherwise(terms, plan) {
        offer(change, job, &terms, card);
    }
    for (change, job) in &narrower(job) {
        offer(format!("{change} (another result)"), job, terms, card);
    }
    if job.clip {
        offer("no clip_norm (another result)".into(), &Job { clip: false, ..job.clone() }, terms, card);
    }
    if job.spec.series().is_some() {
        smaller_batches(job).for_each(|(change, job)| {
            offer(change, &job, terms, card);
        });
        return list;
    }
    // The longest that fit.
    let _ = shorter(job).any(|(change, job)| offer(change, &job, terms, card));
    list
}

/// The job in fewer bits, step by step, then with factors alone.
fn narrower(job: &Job) -> Vec<(String, Job)> {
    let mut list: Vec<(String, Job)> = Vec::new();
    let mut now = job.clone();
    if let Device::Cuda(form) = &mut now.device
        && form.activations == Dtype::F32
    {
        form.activations = Dtype::Bf16;
        now.storage.frozen = Dtype::Bf16;
        list.push(("compute bf16".into(), now.clone()));
    }
    // A model of series is small: what it takes are its activations.
    if job.spec.series().is_some() {
        return list;
    }
    let and = |list: &mut Vec<(String, Job)>, word: &str, now: &Job| {
        let so_far = list.last().map_or(String::new(), |(words, _)| format!("{words}, "));
        list.push((format!("{so_far}{word}"), now.clone()));
    };
    let lora = matches!(now.train, TrainSpec::Lora(_));
    if let OptimizerSpec::AdamW { lr, betas, eps, weight_decay } = now.optimizer
        && !lora
    {
        now.optimizer = OptimizerSpec::AdamW8bit { lr, betas, eps, weight_decay };
        and(&mut list, "optimizer adamw8bit", &now);
    }
    let bf16 = now.device.cuda().is_some_and(|form| form.activations == Dtype::Bf16);
    if now.storage.trained == Dtype::F32 && !lora && bf16 {
        now.storage.trained = Dtype::Bf16;
        and(&mut list, "precision bf16", &now);
    }
    if job.spec.series().is_some() {
        // Models of series are small: factors beside their weights would save nothing.
        return list;
    }
    let factors = |job: &Job| {
        let targets = default_targets(&job.spec);
        let spec = LoraSpec { r: RANK, alpha: 2.0 * RANK as f32, dropout: 0.0, rslora: false, targets };
        let mut job = Job { train: TrainSpec::Lora(spec), ..job.clone() };
        job.storage.trained = Dtype::F32;
        job
    };
    let base = if lora { job.clone() } else { factors(job) };
    if !lora {
        list.push((format!("LoRA of rank {RANK}"), base.clone()));
    }
    if base.storage.quantised.is_none() {
        let mut small = base;
        small.storage.quantised = Some(Dtype::Nf4);
        let words = if lora { "base nf4".to_string() } else { format!("LoRA of rank {RANK}, base nf4") };
        list.push((words, small));
    }
    list
}
