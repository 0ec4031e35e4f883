"""A training program without any library: a number is trained, memory is taken by the batch, checkpoints are zip files.

For the tests of what surrounds a trainer: stops, kills, stalls, launchers. What it computes depends on the effective
batch alone. `--ranks N` makes it a launcher of its own kind, which starts ranks in sessions of their own, as torchrun
does, and waits for rank 0 only: it does not notice when another one dies.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--num-workers", type=int, default=0)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--mib", type=int, default=1, help="memory of one sample")
    p.add_argument("--grow-at", type=int, default=0, help="from this step on all of it is taken, an eighth before")
    p.add_argument("--pause", type=float, default=0.02, help="seconds of a step")
    p.add_argument("--hold-at", type=int, default=0, help="wait at this step until the file `go` is there")
    p.add_argument("--forget", action="store_true", help="ignore --resume, without a word")
    p.add_argument("--ranks", type=int, default=0)
    p.add_argument("--leave", action="store_true", help="as a launcher: end at once, the ranks go on")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--resume", type=Path)
    return p.parse_args()


def load(path):
    with zipfile.ZipFile(path) as archive:
        step, value = archive.read("state").decode().split()
    return int(step), float(value)


def save(out, step, value):
    path = out / f"step-{step:06}.pt"
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
        archive.writestr("state", f"{step} {value!r}")
    os.replace(path.with_suffix(".tmp"), path)


def train(a, rank):
    a.out.mkdir(parents=True, exist_ok=True)
    step, value = load(a.resume) if a.resume and not a.forget else (0, 0.0)
    if a.resume and not a.forget:
        print(f"resumed at step {step}", flush=True)
    (a.out / f"pid-{rank}").write_text(str(os.getpid()))
    while step < a.steps:
        while a.hold_at and step + 1 == a.hold_at and not (a.out / "go").exists():
            time.sleep(0.1)
        held = []
        each = a.mib if step + 1 >= a.grow_at else max(1, a.mib // 8)
        for _ in range(a.accum):
            held = None
            held = [bytearray(os.urandom(1024) * 1024 * each) for _ in range(a.batch_size)]
        value += a.batch_size * a.accum
        del held
        # What a rank would do in an all-reduce: wait for the others.
        (a.out / f"beat-{rank}").write_text(str(step + 1))
        deadline = 2_000
        while a.ranks and deadline and min(beat(a.out, other) for other in range(a.ranks)) <= step:
            time.sleep(0.1)
            deadline -= 1
        time.sleep(a.pause)
        step += 1
        if rank == 0:
            print(f"step {step}/{a.steps} loss {1 / step:.4f} value {value}", flush=True)
            if step % a.save_every == 0:
                save(a.out, step, value)
    if rank == 0:
        print(f"training finished with {value}", flush=True)


def beat(out, rank):
    try:
        return int((out / f"beat-{rank}").read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def launch(a):
    for file in a.out.glob("beat-*"):
        file.unlink()
    ranks = []
    for rank in range(a.ranks):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(a.ranks)}
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env, start_new_session=True))
    if a.leave:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(ranks[0].wait())


a = arguments()
if a.ranks and "RANK" not in os.environ:
    a.out.mkdir(parents=True, exist_ok=True)
    launch(a)
else:
    train(a, int(os.environ.get("RANK", "0")))
