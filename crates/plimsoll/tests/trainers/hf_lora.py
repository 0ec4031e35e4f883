"""HF Trainer with a PEFT LoRA adapter, in the usual style: all knobs are TrainingArguments on the command line.

    accelerate launch --multi_gpu --num_processes 2 ... hf_lora.py --output_dir OUT --use_cpu True ...
    torchrun --nproc_per_node 2 hf_lora.py ...

The model is Qwen2's shape with random weights from a fixed seed; the data are arithmetic chains of tokens. A batch is
padded to its longest sample, and `--short-first N` puts N short samples first (with `--train_sampling_strategy
sequential`), so that memory grows in the middle of a training as it does with real lengths.
"""

from dataclasses import dataclass, field

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import HfArgumentParser, Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments, set_seed


@dataclass
class ModelArguments:
    layers: int = 4
    hidden: int = 128
    vocabulary: int = 8192
    lora_r: int = 8
    lora_alpha: int = 16


@dataclass
class DataArguments:
    samples: int = 512
    length: int = 512
    short_length: int = 64
    short_first: int = field(default=0, metadata={"help": "so many samples of the short length come first"})


class Chains(Dataset):
    """Sample i counts upwards by its own step, modulo the vocabulary."""

    def __init__(self, data: DataArguments, vocabulary: int, samples: int):
        self.data, self.vocabulary, self.samples = data, vocabulary, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index: int):
        length = self.data.short_length if index < self.data.short_first else self.data.length
        ids = (torch.arange(length) * (1 + index % 7) + index * 31) % self.vocabulary
        return {"input_ids": ids, "labels": ids.clone()}


def pad(samples: list[dict]) -> dict:
    longest = max(len(sample["input_ids"]) for sample in samples)
    fill = lambda row, value: torch.nn.functional.pad(row, (0, longest - len(row)), value=value)
    return {
        "input_ids": torch.stack([fill(s["input_ids"], 0) for s in samples]),
        "attention_mask": torch.stack([fill(torch.ones_like(s["input_ids"]), 0) for s in samples]),
        "labels": torch.stack([fill(s["labels"], -100) for s in samples]),
    }


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    config = Qwen2Config(
        vocab_size=model_args.vocabulary, hidden_size=model_args.hidden, intermediate_size=4 * model_args.hidden,
        num_hidden_layers=model_args.layers, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.enable_input_require_grads()
    lora = LoraConfig(
        r=model_args.lora_r, lora_alpha=model_args.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, lora)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Chains(data, model_args.vocabulary, data.samples),
        eval_dataset=Chains(data, model_args.vocabulary, 64),
        data_collator=pad,
    )
    print(f"world size {args.world_size}, rank {args.process_index}, batch {args.per_device_train_batch_size} "
          f"x {args.gradient_accumulation_steps}", flush=True)  # fmt: skip
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.is_world_process_zero():
        print(f"training finished at step {trainer.state.global_step}", flush=True)
    # Without it gloo's threads may outlive the interpreter, and a rank that is done ends with SIGABRT (seen once in 25).
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
