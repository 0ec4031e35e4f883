"""A tiny Piper dataset: sine sweeps instead of speech, the same files for the same arguments.

    piper_data.py FOLDER [--clips 24] [--seed 1] [--longest SECONDS]

Writes FOLDER/metadata.csv (`file.wav|text`) and FOLDER/wav/*.wav, 22050 Hz, 16 bit, mono, 1.5 to 3 s each.
"""

import argparse
import random
import wave
from pathlib import Path

import numpy

RATE = 22050
WORDS = "the ship lies low in the water when the load is heavy and rides high when the hold is empty".split()


def sweep(seconds: float, low: float, high: float) -> numpy.ndarray:
    """A tone that rises from `low` to `high` Hz with three overtones, fading in and out."""
    at = numpy.arange(int(seconds * RATE)) / RATE
    turns = low * at + (high - low) * at**2 / (2 * seconds)
    tone = sum(numpy.sin(2 * numpy.pi * k * turns) / k for k in (1, 2, 3, 4))
    fade = numpy.minimum(1, numpy.minimum(at, seconds - at) * 20)
    return (0.3 * fade * tone * 32767 / 2.1).astype("<i2")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=3.0)
    args = parser.parse_args()
    drawn = random.Random(args.seed)
    (args.folder / "wav").mkdir(parents=True, exist_ok=True)
    rows = []
    for clip in range(args.clips):
        seconds = drawn.uniform(1.5, args.longest)
        with wave.open(str(args.folder / "wav" / f"clip-{clip:02}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(sweep(seconds, drawn.uniform(90, 160), drawn.uniform(180, 320)).tobytes())
        words = " ".join(drawn.choices(WORDS, k=round(seconds * 2.5)))
        rows.append(f"clip-{clip:02}.wav|{words}\n")
    (args.folder / "metadata.csv").write_text("".join(rows))
    print(f"{args.clips} clips in {args.folder}")


main()
