//! `plimsoll plan --trainer NAME` and `plimsoll plan -- COMMAND`: what a foreign trainer needs, and the files that set it
//! so. `plimsoll plan --profile NAME`: what a guide said, and what is true of it.

use std::path::Path;

use plimsoll_launch::estimate::{Device, Offload, Zero};
use plimsoll_launch::write::{
    Accelerate, Batches, Buckets, DeepSpeed, Distribution, Environment, Half, env_file, hf, lightning,
};
use plimsoll_launch::{Knob, Settings, Value, guide};
use plimsoll_recover::atomic_write;

use crate::args::PlanArgs;
use crate::launch::{Charge, Fitted, Ready, Recorded, fit};
use crate::render::{self, Exit, Fail, OrFail};
use crate::verbs::guided::{adopt, beside_of, elsewhere, profile_for};
use crate::verbs::run::{allow, charge_of, settings};

/// Prints a guide's profile.
pub fn profile(name: &str, json: bool) -> Result<(), Fail> {
    if name == "list" {
        let lines: Vec<String> =
            guide::all().map(|profile| format!("{:<28} {}", profile.name, profile.title)).collect();
        return render::data(lines.join("\n"));
    }
    let profile =
        guide::profile(name).or_usage().map_err(|fail| fail.hint("all names: plimsoll plan --profile list"))?;
    if json { render::json(profile) } else { render::data(profile) }
}

/// Plans a foreign trainer and prints.
pub fn plan(args: &PlanArgs) -> Result<(), Fail> {
    let mut charge = charge_of(args.trainer.as_deref(), &args.command)?;
    charge.set = settings(&args.set)?;
    charge.allow = allow(&args.allow)?;
    (charge.ram, charge.vram) = (args.job.ram, args.job.vram);
    charge.length = args.length;
    charge.shape = args.shape.as_deref().map(|path| fs_err::canonicalize(path).or_usage()).transpose()?;
    let machine = args.machine.as_deref().map(Recorded::read).transpose()?;
    let profile = args.profile.as_deref().map(|name| profile_for(name, machine.as_ref())).transpose()?;
    elsewhere(&mut charge, machine.as_ref(), profile);
    let base = charge.clone();
    let notes = profile.map_or(Ok(Vec::new()), |profile| adopt(&mut charge, profile))?;
    let fitted = fit(&charge, !args.as_is)?;
    let beside = profile.and_then(|profile| beside_of(&base, profile, &fitted));
    let ready = Ready::new(Path::new("."), &charge, &fitted.over, None)?;
    if args.json {
        let mut all = as_json(&charge, &ready, &fitted);
        if let (Some(beside), Some(all)) = (&beside, all.as_object_mut()) {
            all.insert("guide".to_string(), serde_json::to_value(beside).or_failed()?);
        }
        render::json(&all)?;
    } else {
        let beside = beside.map_or(String::new(), |beside| format!("\n{beside}"));
        let mut notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
        if let Some(profile) = profile {
            notes += &format!("What is wrong in it: plimsoll plan --profile {}\n", profile.name);
        }
        render::data(format!("{}{beside}{notes}", text(&ready, &fitted)))?;
    }
    if let Some(folder) = &args.write {
        write(folder, &ready, &fitted)?;
    }
    match &fitted.short {
        Some(_) => Err(Fail::silent(Exit::DoesNotFit)),
        None => Ok(()),
    }
}

fn text(ready: &Ready, fitted: &Fitted) -> String {
    let mut out = format!("{}\n", ready.command.name());
    for (knob, value) in &ready.settings {
        out += &format!("  {:<20} {value}\n", knob.name());
    }
    if let Some(batch) = ready.effective_batch() {
        out += &format!("  {:<20} {batch}\n", "effective batch");
    }
    for step in &fitted.steps {
        out += &format!("  one step down: {step}\n");
    }
    match &fitted.forecast {
        Ok(forecast) => {
            out += &format!("model: {}\n{}", forecast.model, forecast.host);
            out += &there(fitted.ram);
            if let Some(card) = &forecast.card {
                out += &format!("{card}{}", there(fitted.vram));
            }
        }
        Err(why) => out += &format!("no estimate: {why}\n"),
    }
    match &fitted.short {
        Some(short) => {
            let sure = if short.certain { "does not fit" } else { "probably does not fit" };
            out += &format!("{sure}: {} are expected, {} are there; {}\n", short.needs, short.there, short.bottom);
        }
        None if fitted.forecast.is_ok() => out += "fits\n",
        None => {}
    }
    out
}

fn there(bytes: Option<plimsoll_machine::Bytes>) -> String {
    bytes.map_or(String::new(), |bytes| format!("  {:<24}  {:>10}\n", "there", bytes.to_string()))
}

