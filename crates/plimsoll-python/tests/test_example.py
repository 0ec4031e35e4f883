"""The example is run as a user would run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fixture import DataCase

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "hf_trainer.py"


class Example(DataCase):
    def run_example(self, output, *more):
        command = [sys.executable, str(EXAMPLE), "--data", str(self.dir / "text.jsonl"), "--tokenizer", str(self.model),
                   "--output", str(self.dir / output), *more]
        # One thread: sums of floats are then the same each time.
        env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_a_trainer_resumes_as_if_nothing_had_been(self):
        # 12 samples or so a pass, 8 of them a step: the break is some passes in.
        settings = ("--steps", "24", "--max-len", "32", "--packed")
        whole = self.run_example("whole", *settings)
        half = self.run_example("broken", *settings, "--stop-at", "13")
        self.assertEqual((half["steps"], half["losses"]), (13, whole["losses"][:13]))
        self.assertEqual(self.run_example("broken", *settings), whole)
