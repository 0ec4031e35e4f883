"""Ranks of one node that share a loader: the same stream, whoever is killed, and nothing left behind."""

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from unittest import mock

from fixture import DataCase
from plain import Plain, digest

from plimsoll import _loader, _node

WAIT_S = 120
KINDS = (("text", {}), ("text", {"packed": True}), ("text", {"max_len": 5}), ("chat", {}), ("pairs", {}))


def names():
    """Meeting points of plimsoll on this machine."""
    return [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@plimsoll-" in line]


class Rank:
    """A process that takes batches as it is told."""

    def __init__(self, case, files, *, patience=30.0, state=None, **settings):
        script = Path(__file__).with_name("plain.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
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

    def settings(self, rank, world, **more):
        wanted = dict(tokenizer=str(self.model), kind="text", max_len=16, batch_size=4, threads=2, shared=True)
        return wanted | dict(rank=rank, world_size=world) | more

    def plain(self, kind, rank, world, **more):
        return Plain(self.dir / f"{kind}.jsonl", **self.settings(rank, world, kind=kind, **more))

    def ranks(self, world, **more):
        kind = more.pop("kind", "text")
        process = {name: more.pop(name) for name in ("patience", "state") if name in more}
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


class Stream(SharedCase):
    def test_each_rank_has_the_bytes_that_it_has_without_sharing(self):
        for kind, settings in KINDS:
            for world in (1, 2, 5):
                for drop_last in (False, True):
                    more = settings | {"drop_last": drop_last, "epochs": 2}
                    loaders = [self.plain(kind, rank, world, **more) for rank in range(world)]
                    take = [lambda loader=loader: [digest(batch) for batch in loader] for loader in loaders]
                    self.assertEqual(together(take), self.expected(kind, world, **more), (kind, world, more))

    def test_each_rank_of_a_node_has_its_own_of_all_nodes(self):
        for kind, settings in KINDS:
            more = settings | {"batch_size": 3}
            loaders = [self.plain(kind, r, 6, local_rank=r % 2, local_world_size=2, **more) for r in range(6)]
            take = [lambda loader=loader: [digest(batch) for batch in loader] for loader in loaders]
            self.assertEqual(together(take), self.expected(kind, 6, **more), (kind, settings))

    def test_a_state_goes_on_with_any_number_of_ranks_shared_or_not(self):
        draw = random.Random(5)
        for kind, settings in KINDS:
            whole = self.expected(kind, 1, **settings)[0]
            for before, after in ((2, 5), (5, 2), (2, 1), (1, 5)):
                steps = draw.randint(1, len(whole) // before // 2)
                first = [self.plain(kind, rank, before, **settings) for rank in range(before)]

                def head(loader):
                    batches = iter(loader)
                    found = [digest(next(batches)) for _ in range(steps)]
                    return found, loader.state_dict()

                heads = together([lambda loader=loader: head(loader) for loader in first])
                states = [state for _, state in heads]
                self.assertEqual(states, [states[0]] * before)
                self.assertEqual([one for one, _ in heads], [whole[: before * steps][rank::before] for rank in range(before)])
                then = [self.plain(kind, rank, after, **settings) for rank in range(after)]
                for loader in then:
                    loader.load_state_dict(states[0])
                rest = together([lambda loader=loader: [digest(batch) for batch in loader] for loader in then])
                self.assertEqual(rest, [whole[before * steps :][rank::after] for rank in range(after)], (kind, before, after))
                for loader in first:
                    loader.close()

    def test_only_one_process_reads_and_tokenises(self):
        ranks = self.ranks(3, epochs=None)
        self.step(ranks)
        self.assertEqual(sorted(rank.ask("leads") for rank in ranks), [False, False, True])
        for rank in ranks:
            loading = [name for name in rank.ask("threads") if name.startswith(("loader-", "plimsoll-"))]
            self.assertEqual(loading, ["loader-0", "loader-1", "plimsoll-lead"] if rank.ask("leads") else [])

    def test_a_batch_that_is_kept_does_not_change_and_holds_nobody_up(self):
        def keep(loader):
            kept = list(loader)
            return [digest(batch) for batch in kept]

        loaders = [self.plain("text", rank, 2, epochs=3, prefetch=1) for rank in range(2)]
        found = together([lambda loader=loader: keep(loader) for loader in loaders])
        self.assertEqual(found, self.expected("text", 2, epochs=3))

    def test_two_loaders_of_the_same_data_do_not_meet_in_one_seat(self):
        loaders = [self.plain("text", rank, 2) for rank in (0, 1, 0, 1)]
        take = [lambda loader=loader: [digest(batch) for batch in loader] for loader in loaders]
        self.assertEqual(together(take), self.expected("text", 2) * 2)

    def test_an_error_of_the_data_is_the_same_in_each_rank(self):
        for rank in (0, 1):
            with self.assertRaisesRegex(FileNotFoundError, "expected a tokenizer.json"):
                self.plain("text", rank, 2, tokenizer=str(self.dir))
        loaders = [self.plain("text", rank, 2) for rank in range(2)]
        (self.dir / "text.jsonl").unlink()

        def fail(loader):
            with self.assertRaises(FileNotFoundError):
                list(loader)
            return "failed"

        for _ in range(2):
            self.assertEqual(together([lambda loader=loader: fail(loader) for loader in loaders]), ["failed"] * 2)


class Killed(SharedCase):
    def check(self, world, deed, kind="text", **more):
        """Takes some steps, lets `deed` do its worst, and sees whether the rest of each rank that is left is as without sharing."""
        more = {"epochs": 2} | more
        expected = self.expected(kind, world, **more)
        ranks = self.ranks(world, kind=kind, **more)
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
            left = [rank for rank in ranks if rank is not leader]
            return left

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


class Memory(SharedCase):
    rows, vocabulary, step_count = 24_000, 50_000, 12

    def test_four_ranks_hold_one_loader(self):
        draw = random.Random(1)
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        first = max(tokenizer["model"]["vocab"].values()) + 1
        tokenizer["model"]["vocab"] |= {f"token{i}": first + i for i in range(self.vocabulary)}
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        (self.model / "config.json").unlink()
        self.write("text", lambda i: {"text": " ".join(f"token{draw.randrange(self.vocabulary)}" for _ in range(200))})
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        bytes_of_file = (self.dir / "text.jsonl").stat().st_size
        found = {}
        idle = [subprocess.Popen([sys.executable, "-c", "import plain; print(flush=True); input()"], env=env, text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
        for process in idle:
            process.stdout.readline()
        before = sum(self.pss(process) for process in idle)
        for process in idle:
            process.communicate("\n")
        for shared in (False, True):
            ranks = self.ranks(4, max_len=512, batch_size=8, packed=True, shared=shared)
            taken = [self.step(ranks) for _ in range(self.step_count)]
            found[shared] = sum(self.pss(rank.process) for rank in ranks) - before, taken
            for rank in ranks:
                rank.end()
        self.assertEqual(found[True][1], found[False][1])
        each, one = found[False][0] >> 20, found[True][0] >> 20
        print(
            f"\n4 ranks and a file of {bytes_of_file >> 20} MiB: the processes take {before >> 20} MiB (PSS), a loader in each "
            f"{each} MiB more, one that they share {one} MiB more", flush=True,
        )
        self.assertLess(found[True][0], found[False][0] / 2)

    def pss(self, process):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no Pss in smaps_rollup")


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
            env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
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


class Lies(SharedCase):
    """Somebody of our own user at the meeting point who does not speak as we do."""

    MARK, SLOTS, PUBLISHED = 0, 2, 5

    def host(self, loader, answer):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(f"\0plimsoll-{os.geteuid()}-{loader._key()}-0")
        server.listen(4)
        line = []

        def serve():
            caller, _ = server.accept()
            line.append(caller)
            caller.recv(64)
            answer(caller)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return server, line, thread

    def ring(self, loader, *, slots=2, seals=True, short=0, **words):
        """A ring of two seats whose header says what is given."""
        import fcntl

        s = loader._settings
        tokens = s["batch_size"] * (s["source_len"] + s["target_len"])
        seat_words = 4 + 2 * s["batch_size"] + tokens
        header = [int.from_bytes(b"plimrng1", "little"), 2, slots, seat_words, *([0] * 10)]
        for word, value in words.items():
            header[int(word[1:])] = value
        file = os.memfd_create("lie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = len(header) * 8 + slots * (8 + 2 * seat_words) * 4
        os.ftruncate(file, size - short)
        os.pwrite(file, struct.pack(f"{len(header)}Q", *header), 0)
        return file, len(header) * 8, (lambda: fcntl.fcntl(file, fcntl.F_ADD_SEALS, 7 if seals else 2))

    def test_a_rank_believes_nobody_and_has_its_stream(self):
        expected = self.expected("text", 2)[1]
        made = self.plain("text", 1, 2)

        def offer(file, first=0, content=b""):
            def answer(caller):
                if content:
                    os.pwrite(file, content, first)
                socket.send_fds(caller, [b"w"], [file])
            return answer

        def place(*numbers):
            return struct.pack("4Q", *numbers)

        seat_words = 4 + 2 * 4 + 4 * 30
        lies = {
            "speaks otherwise": lambda caller: caller.send(b"hello"),
            "no memory": lambda caller: caller.send(b"w"),
            "too late": lambda caller: caller.send(b"l"),
        }
        for name, (short, words, seals) in {
            "not sealed": (0, {}, False), "too short": (4, {}, True), "another mark": (0, {"w0": 1}, True),
            "other seats": (0, {"w1": 3}, True), "other slots": (0, {"w2": 9}, True), "other words": (0, {"w3": 9}, True),
        }.items():
            file, _, seal = self.ring(made, short=short, seals=seals, **words)
            self.addCleanup(os.close, file)
            seal()
            lies[name] = offer(file)
        # Rounds that cannot be: 4 samples of at most 15 rows.
        rounds = {
            "more documents than there can be": [9, 1, 1, 1, *([1] * 9), 1, 5, 5],
            "more samples than there can be": [1, 9, 1, 1],
            "more words than there are": [1, 1, 2**32 - 1, 1],
            "lengths that are not of the rows": [1, 1, 3, 3, 2, 2, 5, 6, 7, 5, 6, 7],
            "a sample of no rows": [1, 2, 1, 1, 1, 1, 0, 5, 5],
            "a sample longer than planned": [1, 1, 16, 16, 16, 16, *range(32)],
            "a document across two samples": [1, 2, 4, 4, 4, 2, 2, *range(8)],
        }
        for name, part in rounds.items():
            file, header, seal = self.ring(made, w5=1)
            self.addCleanup(os.close, file)
            part = struct.pack(f"{len(part)}I", *part)
            body = place(0, 4, 0, 0) + bytes(4 * seat_words) + part
            seal()
            lies[name] = offer(file, header, body)
        good = struct.pack("8I", 1, 1, 1, 1, 1, 1, 5, 5)
        for name, where in (("another pass", (1, 4, 0, 0)), ("behind the data", (0, 98, 0, 0))):
            file, header, seal = self.ring(made, w5=1)
            self.addCleanup(os.close, file)
            seal()
            lies[name] = offer(file, header, place(*where) + bytes(4 * seat_words) + good)
        for name, answer in lies.items():
            loader = self.plain("text", 1, 2)
            server, line, thread = self.host(loader, answer)
            try:
                with self.assertWarnsRegex(RuntimeWarning, "rank 1 reads and tokenises by itself", msg=name):
                    found = [digest(batch) for batch in loader]
                self.assertEqual(found, expected, name)
            finally:
                thread.join(WAIT_S)
                for caller in line:
                    caller.close()
                server.close()

    def test_a_host_that_hangs_up_is_followed_by_a_better_one(self):
        loader = self.plain("text", 1, 2)
        server, line, thread = self.host(loader, lambda caller: (caller.close(), server.close()))
        with mock.patch.object(_loader, "_PATIENCE_S", 0.2):
            found = [digest(batch) for batch in loader]
        thread.join(WAIT_S)
        self.assertEqual(found, self.expected("text", 2)[1])


class Found(SharedCase):
    """Which ranks are on this node."""

    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}

    def test_auto_believes_an_environment_that_means_these_ranks(self):
        found = _node.find("auto", 5, 8, None, None, self.torchrun)
        self.assertEqual(found, _node.Node(1, 4))
        self.assertIsNone(_node.find("auto", 2, 4, None, None, self.torchrun))
        self.assertIsNone(_node.find("auto", 5, 8, None, None, {}))
        self.assertIsNone(_node.find("auto", 5, 8, None, None, self.torchrun | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}))
        self.assertIsNone(_node.find("auto", 5, 8, None, None, self.torchrun | {"LOCAL_WORLD_SIZE": "3"}))
        self.assertIsNone(_node.find(False, 5, 8, None, None, self.torchrun))
        self.assertIsNone(_node.find(True, 0, 1, None, None, {}))

    def test_without_a_word_all_ranks_are_on_one_node(self):
        self.assertEqual(_node.find(True, 5, 8, None, None, {}), _node.Node(5, 8))
        self.assertEqual(_node.find(True, 5, 8, None, None, self.torchrun), _node.Node(1, 4))
        self.assertEqual(_node.find(True, 5, 8, 1, 2, self.torchrun), _node.Node(1, 2))

    def test_ranks_that_cannot_be_are_refused(self):
        with self.assertRaisesRegex(ValueError, "`shared` is `yes`"):
            self.plain("text", 0, 2, shared="yes")
        with self.assertRaisesRegex(ValueError, "given together"):
            self.plain("text", 0, 2, local_rank=0)
        for local in ((0, 3), (2, 2), (1, 2)):
            with self.assertRaisesRegex(ValueError, "all nodes must have as many ranks"):
                self.plain("text", 0, 4, local_rank=local[0], local_world_size=local[1])

    def test_jobs_are_told_apart(self):
        one = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}
        self.assertNotEqual(_node.job(one), _node.job(one | {"MASTER_PORT": "2"}))
        self.assertNotEqual(_node.job(one), _node.job(one | {"TORCHELASTIC_RESTART_COUNT": "1"}))
        self.assertEqual(_node.job({}), _node.job({}))
