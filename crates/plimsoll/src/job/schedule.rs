//! `train.schedule`: a table with the names of `transformers` and `torch` becomes a [`ScheduleSpec`].

use plimsoll_plan::train::{Anneal, ScheduleSpec};
use serde::Deserialize;

use super::count::Count;
use super::optimizer::{Wrong, in_range, unknown_name};

/// The schedule's table, as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table like { name = \"cosine\", warmup_steps = 100 }")]
#[allow(missing_docs, reason = "the names are Hugging Face's and PyTorch's; ScheduleSpec documents them")]
pub struct ScheduleTable {
    pub name: Option<String>,
    pub warmup_steps: Option<Count>,
    pub num_cycles: Option<f64>,
    pub t_0: Option<Count>,
    pub t_mult: Option<Count>,
    pub eta_min: Option<f64>,
    pub pct_start: Option<f64>,
    pub anneal_strategy: Option<String>,
    pub div_factor: Option<f64>,
    pub final_div_factor: Option<f64>,
    pub three_phase: Option<bool>,
}

const NAMES: &[&str] = &["constant", "linear", "cosine", "cosine-warm-restarts", "one-cycle"];

impl ScheduleTable {
    /// The table that a bare name stands for.
    pub fn named(name: &str) -> ScheduleTable {
        ScheduleTable { name: Some(name.to_string()), ..ScheduleTable::default() }
    }

    /// Every number filled in and judged.
    pub fn resolve(&self) -> Result<ScheduleSpec, Wrong> {
        let name = self.name.as_deref().unwrap_or("constant");
        let own: &[&str] = match name {
            "constant" | "linear" => &["warmup_steps"],
            "cosine" => &["warmup_steps", "num_cycles"],
            "cosine-warm-restarts" => &["warmup_steps", "t_0", "t_mult", "eta_min"],
            "one-cycle" => &["pct_start", "anneal_strategy", "div_factor", "final_div_factor", "three_phase"],
            other => return Err(unknown_name(other, NAMES)),
        };
        if let Some(key) = self.given().into_iter().find(|key| !own.contains(key)) {
            let wrong = Wrong::new(key, format!("is not an option of `{name}`"));
            return Err(match (name, key) {
                ("one-cycle", "warmup_steps") => wrong.hint("one-cycle rises over `pct_start` of the run"),
                _ => wrong.hint(format!("options of `{name}`: `{}`", own.join("`, `"))),
            });
        }
        let warmup_steps = self.warmup_steps.map_or(0, |steps| steps.0);
        Ok(match name {
            "constant" => ScheduleSpec::Constant { warmup_steps },
            "linear" => ScheduleSpec::Linear { warmup_steps },
            "cosine" => {
                let num_cycles = self.num_cycles.unwrap_or(0.5);
                let num_cycles = in_range("num_cycles", num_cycles, "a finite number above 0", |n| n > 0.0)?;
                ScheduleSpec::Cosine { warmup_steps, num_cycles }
            }
            "cosine-warm-restarts" => self.warm_restarts(warmup_steps)?,
            _ => self.one_cycle()?,
        })
    }

