"""Ranks of one node that share a loader: the same stream, in less memory."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

from plain import digest
from ranks import KINDS, SharedCase, here, together

from plimsoll import _node


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

    def test_ranks_in_step_go_over_the_end_of_a_pass(self):
        # 97 rows: in each pass the first rank has one batch more, and has it while the others are in the next pass.
        expected = self.expected("text", 3, batch_size=1, epochs=2)
        ranks = self.ranks(3, batch_size=1, epochs=2, patience=3600.0)
        steps = [self.step(ranks) for _ in range(40)]
        self.assertEqual([list(one) for one in zip(*steps)], [one[:40] for one in expected])


class Memory(SharedCase):
    rows, vocabulary, step_count = 24_000, 50_000, 12

    def test_four_ranks_hold_one_loader(self):
        draw = random.Random(1)
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        first = max(tokenizer["model"]["vocab"].values()) + 1
        tokenizer["model"]["vocab"] |= {f"token{i}": first + i for i in range(self.vocabulary)}
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        (self.model / "config.json").unlink()
        tokens = [f"token{i}" for i in range(self.vocabulary)]
        self.write("text", lambda i: {"text": " ".join(draw.choices(tokens, k=200))})
        bytes_of_file = (self.dir / "text.jsonl").stat().st_size
        found = {}
        idle = [subprocess.Popen([sys.executable, "-c", "import plain; print(flush=True); input()"], env=here(), text=True,
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

    def test_auto_shares_where_all_ranks_have_as_many_batches(self):
        with mock.patch.dict(os.environ, self.torchrun):
            self.assertEqual(self.plain("text", 5, 8, shared="auto", drop_last=True)._node, _node.Node(1, 4))
            self.assertIsNone(self.plain("text", 5, 8, shared="auto")._node)

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
