"""Ids that transformers generates from a model folder, greedy and with beams.

    generate.py --model DIR --batch IN.safetensors --out OUT.safetensors
                [--max-new-tokens N --num-beams 4 --length-penalty 1.0 --early-stopping]

IN holds `input_ids` and `attention_mask`, [rows, length]. OUT gets `greedy` and `beam` (int32, [rows, generated], the
start token first, 0 after the end).
"""

import argparse

import torch
from safetensors.torch import load_file, save_file

import t5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--num-beams", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--early-stopping", action="store_true")
    args = parser.parse_args()

    model, batch = t5.load(args.model), load_file(args.batch)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    greedy = t5.generate(model, ids, mask, args.max_new_tokens)
    beam = t5.generate(
        model, ids, mask, args.max_new_tokens, args.num_beams, args.length_penalty, args.early_stopping
    )
    save_file({"greedy": greedy.to(torch.int32).contiguous(), "beam": beam.to(torch.int32).contiguous()}, args.out)


main()
