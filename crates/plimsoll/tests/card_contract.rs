//! The contract on a card, held by the real binary for random jobs: what the driver counts <= plan <= budget, and the host
//! keeps its own plan. Without a card the test says so and passes.
#![allow(clippy::print_stdout)] // what was planned and measured is worth seeing

#[allow(dead_code)] // of its jobs only the drawn ones
mod support;

use std::fmt;

use std::path::Path;

use plimsoll_engine::cuda::Card;
use serde_json::Value;
use support::drawn::Drawn;
use support::job::Job;
use support::run::plimsoll;
use support::series_job::SeriesJob;

/// Jobs over texts, and over series.
const JOBS: u64 = 30;
const SERIES_JOBS: u64 = 15;
const MIB: u64 = 1 << 20;
/// What the host may hold at most.
const HOST: u64 = 1 << 30;
/// What the median plan may be above its run.
const MEDIAN_OVER: f64 = 0.03;
/// What may be measured anew from start to start.
const MEASURED_ANEW: u64 = 2 * MIB;

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs_err::read(path).unwrap()).unwrap()
}

fn number(value: &Value, at: &str) -> u64 {
    value.pointer(at).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number at `{at}` of {value:#}"))
}

/// The form of activations that a job gets: weights of bf16 go with bf16 alone.
fn compute(job: &Drawn) -> &'static str {
    let precision = match job {
        Drawn::Texts(job) => job.precision,
        Drawn::Series(_) => None,
    };
    match (precision, job.number() % 3) {
        (Some("bf16"), _) | (_, 0) => "bf16",
        (_, 1) => "f32",
        _ => "f16",
    }
}

/// What a job trains.
fn model(job: &Drawn) -> &dyn fmt::Debug {
    match job {
        Drawn::Texts(job) => &job.model.family,
        Drawn::Series(job) => &job.build,
    }
}

/// Planned and measured, of the card and of the host.
struct Seen {
    over: f64,
    wrong: Option<String>,
}

fn run(job: &Drawn) -> Result<Seen, String> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    job.write(dir);
    let mut flags = job.flags(dir);
    flags.set("--device", "cuda");
    flags.set("--compute", compute(job));
    // Every other job has half of what it would like beyond the least.
    if job.number() % 2 == 1 {
        let peak = |budget: &str| {
            let planned = plimsoll("plan", &flags, &["--json", "--vram", budget], dir, None);
            let plan: Value = serde_json::from_str(&planned.data).map_err(|e| format!("{e}: {}", planned.talk))?;
            Ok::<u64, String>(number(&plan, "/vram/peak"))
        };
        let (least, plenty) = (peak("1MiB")?, peak("64GiB")?);
        flags.set("--vram", (least + plenty) / 2 + MEASURED_ANEW);
    }
    let out = dir.join("run");
    let ended = plimsoll("train", &flags, &["--out", &out.display().to_string()], dir, None);
    if ended.code != Some(0) {
        return Err(format!("job {} ({:?}): exit {:?}\n{}", job.number(), model(job), ended.code, ended.talk));
    }
    let (plan, summary) = (read(&out.join("plan.json")), read(&out.join("summary.json")));
    let (planned, used) = (number(&plan, "/vram/peak"), number(&summary, "/peak_vram_bytes"));
    let (host_planned, host) = (number(&plan, "/ram/peak"), number(&summary, "/peak_ram_bytes"));
    let over = planned as f64 / used as f64 - 1.0;
    let said = format!(
        "job {} ({}, {:?}): card {} of {} MiB planned ({:+.1} %), host {} of {} MiB",
        job.number(),
        compute(job),
        model(job),
        used / MIB,
        planned / MIB,
        over * 100.0,
        host / MIB,
        host_planned / MIB
    );
    println!("{said}");
    let budget = number(&plan, "/vram/budget");
    let holds = used <= planned && planned <= budget && host <= host_planned && host <= HOST;
    Ok(Seen { over, wrong: (!holds).then_some(said) })
}

fn all_hold(what: &str, jobs: &mut dyn Iterator<Item = Drawn>) {
    if let Err(why) = Card::open(0) {
        assert!(std::env::var_os("PLIMSOLL_CARD").is_none(), "{why}");
        println!("skipped: {why}");
        return;
    }
    let (mut overs, mut wrong) = (Vec::new(), Vec::new());
    for job in jobs {
        match run(&job) {
            Ok(seen) => {
                overs.push(seen.over);
                wrong.extend(seen.wrong);
            }
            Err(why) => wrong.push(why),
        }
    }
    overs.sort_by(f64::total_cmp);
    let median = overs.get(overs.len() / 2).copied().unwrap_or(f64::NAN);
    println!("{} jobs over {what}, median over-estimate {:.2} %", overs.len(), median * 100.0);
    assert!(wrong.is_empty(), "{} jobs over {what} break the contract:\n{}", wrong.len(), wrong.join("\n"));
    assert!(median <= MEDIAN_OVER, "the median plan over {what} is {median} above its run");
}

#[test]
fn no_job_takes_more_of_the_card_than_its_plan() {
    all_hold("texts", &mut (0..JOBS).map(|number| Job::draw(number).into()));
}

#[test]
fn no_job_over_series_takes_more_of_the_card_than_its_plan() {
    all_hold("series", &mut (0..SERIES_JOBS).map(|number| SeriesJob::draw(number).into()));
}
