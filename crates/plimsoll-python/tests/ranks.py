"""Processes and threads that are ranks of one node."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

from fixture import DataCase
from plain import Plain, digest

WAIT_S = 120
KINDS = (("text", {}), ("text", {"packed": True}), ("text", {"max_len": 5}), ("chat", {}), ("pairs", {}))


def here():
    """The environment in which our own modules are found."""
    ours = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(ours)}


def names():
    """Meeting points of plimsoll on this machine."""
    return [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@plimsoll-" in line]


class Rank:
    """A process that takes batches as it is told."""

    def __init__(self, case, files, *, patience=30.0, state=None, by=(), env=None, **settings):
        script = Path(__file__).with_name("plain.py")
        self.process = subprocess.Popen(
            [*by, sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=env
        )
        case.addCleanup(self.end)
        self.tell(json.dumps({"files": str(files), "settings": settings, "patience": patience, "state": state}))

    def tell(self, order):
        self.process.stdin.write(order + "\n")

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"a rank ended with {self.process.wait(WAIT_S)}")
        return json.loads(line)

    def ask(self, order):
        self.tell(order)
        return self.hear()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(WAIT_S)
        self.process.stdin.close()
        self.process.stdout.close()


def together(deeds):
    """What each deed gives, all at the same time."""
    found = [None] * len(deeds)

    def run(number):
        try:
            found[number] = deeds[number]()
        except BaseException as error:  # noqa: BLE001
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(deeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


class SharedCase(DataCase):
    def setUp(self):
        super().setUp()
        self.assertEqual(names(), [])
        self.addCleanup(lambda: self.assertEqual(names(), []))
        # A rank that goes on alone where it should not is a fault.
        held = warnings.catch_warnings()
        held.__enter__()
        self.addCleanup(held.__exit__, None, None, None)
        warnings.simplefilter("error", RuntimeWarning)
        # What is waited for is told to nobody, unless a test asks.
        logger, nobody = logging.getLogger("plimsoll"), logging.NullHandler()
        logger.addHandler(nobody)
        self.addCleanup(logger.removeHandler, nobody)

    def settings(self, rank, world, **more):
        wanted = dict(tokenizer=str(self.model), kind="text", max_len=16, batch_size=4, threads=2, shared=True)
        return wanted | dict(rank=rank, world_size=world) | more

    def plain(self, kind, rank, world, **more):
        return Plain(self.dir / f"{kind}.jsonl", **self.settings(rank, world, kind=kind, **more))

    def ranks(self, world, **more):
        kind = more.pop("kind", "text")
        process = {name: more.pop(name) for name in ("patience", "state", "by", "env") if name in more}
        file = self.dir / f"{kind}.jsonl"
        return [Rank(self, file, **process, **self.settings(r, world, kind=kind, **more)) for r in range(world)]

    def expected(self, kind, world, **more):
        """What each rank has without sharing."""
        more = more | {"shared": False}
        return [[digest(batch) for batch in self.plain(kind, rank, world, **more)] for rank in range(world)]

    def step(self, ranks):
        """Each takes a batch, all at the same time."""
        for rank in ranks:
            rank.tell("next")
        return [rank.hear() for rank in ranks]
