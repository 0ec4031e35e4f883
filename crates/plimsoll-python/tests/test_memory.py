"""How much memory there is, from recorded trees, and what that changes."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fixture import DataCase, stream, words

import plimsoll
from plimsoll import _loader, _memory

MIB = 1 << 20


class Usable(unittest.TestCase):
    def tree(self, files):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        for name, text in files.items():
            path = Path(held.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Path(held.name)

    def test_it_is_the_least_of_machine_and_cgroups(self):
        machine = {"proc/meminfo": "MemTotal: 999999 kB\nMemAvailable:    102400 kB\n"}
        self.assertEqual(_memory.usable(self.tree(machine)), 100 * MIB)
        own = machine | {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}
        self.assertEqual(_memory.usable(self.tree(own)), 100 * MIB)
        around = own | {
            "sys/fs/cgroup/a/memory.max": f"{80 * MIB}\n", "sys/fs/cgroup/a/memory.current": f"{50 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {20 * MIB}\n",
        }
        self.assertEqual(_memory.usable(self.tree(around)), 50 * MIB)
        high = around | {
            "sys/fs/cgroup/a/b/memory.high": f"{10 * MIB}\n", "sys/fs/cgroup/a/b/memory.current": f"{30 * MIB}\n",
        }
        self.assertEqual(_memory.usable(self.tree(high)), 0)
        self.assertIsNone(_memory.usable(self.tree({})))

    def test_this_machine_says_how_much(self):
        self.assertGreater(_memory.usable(), 0)


class PageCache(DataCase):
    def test_half_of_it_may_hold_pages_unless_it_is_said(self):
        asked = []

        def data(*args):
            asked.append(args[3])
            return made(*args)

        made = _loader._plimsoll.Data
        with mock.patch.object(_memory, "usable", lambda: 1000), mock.patch.object(_loader._plimsoll, "Data", data):
            whole = stream(self.loader())
            self.assertEqual(stream(self.loader(page_cache=0)), whole)
        self.assertEqual(asked, [500, 0])
        with self.assertRaisesRegex(ValueError, "`page_cache` is -1"):
            self.loader(page_cache=-1)


# A process that takes two batches and says whether it made them, and by how much its memory grew meanwhile. Batches are not kept.
TAKER = """
import json, sys
from pathlib import Path
import plimsoll

class Bare(plimsoll.DataLoader):
    def _tensors(self, batch):
        return batch.parts

def now(name):
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return next(int(line[1]) << 10 for line in lines if line[0] == name + ":")

loader = Bare(**json.loads(sys.argv[1]))
before, batches = now("VmRSS"), iter(loader)
for _ in range(2):
    next(batches)
print(json.dumps([loader._pass[2].leads, now("VmHWM") - before]), flush=True)
sys.stdin.read()
"""


class Ceiling(DataCase):
    """Batches of half a million tokens, beside which all else is small."""

    def setUp(self):
        super().setUp()
        lines = [words(i, 250) + "\n" for i in range(97)]
        (self.dir / "long.txt").write_text("".join(lines[i % 97] for i in range(9000)))
        self.wanted = dict(
            files=str(self.dir / "long.txt"), tokenizer=str(self.model), max_len=256, batch_size=2048, threads=1, prefetch=1,
            long="cut", drop_last=True,
        )

    def least(self, **more):
        """The smallest `memory` that is taken."""
        memory = 16 << 20
        while True:
            try:
                loader = plimsoll.DataLoader(**self.wanted, **more, memory=memory)
                loader._running()
                loader.close()
                return memory
            except ValueError as told:
                needed = int(re.search(r"one thread takes (\d+) ", str(told))[1])
                # More memory is a larger window, up to all rows.
                self.assertGreater(needed, memory)
                memory = needed

    def grown(self, ranks):
        """What processes with these settings say when all have their batches."""
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TAKER, json.dumps(self.wanted | rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for rank in ranks
        ]
        try:
            return [json.loads(process.stdout.readline()) for process in processes]
        finally:
            for process in processes:
                process.communicate()

    def test_a_pass_stays_below_it_with_its_slot_and_its_batch(self):
        memory = self.least()
        ((leads, grown),) = self.grown([{"memory": memory}])
        self.assertFalse(leads)
        self.assertLessEqual(grown, memory + ROUGH)
        # Slot and batch: two and four words a position.
        self.assertGreater(memory, 2048 * 255 * 2 * 4 + 2048 * 256 * 4 * 8)

    def test_a_leader_stays_below_it_with_the_ring_of_its_node(self):
        node = [dict(rank=rank, world_size=2, shared=True) for rank in range(2)]
        memory = self.least(**node[0])
        for leads, grown in self.grown([rank | {"memory": memory} for rank in node]):
            self.assertLessEqual(grown, memory + ROUGH, "leader" if leads else "follower")


# What Python and the allocator take meanwhile.
ROUGH = 6 << 20
