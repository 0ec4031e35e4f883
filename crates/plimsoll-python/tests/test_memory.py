"""How much memory there is, from recorded trees, and what that changes."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fixture import DataCase, stream

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
