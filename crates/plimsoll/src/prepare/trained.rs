//! What of a model is trained, and how its weights are stored: the job's words held against the model.

use plimsoll_model::WeightFiles;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Allow;
use plimsoll_plan::spec::ModelSpec;
use plimsoll_plan::trained::{LoraSpec, Storage, TrainSpec, default_targets, is_linear, matches};

use crate::args::Init;
use crate::job::trained::Base;
use crate::render::Fail;
use crate::settings::Settings;

impl Settings {
    /// What is trained of this model: LoRA's targets filled in, patterns and targets found in it.
    pub fn train_spec(&self, spec: &ModelSpec) -> Result<TrainSpec, Fail> {
        let mut train = self.train.clone();
        let params = spec.params();
        match &mut train {
            TrainSpec::All => {}
            TrainSpec::Freeze(patterns) => {
                if let Some(pattern) = patterns.iter().find(|p| !params.iter().any(|param| matches(p, &param.name))) {
                    let example = params.get(1).map_or("", |p| p.name.as_str());
                    let fact = format!("`model.train`: no parameter matches `{pattern}`");
                    return Err(Fail::usage(fact).hint(format!("parameters have names such as `{example}`")));
                }
                if params.iter().all(|p| patterns.iter().any(|pattern| matches(pattern, &p.name))) {
                    return Err(Fail::usage("`model.train` freezes every parameter: nothing would be trained"));
                }
            }
            TrainSpec::Lora(lora) => {
                if lora.targets.is_empty() {
                    lora.targets = default_targets(spec);
                }
                let linear = params.iter().filter(|p| is_linear(&p.name));
                let modules: Vec<&str> = linear.filter_map(|p| p.name.strip_suffix(".weight")).collect();
                let found = |target: &String| {
                    let one = LoraSpec { targets: vec![target.clone()], ..lora.clone() };
                    modules.iter().any(|module| one.targets(module))
                };
                if let Some(target) = lora.targets.iter().find(|target| !found(target)) {
                    let mut known: Vec<&str> = modules.iter().filter_map(|m| m.rsplit('.').next()).collect();
                    known.sort_unstable();
                    known.dedup();
                    let fact = format!("`model.train`: no module of the model is called `{target}`");
                    return Err(Fail::usage(fact).hint(format!("it has `{}`", known.join("`, `"))));
                }
            }
        }
        Ok(train)
    }

    /// What may be changed where nothing else fits, in this model's words.
    pub fn allowed(&self, spec: &ModelSpec) -> Result<Allow, Fail> {
        let mut allow = self.allow.clone();
        if let Some(lora) = &mut allow.lora {
            if self.init == Init::Random {
                let fact = "`allow.lora` trains factors beside a base, and `model.init` = `random` has none";
                return Err(Fail::usage(fact));
            }
            let train = TrainSpec::Lora(lora.clone());
            if let TrainSpec::Lora(found) = (Settings { train, ..self.clone() }).train_spec(spec)? {
                *lora = found;
            }
        }
        Ok(allow)
    }

    /// How weights are stored, of a model with these files.
    pub fn storage(&self, weights: Option<&WeightFiles>) -> Storage {
        let of_file = weights.and_then(WeightFiles::float_dtype).unwrap_or(Dtype::F32);
        let quantised = match self.base {
            Base::Int8 => Some(Dtype::Int8),
            Base::Nf4 => Some(Dtype::Nf4),
            Base::File | Base::F32 => None,
        };
        let frozen = match self.card {
            // Products on a card read one form; a base in another would be written out again for each of them.
            Some(form @ (Dtype::Bf16 | Dtype::F16)) => form,
            _ if self.base == Base::F32 => Dtype::F32,
            _ => of_file,
        };
        Storage { frozen, quantised, trained: self.precision }
    }
}
