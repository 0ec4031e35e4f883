"""Ranks that share a loader and lose each other: killed, late, stopped, interrupted. The stream stays, and nothing is left behind."""

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from plain import digest
from ranks import WAIT_S, SharedCase, here, names, together

from plimsoll import _loader


class Killed(SharedCase):
    def check(self, world, deed, kind="text", patience=30.0, **more):
        """Takes some steps, lets `deed` do its worst, and sees whether the rest of each rank that is left is as without sharing."""
        more = {"epochs": 2} | more
        expected = self.expected(kind, world, **more)
        ranks = self.ranks(world, kind=kind, patience=patience, **more)
        found = [self.step(ranks) for _ in range(3)]
        left = deed(ranks)
        rest = together([lambda rank=rank: rank.ask("all") for rank in left])
        for rank, tail in zip(left, rest):
            number = ranks.index(rank)
            self.assertEqual([step[number] for step in found] + tail, expected[number])
        return left

    def test_the_others_go_on_when_the_leader_is_killed(self):
        def kill(ranks):
            leader = next(rank for rank in ranks if rank.ask("leads"))
            leader.kill()
            return [rank for rank in ranks if rank is not leader]

        for kind, more in (("text", {"packed": True, "max_len": 32, "batch_size": 1}), ("pairs", {"batch_size": 2})):
            self.check(3, kill, kind, **more)

    def test_those_who_are_left_share_again(self):
        ranks = self.ranks(4, epochs=None)
        self.step(ranks)
        for _ in range(3):
            leader = next(rank for rank in ranks if rank.ask("leads"))
            leader.kill()
            ranks.remove(leader)
            # More rounds than a ring holds: the dead are not waited for.
            for _ in range(8):
                self.step(ranks)
            self.assertEqual(sorted(rank.ask("leads") for rank in ranks), [False] * (len(ranks) - 1) + [True])

    def test_the_others_go_on_when_a_follower_is_killed(self):
        def kill(ranks):
            follower = next(rank for rank in ranks if not rank.ask("leads"))
            follower.kill()
            return [rank for rank in ranks if rank is not follower]

        self.check(3, kill, batch_size=2)

    def test_a_leader_that_closes_its_loader_goes_on_and_so_do_the_others(self):
        def close(ranks):
            leader = next(rank for rank in ranks if rank.ask("leads"))
            leader.ask("close")
            return ranks

        # It is some rounds behind the others then, which do not come to where it is.
        self.check(3, close, batch_size=2, patience=0.2)

    def test_a_fork_of_a_rank_goes_on_by_itself_and_is_not_waited_for(self):
        def fork(ranks):
            for rank, expected in zip(ranks, self.expected("text", 3, batch_size=2, epochs=1)):
                self.assertEqual(rank.ask("child"), expected[3:])
            return ranks

        self.check(3, fork, batch_size=2, epochs=1, patience=3600.0)

    def test_a_fork_of_a_killed_process_does_not_keep_the_others_waiting(self):
        forked = []

        def fork_and_kill(ranks):
            leader = next(rank for rank in ranks if rank.ask("leads"))
            follower = next(rank for rank in ranks if rank is not leader)
            for rank in (leader, follower):
                forked.append(rank.ask("fork"))
                rank.kill()
            return [rank for rank in ranks if rank not in (leader, follower)]

        self.check(4, fork_and_kill, batch_size=2)
        # They live, and hold what their parents had.
        self.assertNotEqual(names(), [])
        for child in forked:
            watch = os.pidfd_open(child)
            os.kill(child, signal.SIGKILL)
            select.select([watch], [], [], WAIT_S)
            os.close(watch)

    def test_kills_at_any_moment_leave_nothing_and_change_nothing(self):
        draw = random.Random(3)
        expected = self.expected("text", 3, batch_size=1, epochs=6)
        with tempfile.TemporaryDirectory() as own_tmp, mock.patch.dict(os.environ, {"TMPDIR": own_tmp}):
            before = [sorted(os.listdir(path)) for path in (self.dir, "/dev/shm")]
            for _ in range(6):
                ranks = self.ranks(3, batch_size=1, epochs=6)
                steps = draw.randint(0, 40)
                head = [self.step(ranks) for _ in range(steps)]
                victim = draw.choice(ranks)
                left = [rank for rank in ranks if rank is not victim]
                # The others ask for rounds while it ends, and so does it.
                for rank in ranks:
                    rank.tell("all")
                victim.kill()
                for rank in left:
                    number = ranks.index(rank)
                    self.assertEqual([step[number] for step in head] + rank.hear(), expected[number], steps)
                for rank in ranks:
                    rank.end()
                self.assertEqual(names(), [])
                self.assertEqual(os.listdir(own_tmp), [])
            self.assertEqual([sorted(os.listdir(path)) for path in (self.dir, "/dev/shm")], before)