    fn warm_restarts(&self, warmup_steps: u64) -> Result<ScheduleSpec, Wrong> {
        let above_0 = |key: &'static str, count: u64| match count {
            0 => Err(Wrong::new(key, "must be a whole number of 1 or more, found `0`".to_string())),
            n => Ok(n),
        };
        let Some(t_0) = self.t_0 else {
            let wrong = Wrong::new("t_0", "must be given: the updates of the first cosine".to_string());
            return Err(wrong.hint("as in { name = \"cosine-warm-restarts\", t_0 = 1000, t_mult = 2 }"));
        };
        let eta_min = in_range("eta_min", self.eta_min.unwrap_or(0.0), "a finite number of 0 or more", |n| n >= 0.0)?;
        let (t_0, t_mult) = (above_0("t_0", t_0.0)?, above_0("t_mult", self.t_mult.map_or(1, |n| n.0))?);
        Ok(ScheduleSpec::CosineWarmRestarts { warmup_steps, t_0, t_mult, eta_min })
    }

    fn one_cycle(&self) -> Result<ScheduleSpec, Wrong> {
        let three_phase = self.three_phase.unwrap_or(false);
        let pct_start = self.pct_start.unwrap_or(0.3);
        let pct_start = match three_phase {
            // The fall is as long as the rise: both must fit into the run.
            true => in_range("pct_start", pct_start, "from 0 to 0.5 with `three_phase`", |p| (0.0..=0.5).contains(&p))?,
            false => in_range("pct_start", pct_start, "from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
        };
        let anneal_strategy = match self.anneal_strategy.as_deref() {
            None | Some("cos") => Anneal::Cos,
            Some("linear") => Anneal::Linear,
            Some(other) => {
                return Err(Wrong::new("anneal_strategy", format!("must be `cos` or `linear`, found `{other}`")));
            }
        };
        let (div, last) = (self.div_factor.unwrap_or(25.0), self.final_div_factor.unwrap_or(1e4));
        Ok(ScheduleSpec::OneCycle {
            pct_start,
            anneal_strategy,
            div_factor: in_range("div_factor", div, "a finite number of 1 or more", |d| d >= 1.0)?,
            final_div_factor: in_range("final_div_factor", last, "a finite number of 1 or more", |d| d >= 1.0)?,
            three_phase,
        })
    }

    /// The keys that were given, `name` aside.
    fn given(&self) -> Vec<&'static str> {
        let table = [
            ("warmup_steps", self.warmup_steps.is_some()),
            ("num_cycles", self.num_cycles.is_some()),
            ("t_0", self.t_0.is_some()),
            ("t_mult", self.t_mult.is_some()),
            ("eta_min", self.eta_min.is_some()),
            ("pct_start", self.pct_start.is_some()),
            ("anneal_strategy", self.anneal_strategy.is_some()),
            ("div_factor", self.div_factor.is_some()),
            ("final_div_factor", self.final_div_factor.is_some()),
            ("three_phase", self.three_phase.is_some()),
        ];
        table.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<ScheduleSpec, Wrong> {
        toml::from_str::<ScheduleTable>(text).unwrap().resolve()
    }

    #[test]
    fn the_defaults_are_those_of_transformers_and_torch() {
        assert_eq!(resolve("").unwrap(), ScheduleSpec::CONSTANT);
        let cosine = ScheduleSpec::Cosine { warmup_steps: 9, num_cycles: 0.5 };
        assert_eq!(resolve("name = 'cosine'\nwarmup_steps = 9").unwrap(), cosine);
        let one_cycle = ScheduleSpec::OneCycle {
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        };
        assert_eq!(resolve("name = 'one-cycle'").unwrap(), one_cycle);
        let restarts = ScheduleSpec::CosineWarmRestarts { warmup_steps: 0, t_0: 10, t_mult: 1, eta_min: 0.0 };
        assert_eq!(resolve("name = 'cosine-warm-restarts'\nt_0 = 10").unwrap(), restarts);
    }

    #[test]
    fn each_wrong_number_or_key_is_refused_by_its_name() {
        let refused = [
            ("name = 'onecycle'", "name"),
            ("name = 'linear'\nnum_cycles = 1", "num_cycles"),
            ("name = 'cosine'\nnum_cycles = 0", "num_cycles"),
            ("name = 'cosine-warm-restarts'", "t_0"),
            ("name = 'cosine-warm-restarts'\nt_0 = 0", "t_0"),
            ("name = 'cosine-warm-restarts'\nt_0 = 1\nt_mult = 0", "t_mult"),
            ("name = 'cosine-warm-restarts'\nt_0 = 1\neta_min = -1", "eta_min"),
            ("name = 'cosine'\nt_0 = 1", "t_0"),
            ("name = 'one-cycle'\nwarmup_steps = 1", "warmup_steps"),
            ("name = 'one-cycle'\npct_start = 1.5", "pct_start"),
            ("name = 'one-cycle'\npct_start = 0.6\nthree_phase = true", "pct_start"),
            ("name = 'one-cycle'\nanneal_strategy = 'sin'", "anneal_strategy"),
            ("name = 'one-cycle'\ndiv_factor = 0.5", "div_factor"),
            ("name = 'one-cycle'\nfinal_div_factor = nan", "final_div_factor"),
        ];
        for (text, key) in refused {
            match resolve(text) {
                Err(wrong) => assert_eq!(wrong.key, key, "{text}"),
                Ok(spec) => panic!("{text} became {spec:?}"),
            }
        }
    }
}
