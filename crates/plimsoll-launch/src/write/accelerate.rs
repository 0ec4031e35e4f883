//! The YAML that `accelerate launch --config_file` reads: a flat list of keys and one nested for DeepSpeed.
//!
//! `accelerate` refuses unknown keys, and refuses settings that a DeepSpeed file has as well, so those are left out. Several
//! CPU ranks are written as `MULTI_GPU` without `use_cpu`: with `use_cpu` accelerate starts one process and says nothing.

use super::WriteError;
use crate::estimate::{Offload, Zero};

/// How ranks are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// One rank on a card, or several with DDP; also several CPU ranks of a script that sets `use_cpu` itself.
    Ranks,
    /// One rank on the CPU.
    OneCpu,
    /// DeepSpeed, set up by accelerate.
    DeepSpeed(Zero),
    /// DeepSpeed by its own file.
    DeepSpeedFile(String),
}

/// What goes into the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerate {
    /// How ranks are started.
    pub distribution: Distribution,
    /// How many.
    pub processes: u64,
    /// Micro-batches per update.
    pub accumulation: u64,
    /// `no`, `fp16` or `bf16`.
    pub mixed_precision: &'static str,
    /// The port where ranks meet.
    pub port: Option<u16>,
}

impl Accelerate {
    /// The file.
    pub fn yaml(&self) -> Result<String, WriteError> {
        let mut lines = vec!["compute_environment: LOCAL_MACHINE".to_string(), "debug: false".to_string()];
        let kind = match &self.distribution {
            Distribution::DeepSpeed(zero) => {
                zero.check()?;
                lines.push("deepspeed_config:".to_string());
                lines.push(format!("  gradient_accumulation_steps: {}", self.accumulation));
                lines.push(format!("  offload_optimizer_device: {}", place(zero.offload_optimizer)));
                lines.push(format!("  offload_param_device: {}", place(zero.offload_params)));
                lines.push(format!("  zero3_init_flag: {}", zero.stage == 3));
                lines.push(format!("  zero_stage: {}", zero.stage));
                "DEEPSPEED"
            }
            Distribution::DeepSpeedFile(path) => {
                lines.push("deepspeed_config:".to_string());
                lines.push(format!("  deepspeed_config_file: {}", quoted("deepspeed_config_file", path)?));
                lines.push("  zero3_init_flag: false".to_string());
                "DEEPSPEED"
            }
            Distribution::Ranks if self.processes > 1 => "MULTI_GPU",
            Distribution::Ranks | Distribution::OneCpu => "'NO'",
        };
        lines.push(format!("distributed_type: {kind}"));
        lines.push("downcast_bf16: 'no'".to_string());
        lines.push("machine_rank: 0".to_string());
        lines.push("main_training_function: main".to_string());
        if let Some(port) = self.port {
            lines.push(format!("main_process_port: {port}"));
        }
        if !matches!(self.distribution, Distribution::DeepSpeedFile(_)) {
            lines.push(format!("mixed_precision: '{}'", self.mixed_precision));
        }
        lines.push("num_machines: 1".to_string());
        lines.push(format!("num_processes: {}", self.processes));
        lines.push("rdzv_backend: static".to_string());
        lines.push("same_network: true".to_string());
        lines.push(format!("use_cpu: {}", self.distribution == Distribution::OneCpu));
        Ok(lines.join("\n") + "\n")
    }
}

fn place(offload: Offload) -> &'static str {
    match offload {
        Offload::None => "none",
        Offload::Cpu => "cpu",
        Offload::Nvme => "nvme",
    }
}

/// A YAML scalar in single quotes, where the only escape is a doubled quote.
fn quoted(key: &str, value: &str) -> Result<String, WriteError> {
    if value.chars().any(char::is_control) {
        let why = "it has a control character";
        return Err(WriteError::Unwritable { key: key.to_string(), value: value.to_string(), why });
    }
    Ok(format!("'{}'", value.replace('\'', "''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(distribution: Distribution) -> Accelerate {
        Accelerate { distribution, processes: 2, accumulation: 4, mixed_precision: "bf16", port: Some(29611) }
    }

    #[test]
    fn several_ranks_are_never_written_with_use_cpu() {
        let text = with(Distribution::Ranks).yaml().unwrap();
        assert!(text.contains("distributed_type: MULTI_GPU\n") && text.contains("use_cpu: false\n"), "{text}");
    }

    #[test]
    fn what_a_deepspeed_file_says_is_not_said_twice() {
        let text = with(Distribution::DeepSpeedFile("/run/it's.json".into())).yaml().unwrap();
        assert!(text.contains("deepspeed_config_file: '/run/it''s.json'\n"), "{text}");
        assert!(!text.contains("mixed_precision") && !text.contains("zero_stage"), "{text}");
    }

    #[test]
    fn what_deepspeed_would_refuse_is_refused() {
        let zero = Zero { stage: 2, offload_params: Offload::Cpu, ..Zero::default() };
        assert!(with(Distribution::DeepSpeed(zero)).yaml().is_err());
        assert!(with(Distribution::DeepSpeedFile("a\nb".into())).yaml().is_err());
    }
}