class Late(SharedCase):
    def test_a_rank_that_never_comes_is_left_out_and_has_its_stream_later(self):
        expected = self.expected("text", 3, epochs=2)
        ranks = self.ranks(3, epochs=2, patience=0.2)
        found = together([lambda rank=rank: rank.ask("all") for rank in ranks[:2]])
        self.assertEqual(found, expected[:2])
        self.assertEqual(ranks[2].ask("all"), expected[2])

    def test_a_rank_that_stops_taking_is_left_out_and_goes_on_alone(self):
        for stopped in ("leader", "follower"):
            expected = self.expected("text", 3, batch_size=2)
            ranks = self.ranks(3, batch_size=2, patience=0.2)
            first = self.step(ranks)
            slow = next(rank for rank in ranks if rank.ask("leads") == (stopped == "leader"))
            others = [rank for rank in ranks if rank is not slow]
            rest = together([lambda rank=rank: rank.ask("all") for rank in others])
            for rank, tail in zip([*others, slow], [*rest, slow.ask("all")]):
                number = ranks.index(rank)
                self.assertEqual([first[number], *tail], expected[number])

    def test_who_goes_on_alone_is_told_so(self):
        loader = self.plain("text", 0, 2, batch_size=2)
        with mock.patch.object(_loader, "_PATIENCE_S", 0.2):
            batches = [digest(batch) for batch in loader]
        self.assertEqual(batches, self.expected("text", 2, batch_size=2)[0])
        lead = self.plain("text", 0, 2, batch_size=2)
        late = self.plain("text", 1, 2, batch_size=2)
        with mock.patch.object(_loader, "_PATIENCE_S", 0.2):
            taken = iter(lead)
            for _ in range(8):
                next(taken)
        with self.assertWarnsRegex(RuntimeWarning, "rank 1 reads and tokenises by itself .* went on without it"):
            found = [digest(batch) for batch in late]
        self.assertEqual(found, self.expected("text", 2, batch_size=2)[1])
        lead.close()


class Interrupted(SharedCase):
    def test_ctrl_c_ends_the_wait_for_a_leader_that_does_nothing(self):
        ranks = self.ranks(2, epochs=None, prefetch=1)
        self.step(ranks)
        leader, follower = sorted(ranks, key=lambda rank: not rank.ask("leads"))
        leader.process.send_signal(signal.SIGSTOP)
        follower.tell("all")
        # It takes what is there and then waits; wherever the signal finds it, it ends.
        follower.process.send_signal(signal.SIGINT)
        self.assertEqual(follower.hear(), "interrupted")
        leader.process.send_signal(signal.SIGCONT)

    def test_handlers_of_signals_run_while_a_batch_is_waited_for(self):
        script = (
            "import os, signal, sys\n"
            "from plain import Plain\n"
            "signal.signal(signal.SIGUSR1, lambda *_: print('noticed', flush=True))\n"
            "loader = Plain(sys.argv[1], tokenizer=sys.argv[2], max_len=8, batch_size=2, kind=sys.argv[3])\n"
            "os.rename(sys.argv[1], sys.argv[1] + '.old')\n"
            "os.mkfifo(sys.argv[1])\n"
            "print('waits', flush=True)\n"
            "try: list(loader)\n"
            "except Exception: print('failed', flush=True)\n"
        )
        for kind in ("text", "pairs"):
            path = self.dir / f"{kind}.jsonl"
            command = [sys.executable, "-c", script, str(path), str(self.model), kind]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=here())
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "waits\n")
            # A loader's thread waits in opening the pipe for somebody to write, and the main thread for a batch.
            while "loader-0\n" not in self.comms(process.pid):
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGUSR1)
            self.assertEqual(process.stdout.readline(), "noticed\n")
            with path.open("wb"):
                self.assertEqual(process.stdout.readline(), "failed\n")
            self.assertEqual(process.wait(WAIT_S), 0)

    def comms(self, pid):
        return [(task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]


class Apart(SharedCase):
    """Ranks that do not find or do not see each other."""

    def test_a_rank_that_never_comes_is_told_of_and_left_out(self):
        expected = self.expected("text", 3)[0]
        with mock.patch.object(_loader, "_PATIENCE_S", 0.5), self.assertLogs("plimsoll", "WARNING") as told:
            found = [digest(batch) for batch in self.plain("text", 0, 3)]
        self.assertEqual(found, expected)
        self.assertEqual(len(told.output), 1, told.output)
        self.assertIn("waiting for rank 1, 2 of this node, which did not come to share a loader; after 0.5 seconds", told.output[0])

    def test_ranks_in_namespaces_of_processes_of_their_own_share_and_lose_each_other(self):
        apart = ["unshare", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no namespaces of processes may be made here")
        # In these the parents are not seen, either.
        env = os.environ | {"TORCHELASTIC_RUN_ID": "apart"}
        expected = self.expected("text", 3, epochs=3)
        # Who has no number here is waited for in each pass, though it has ended in the one before.
        ranks = self.ranks(3, by=apart, env=env, epochs=3, patience=2.0)
        found = [self.step(ranks) for _ in range(2)]
        self.assertEqual(sorted(rank.ask("leads") for rank in ranks), [False, False, True])
        # One leader after the other ends; its line tells.
        for _ in range(2):
            leader = next(rank for rank in ranks if rank is not None and rank.ask("leads"))
            leader.kill()
            ranks[ranks.index(leader)] = None
            left = [number for number, rank in enumerate(ranks) if rank is not None]
            # More rounds than a ring holds.
            for _ in range(4):
                step = self.step([ranks[number] for number in left])
                found.append([step[left.index(number)] if number in left else None for number in range(3)])
        for number, rank in enumerate(ranks):
            if rank is not None:
                self.assertEqual([step[number] for step in found] + rank.ask("all"), expected[number])