fn as_json(charge: &Charge, ready: &Ready, fitted: &Fitted) -> serde_json::Value {
    let names: Vec<&str> = ready.command.layers().map(|layer| layer.name.as_str()).collect();
    let forecast = fitted.forecast.as_ref();
    let verdict = match (&fitted.short, forecast) {
        (Some(_), _) => "too_big",
        (None, Ok(_)) => "fits",
        (None, Err(_)) => "unknown",
    };
    serde_json::json!({
        "verdict": verdict,
        "trainer": names,
        "command": ready.edited.words,
        "settings": ready.settings,
        "changes": fitted.steps,
        "effective_batch": ready.effective_batch(),
        "allow": charge.allow,
        "model": forecast.ok().map(|forecast| &forecast.model),
        "ram": { "budget": fitted.ram, "table": forecast.ok().map(|forecast| &forecast.host) },
        "vram": { "budget": fitted.vram, "table": forecast.ok().and_then(|forecast| forecast.card.as_ref()) },
        "shortfall": fitted.short.as_ref().map(|short| short.needs.saturating_sub(short.there)),
        "would_fit": fitted.short.as_ref().map(|short| &short.bottom.would),
        "unknown": forecast.err(),
    })
}

/// Writes the files that set a trainer so; nothing that is there is written over.
fn write(folder: &Path, ready: &Ready, fitted: &Fitted) -> Result<(), Fail> {
    fs_err::create_dir_all(folder).or_usage()?;
    let settings = &ready.settings;
    let count = |knob, otherwise: u64| settings.get(&knob).and_then(Value::count).unwrap_or(otherwise);
    let on_card = fitted.forecast.as_ref().is_ok_and(|forecast| forecast.card.is_some());
    let processes = count(Knob::Processes, 1);
    let place =
        |knob| settings.get(&knob).and_then(|value| Offload::from_word(&value.to_string())).unwrap_or(Offload::None);
    let zero = Zero {
        stage: count(Knob::ZeroStage, 0).min(3) as u8,
        offload_optimizer: place(Knob::OffloadOptimizer),
        offload_params: place(Knob::OffloadParams),
        ..Zero::default()
    };
    let precision = settings.get(&Knob::Precision).map_or("fp32".to_string(), Value::to_string);
    let half = match precision.as_str() {
        word if word.starts_with("bf16") => Half::Bf16,
        word if word.starts_with("fp16") => Half::Fp16,
        _ => Half::Off,
    };
    let hugging_face = ready.command.trainer.name == "hf-trainer";
    let deepspeed = DeepSpeed {
        zero,
        batches: match hugging_face {
            true => Batches::Auto,
            false => Batches::Explicit {
                micro: count(Knob::Batch, 1),
                accumulation: count(Knob::Accumulation, 1),
                world: processes,
            },
        },
        half: if hugging_face { Half::Auto } else { half },
        buckets: if hugging_face { Buckets::Auto } else { Buckets::Explicit },
        own_optimizer: true,
        clip_milli: None,
        nvme_path: None,
    };
    let accelerate = Accelerate {
        distribution: match (zero.stage, on_card, processes) {
            (1.., _, _) => Distribution::DeepSpeed(zero),
            (_, false, 1) => Distribution::OneCpu,
            _ => Distribution::Ranks,
        },
        processes,
        accumulation: count(Knob::Accumulation, 1),
        mixed_precision: match half {
            Half::Bf16 => "bf16",
            Half::Fp16 => "fp16",
            _ => "no",
        },
        port: None,
    };
    let environment = Environment {
        device: if on_card { Device::Cuda } else { Device::Cpu },
        linux: cfg!(target_os = "linux"),
        torch: None,
        expandable: settings.get(&Knob::Segments).is_some_and(|word| word.word() == Some("expandable")),
        threads: Some((cores() / processes.max(1)).max(1)),
        deepspeed_on_cpu: zero.stage > 0 && !on_card,
    };
    let mut files: Vec<(&str, String)> = Vec::new();
    if zero.stage > 0 || ready.command.layers().any(|layer| layer.name == "deepspeed") {
        files.push(("deepspeed.json", serde_json::to_string_pretty(&deepspeed.json().or_usage()?).or_failed()? + "\n"));
    }
    files.push(("accelerate.yaml", accelerate.yaml().or_usage()?));
    files.push(("hf.args", lines(&hf(settings).or_usage()?.argv)));
    files.push(("lightning.args", lines(&lightning(&for_lightning(ready, settings)).or_usage()?.argv)));
    let variables = environment.variables();
    let pairs = variables.iter().map(|(name, value)| (*name, value.as_str()));
    files.push(("env", env_file(pairs).or_usage()?));
    for (name, text) in files {
        let path = folder.join(name);
        if path.exists() {
            return Err(Fail::usage(format!("`{}` is there already", path.display())).hint("name another folder"));
        }
        atomic_write(&path, text.as_bytes())?;
        render::talk(format!("wrote {}", path.display()));
    }
    Ok(())
}

/// What Lightning's command line would refuse is left out.
fn for_lightning(ready: &Ready, settings: &Settings) -> Settings {
    let refused = |knob: &Knob| ready.command.trainer.knobs.get(knob).is_some_and(|place| place.refused.is_some());
    settings.iter().filter(|(knob, _)| !refused(knob)).map(|(knob, value)| (*knob, value.clone())).collect()
}

/// One flag and its value a line.
fn lines(argv: &[String]) -> String {
    let pairs = argv.chunks(2).map(|pair| pair.join(" "));
    pairs.collect::<Vec<_>>().join("\n") + "\n"
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}
