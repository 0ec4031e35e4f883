"""Reads files that Plimsoll wrote with the loaders of the frameworks themselves; prints what they understood as JSON."""

import json
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"


def device(offload):
    return None if offload is None else getattr(offload.device, "value", offload.device)


def deepspeed(path):
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig(path)
    zero = config.zero_config
    return {
        "train": config.train_batch_size,
        "micro": config.train_micro_batch_size_per_gpu,
        "accumulation": config.gradient_accumulation_steps,
        "stage": int(zero.stage),
        "offload_optimizer": device(zero.offload_optimizer),
        "offload_param": device(zero.offload_param),
        "reduce_bucket": zero.reduce_bucket_size,
        "clip": config.gradient_clipping,
        "force_cpu_adam": config.zero_force_ds_cpu_optimizer,
        "bf16": config.bfloat16_config.enabled,
    }


def auto(path):
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = TrainingArguments(output_dir=os.path.dirname(path), use_cpu=True, per_device_train_batch_size=3)
    config = HfTrainerDeepSpeedConfig(path)
    config.trainer_config_process(arguments)

    class Model:
        class config:
            hidden_size = 64

    config.trainer_config_finalize(arguments, Model, 10)
    return {"left_auto": "auto" in json.dumps(config.config), "micro": config.config["train_micro_batch_size_per_gpu"]}


def accelerate(path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(path)
    return {
        "kind": getattr(config.distributed_type, "value", config.distributed_type),
        "processes": config.num_processes,
        "deepspeed": config.deepspeed_config,
        "use_cpu": config.use_cpu,
    }


def hf(arguments):
    from transformers import HfArgumentParser, TrainingArguments

    (parsed,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(json.loads(arguments) + ["--use_cpu", "True"])
    return {
        "batch": parsed.per_device_train_batch_size,
        "accumulation": parsed.gradient_accumulation_steps,
        "workers": parsed.dataloader_num_workers,
        "prefetch": parsed.dataloader_prefetch_factor,
        "pin": parsed.dataloader_pin_memory,
        "checkpointing": parsed.gradient_checkpointing,
        "resume": parsed.resume_from_checkpoint,
    }


print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
