//! The DeepSpeed JSON. Plain JSON, since DeepSpeed reads no comments.

use serde_json::{Map, Value, json};

use super::WriteError;
use crate::estimate::zero::check_batch;
use crate::estimate::{Offload, Zero};

/// The three numbers that must multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// Hugging Face fills them in from its own arguments.
    Auto,
    /// As given; `train` is their product.
    Explicit {
        /// Samples per rank and pass.
        micro: u64,
        /// Passes per update.
        accumulation: u64,
        /// Ranks.
        world: u64,
    },
}

/// Half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// None.
    Off,
    /// bfloat16.
    Bf16,
    /// float16 with a dynamic loss scale.
    Fp16,
    /// Hugging Face fills it in.
    Auto,
}

/// How large buckets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// Hugging Face derives them from the hidden width.
    Auto,
    /// Elements, as `Zero::reduce_bucket` has them.
    Explicit,
}

/// What goes into the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeepSpeed {
    /// Stage and offloading.
    pub zero: Zero,
    /// Batch numbers.
    pub batches: Batches,
    /// Half precision.
    pub half: Half,
    /// Bucket sizes.
    pub buckets: Buckets,
    /// Whether the optimizer is DeepSpeed's own (or made by it); another must be allowed by name.
    pub own_optimizer: bool,
    /// Gradient clipping, in thousandths.
    pub clip_milli: Option<u64>,
    /// Where a disk offload goes.
    pub nvme_path: Option<String>,
}

impl DeepSpeed {
    /// The file.
    pub fn json(&self) -> Result<Value, WriteError> {
        self.zero.check()?;
        let mut file = Map::new();
        match self.batches {
            Batches::Auto => {
                for key in ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"] {
                    file.insert(key.into(), json!("auto"));
                }
            }
            Batches::Explicit { micro, accumulation, world } => {
                let train = micro.saturating_mul(accumulation).saturating_mul(world);
                check_batch(train, micro, accumulation, world)?;
                file.insert("train_batch_size".into(), json!(train));
                file.insert("train_micro_batch_size_per_gpu".into(), json!(micro));
                file.insert("gradient_accumulation_steps".into(), json!(accumulation));
            }
        }
        match self.half {
            Half::Off => {}
            Half::Bf16 => drop(file.insert("bf16".into(), json!({"enabled": true}))),
            Half::Fp16 => drop(file.insert("fp16".into(), json!({"enabled": true, "loss_scale": 0}))),
            Half::Auto => {
                file.insert("bf16".into(), json!({"enabled": "auto"}));
                file.insert("fp16".into(), json!({"enabled": "auto"}));
            }
        }
        if let Some(clip) = self.clip_milli {
            file.insert("gradient_clipping".into(), json!(clip as f64 / 1000.0));
        }
        file.insert("zero_optimization".into(), self.zero_json()?);
        if !self.own_optimizer && self.zero.active() {
            file.insert("zero_allow_untested_optimizer".into(), json!(true));
            if self.zero.offload_optimizer != Offload::None {
                file.insert("zero_force_ds_cpu_optimizer".into(), json!(false));
            }
        }
        Ok(Value::Object(file))
    }

    fn zero_json(&self) -> Result<Value, WriteError> {
        let zero = &self.zero;
        let mut object = Map::from_iter([
            ("stage".to_string(), json!(zero.stage)),
            ("overlap_comm".to_string(), json!(zero.overlap)),
            ("contiguous_gradients".to_string(), json!(true)),
        ]);
        let bucket = match self.buckets {
            Buckets::Auto => json!("auto"),
            Buckets::Explicit => json!(zero.reduce_bucket),
        };
        object.insert("reduce_bucket_size".into(), bucket.clone());
        if zero.stage == 3 {
            object.insert("stage3_max_live_parameters".into(), json!(zero.max_live));
            object.insert("stage3_gather_16bit_weights_on_model_save".into(), json!(true));
            if self.buckets == Buckets::Auto {
                object.insert("stage3_prefetch_bucket_size".into(), json!("auto"));
                object.insert("stage3_param_persistence_threshold".into(), json!("auto"));
            }
        } else if zero.stage > 0 {
            // Hugging Face fills in the reduce bucket alone; the other keeps DeepSpeed's default beside `auto`.
            if self.buckets == Buckets::Explicit {
                object.insert("allgather_bucket_size".into(), bucket);
            }
        }
        for (key, place) in [("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_params)] {
            match place {
                Offload::None => {}
                Offload::Cpu => drop(object.insert(key.into(), json!({"device": "cpu", "pin_memory": zero.pinned}))),
                Offload::Nvme => {
                    let path = self.nvme_path.as_deref().ok_or(WriteError::NoDisk)?;
                    let place = json!({"device": "nvme", "nvme_path": path, "pin_memory": zero.pinned});
                    object.insert(key.into(), place);
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(zero: Zero) -> DeepSpeed {
        DeepSpeed {
            zero,
            batches: Batches::Explicit { micro: 4, accumulation: 4, world: 2 },
            half: Half::Bf16,
            buckets: Buckets::Explicit,
            own_optimizer: true,
            clip_milli: Some(1000),
            nvme_path: None,
        }
    }

    #[test]
    fn parameters_offloaded_below_stage_three_are_refused() {
        let zero = Zero { stage: 2, offload_params: Offload::Cpu, ..Zero::default() };
        let refused = plain(zero).json().unwrap_err();
        assert_eq!(refused.to_string(), "`offload_param` is valid only with stage 3, found stage 2");
    }

    #[test]
    fn batch_numbers_multiply() {
        let file = plain(Zero { stage: 2, ..Zero::default() }).json().unwrap();
        assert_eq!(file["train_batch_size"], 32);
        assert_eq!(file["gradient_clipping"], 1.0);
        assert_eq!(file["zero_optimization"]["stage"], 2);
        assert!(file.get("fp16").is_none());
    }

    #[test]
    fn a_foreign_optimizer_with_offload_is_allowed_by_name() {
        let zero = Zero { stage: 2, offload_optimizer: Offload::Cpu, ..Zero::default() };
        let foreign = DeepSpeed { own_optimizer: false, ..plain(zero) }.json().unwrap();
        assert_eq!(foreign["zero_force_ds_cpu_optimizer"], false);
        assert_eq!(foreign["zero_allow_untested_optimizer"], true);
        assert!(plain(zero).json().unwrap().get("zero_force_ds_cpu_optimizer").is_none());
    }

    #[test]
    fn a_disk_offload_without_a_disk_is_refused() {
        let zero = Zero { stage: 3, offload_optimizer: Offload::Nvme, ..Zero::default() };
        assert_eq!(plain(zero).json().unwrap_err(), WriteError::NoDisk);
    }
}
