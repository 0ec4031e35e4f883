"""What comes, in which order, and from where again."""

import gzip
import json
import os
import pickle
import random
from collections import Counter
from unittest import mock

from fixture import EOS, FIRST, DataCase, ids, plain, stream, words

import plimsoll


class Epoch(DataCase):
    def test_a_pass_over_texts_is_the_file(self):
        found = Counter()
        for batch in self.loader():
            for line, mask in zip(batch["input_ids"], batch["attention_mask"]):
                found[tuple(line[mask == 1].tolist())] += 1
        self.assertEqual(found, Counter(ids(i, 1 + i % 13) + (EOS,) for i in range(self.rows)))

    def test_a_packed_pass_over_texts_is_the_file(self):
        found = Counter()
        for batch in self.loader(packed=True):
            self.assertNotIn("attention_mask", batch)
            inputs, starts = batch["input_ids"].flatten().tolist(), batch["cu_seqlens"].tolist()
            self.assertEqual(starts[-1], len(inputs))
            # A document begins with one of our words; padding does not.
            for start, end in zip(starts, starts[1:]):
                if inputs[start] >= FIRST:
                    found[tuple(token for token in inputs[start:end] if token != EOS)] += 1
                self.assertEqual(batch["position_ids"].flatten()[start:end].tolist(), list(range(end - start)))
        self.assertEqual(found, Counter(ids(i, 1 + i % 13) for i in range(self.rows)))

    def test_a_pass_over_pairs_is_the_file(self):
        found = Counter()
        for batch in self.loader("pairs"):
            for line, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
                found[tuple(line[mask == 1].tolist()), tuple(labels[labels != -100].tolist())] += 1
        expected = [(ids(i, 1 + i % 5) + (EOS,), ids(i + 7, 1 + i % 3) + (EOS,)) for i in range(self.rows)]
        self.assertEqual(found, Counter(expected))

    def test_a_pass_over_chats_is_the_file_with_labels_on_the_answers(self):
        found = Counter()
        for batch in self.loader("chat"):
            for line, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
                trained = labels != -100
                self.assertEqual(labels[trained].tolist(), line[trained].tolist())
                found[tuple(line[mask == 1].tolist()), tuple(labels[trained].tolist())] += 1
        user, assistant, end = 3, 4, 5
        expected = Counter()
        for i in range(self.rows):
            answer = ids(i + 3, 1 + i % 6) + (end,)
            expected[(user, *ids(i, 1 + i % 4), end, assistant, *answer), answer] += 1
        self.assertEqual(found, expected)

    def test_long_texts_are_split_or_cut(self):
        split, cut = Counter(), Counter()
        for how, found in (("split", split), ("cut", cut)):
            for batch in self.loader(max_len=6, long=how):
                self.assertLessEqual(batch["input_ids"].shape[1], 6)
                found.update(batch["labels"][batch["labels"] != -100].tolist())
        # All but the first token of each text is trained once.
        expected = Counter(token for i in range(self.rows) for token in (ids(i, 1 + i % 13) + (EOS,))[1:])
        self.assertEqual(split, expected)
        self.assertLess(sum(cut.values()), sum(split.values()))

    def test_pairs_that_are_too_long_are_left_out(self):
        found = Counter()
        loader = self.loader("pairs", max_len=5, max_target_len=3, long="drop")
        for batch in loader:
            for line, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
                found[tuple(line[mask == 1].tolist()), tuple(labels[labels != -100].tolist())] += 1
        kept = [i for i in range(self.rows) if 1 + i % 5 < 5 and 1 + i % 3 < 3]
        expected = [(ids(i, 1 + i % 5) + (EOS,), ids(i + 7, 1 + i % 3) + (EOS,)) for i in kept]
        self.assertEqual(found, Counter(expected))
        with self.assertRaisesRegex(TypeError, "dropped"):
            len(loader)

    def test_batches_of_like_length_are_the_same_samples_with_less_padding(self):
        for kind in ("text", "chat", "pairs"):
            padded, samples = [], []
            for grouped in (False, True):
                masks, found = 0, Counter()
                places = 0
                for batch in self.loader(kind, group_by_length=grouped):
                    places += batch["attention_mask"].numel()
                    masks += int(batch["attention_mask"].sum())
                    for line, mask in zip(batch["input_ids"], batch["attention_mask"]):
                        found[tuple(line[mask == 1].tolist())] += 1
                padded.append(1 - masks / places)
                samples.append(found)
            self.assertEqual(samples[0], samples[1])
            self.assertLess(padded[1], padded[0] / 2, kind)

    def test_a_pass_by_length_is_resumed_anywhere_and_has_a_batch_size(self):
        for kind in ("text", "pairs"):
            whole = stream(self.loader(kind, group_by_length=True, epochs=2))
            self.assertEqual(len(whole), len(self.loader(kind, group_by_length=True, long="cut", epochs=2)))
            for batches in range(0, len(whole), 3):
                first = self.loader(kind, group_by_length=True, epochs=2)
                head = stream(first, batches)
                second = self.loader(kind, group_by_length=True, epochs=2, threads=3)
                second.load_state_dict(json.loads(json.dumps(first.state_dict())))
                self.assertEqual(head + stream(second), whole)
            state = first.state_dict()
            for other in (self.loader(kind), self.loader(kind, group_by_length=True, batch_size=4)):
                with self.assertRaisesRegex(ValueError, "another stream: its `batch_size_by_length` is 5"):
                    other.load_state_dict(state)
        old = self.loader().state_dict()
        del old["batch_size_by_length"]
        self.loader().load_state_dict(old)
        with self.assertRaisesRegex(ValueError, "hardly"):
            self.loader(group_by_length=True, packed=True)

    def test_a_mixture_has_each_row_as_often_as_its_weight_says(self):
        other = self.dir / "other.csv"
        other.write_text("body\n" + "".join(f"w{150 + i}\n" for i in range(40)))
        files = [self.dir / "text.jsonl", [other]]
        loader = plimsoll.DataLoader(files, tokenizer=self.model, max_len=16, batch_size=5, weights=[2, 0.25],
                                     columns=["text", {"source": "body"}], long="cut", threads=2)
        self.assertEqual(len(loader), -(-(2 * self.rows + 10) // 5))
        seen = Counter()
        for epoch in range(4):
            found = Counter()
            for batch in loader:
                for line, mask in zip(batch["input_ids"], batch["attention_mask"]):
                    found[tuple(line[mask == 1].tolist())] += 1
            texts = Counter({ids(i, 1 + i % 13) + (EOS,): 2 for i in range(self.rows)})
            rest = found - texts
            self.assertEqual((sum(rest.values()), found - rest), (10, texts))
            seen += rest
        self.assertEqual(seen, Counter(ids(150 + i, 1) + (EOS,) for i in range(40)))
        single = plimsoll.DataLoader(files[0], tokenizer=self.model, max_len=16, batch_size=5, long="cut")
        with self.assertRaisesRegex(ValueError, "`files`"):
            single.load_state_dict(loader.state_dict())
        wrong = dict(tokenizer=self.model, max_len=16, batch_size=5)
        for weights, words in (([1], "2 entries"), ([1, 0], "weight is 0"), ([1, float("nan")], "weight is"),
                               ([1, 0.001], "leaves none")):
            with self.assertRaisesRegex(ValueError, words):
                plimsoll.DataLoader(files, weights=weights, columns=["text", "body"], **wrong)

    def test_a_ceiling_is_kept_by_a_smaller_window_or_refused(self):
        row = lambda i: {"text": words(i, 400_000 + i)}
        (self.dir / "text.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(24)))
        whole, half, small = (self.loader(memory=mib << 20, long="cut", threads=1) for mib in (256, 64, 48))
        windows = [loader.state_dict()["window"] for loader in (whole, half, small)]
        self.assertEqual(windows[0], None)
        self.assertTrue(windows[2] < windows[1] < 24, windows)
        self.assertEqual(len(stream(small)), 5)
        with self.assertRaisesRegex(ValueError, "`memory` is 16777216 bytes, but one thread takes"):
            stream(self.loader(memory=16 << 20, long="cut", oversized="skip"))
        with self.assertRaisesRegex(ValueError, "`memory` is 5"):
            self.loader(memory=5)

    def test_rows_that_are_too_large_are_refused_or_left_out_and_counted(self):
        row = lambda i: {"text": words(i, 1_200_000 if i % 10 == 3 else 5)}
        (self.dir / "text.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(20)))
        with self.assertRaisesRegex(Exception, "line 4: expected at most 4194304 bytes"):
            self.loader(memory=32 << 20)
        loader = self.loader(memory=32 << 20, oversized="skip")
        self.assertEqual((loader.oversized_rows, sum(len(b["input_ids"]) for b in loader)), (2, 18))

    def test_without_shuffle_the_order_is_the_files(self):
        found = [line[0] for batch in self.loader(shuffle=False) for line in batch["input_ids"].tolist()]
        self.assertEqual(found, [ids(i, 1)[0] for i in range(self.rows)])

    def test_each_for_is_the_next_pass_and_epochs_joins_them(self):
        loader = self.loader()
        first, second = stream(loader), stream(loader)
        self.assertNotEqual(first, second)
        self.assertEqual(stream(self.loader(epochs=2)), first + second)
        self.assertEqual(stream(self.loader(epochs=None), len(first) + 3), first + second[:3])

    def test_set_epoch_goes_to_a_pass_and_stays_in_it(self):
        loader = self.loader()
        first, second = stream(loader), stream(loader)
        loader.set_epoch(1)
        self.assertEqual(stream(loader, 4), second[:4])
        loader.set_epoch(1)
        self.assertEqual(stream(loader), second[4:])
        loader.set_epoch(0)
        self.assertEqual(stream(loader), first)

    def test_len_is_the_number_of_batches_where_it_is_known(self):
        for settings in ({}, {"drop_last": True}, {"epochs": 3}, {"batch_size": 97}, {"batch_size": 96, "drop_last": True}):
            for kind, more in (("pairs", {}), ("chat", {}), ("text", {"long": "cut"})):
                loader = self.loader(kind, **settings, **more)
                self.assertEqual(len(loader), len(stream(loader)), (kind, settings))
        for settings in ({"packed": True, "long": "cut"}, {}, {"epochs": None, "long": "cut"}):
            with self.assertRaises(TypeError):
                len(self.loader(**settings))

    def test_widths_are_a_multiple(self):
        for batch in self.loader(pad_to_multiple_of=16):
            self.assertEqual(batch["input_ids"].shape[1], 16)

    def test_a_pass_without_a_full_batch_ends_or_says_so(self):
        self.assertEqual(stream(self.loader(batch_size=98, drop_last=True)), [])
        with self.assertRaisesRegex(ValueError, "no full batch"):
            stream(self.loader(batch_size=98, drop_last=True, epochs=None))

    def test_other_formats_and_patterns_are_read(self):
        (self.dir / "more-1.txt").write_text("w1 w2\nw3\n")
        (self.dir / "more-2.csv").write_text("text,n\nw4 w5,1\n")
        files = [self.dir / "more-*.txt", str(self.dir / "more-2.csv")]
        loader = plimsoll.DataLoader(files, tokenizer=self.model / "tokenizer.json", max_len=8, batch_size=9)
        (batch,) = loader
        self.assertEqual(batch["input_ids"].shape, (3, 3))


    def test_a_chat_template_may_be_given_or_absent(self):
        (self.model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))
        user, assistant = 7, 8
        answer = ids(3, 1)
        plain_chat = next(iter(self.loader("chat", shuffle=False, batch_size=1)))
        self.assertEqual(plain_chat["input_ids"][0].tolist(), [user, *ids(0, 1), assistant, *answer, EOS])
        given = (
            "{% for m in messages %}{% if m.role == 'assistant' %}"
            "{% generation %}{{ m.content }} {{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
        )
        batch = next(iter(self.loader("chat", shuffle=False, batch_size=1, chat_template=given)))
        self.assertEqual(batch["input_ids"][0].tolist(), [*answer, EOS])

    def test_packed_files_are_unpacked_into_a_folder_once(self):
        with gzip.open(self.dir / "text.jsonl.gz", "wb") as file:
            file.write((self.dir / "text.jsonl").read_bytes())
        settings = dict(tokenizer=self.model, max_len=16, batch_size=5, shuffle=False)
        want = stream(self.loader(shuffle=False))
        unpacked = plimsoll.DataLoader(self.dir / "text.jsonl.gz", cache_dir=self.dir / "cache", **settings)
        self.assertEqual(stream(unpacked), want)
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.dir / "home")}):
            self.assertEqual(stream(plimsoll.DataLoader(self.dir / "text.jsonl.gz", **settings)), want)
        frames = [list(folder.glob("*.frames")) for folder in (self.dir / "cache", self.dir / "home/plimsoll/data")]
        self.assertEqual([len(found) for found in frames], [1, 1])

    def test_a_second_start_finds_what_the_first_one_found_out(self):
        lines = [json.dumps({"text": words(i, 1 + i % 13)}) for i in range(40_000)]
        (self.dir / "large.jsonl").write_text("\n".join(lines))
        # What has just changed might change once more without that it shows.
        os.utime(self.dir / "large.jsonl", (0, 1_000_000_000))
        settings = dict(tokenizer=self.model, max_len=16, batch_size=500, cache_dir=self.dir / "cache")
        loader = plimsoll.DataLoader(self.dir / "large.jsonl", **settings)
        first = loader.state_dict()
        kept = sorted((self.dir / "cache/index").iterdir())
        self.assertEqual(len(kept), 2)  # of the column as it was guessed, and by its name
        again = plimsoll.DataLoader(self.dir / "large.jsonl", columns="text", **settings)
        self.assertEqual(again.state_dict(), first)
        self.assertEqual(sorted((self.dir / "cache/index").iterdir()), kept)


class Threads(DataCase):
    def test_the_order_does_not_depend_on_threads_and_prefetch(self):
        for kind, settings in (("text", {}), ("text", {"packed": True}), ("chat", {}), ("pairs", {})):
            first = stream(self.loader(kind, epochs=2, threads=1, prefetch=1, **settings))
            for threads, prefetch in ((2, 3), (7, 1)):
                again = stream(self.loader(kind, epochs=2, threads=threads, prefetch=prefetch, **settings))
                self.assertEqual(first, again, (kind, settings, threads))

    def test_names_of_torch_are_threads(self):
        first = stream(self.loader())
        again = self.loader(
            threads=None, num_workers=3, prefetch_factor=4, persistent_workers=True, pin_memory=True
        )
        self.assertEqual((again._settings["threads"], again._settings["prefetch"]), (3, 12))
        self.assertEqual(stream(again), first)
        self.assertEqual(self.loader(threads=None, num_workers=0)._settings["threads"], 1)


class Resume(DataCase):
    kinds = (
        ("text", {}), ("text", {"max_len": 5}), ("text", {"packed": True}), ("text", {"max_len": 6, "packed": True}),
        ("chat", {}), ("chat", {"packed": True}), ("pairs", {}),
    )

    def test_a_resumed_stream_is_the_same_bytes_with_any_threads(self):
        draw = random.Random(7)
        for kind, settings in self.kinds:
            for drop_last in (False, True):
                settings = settings | {"drop_last": drop_last, "epochs": 2}
                whole = stream(self.loader(kind, **settings))
                passes = len(stream(self.loader(kind, **(settings | {"epochs": 1}))))
                for at in {0, 1, passes - 1, passes, len(whole), *draw.sample(range(len(whole)), 4)}:
                    before = self.loader(kind, **settings)
                    self.assertEqual(stream(before, at), whole[:at])
                    state = json.loads(json.dumps(before.state_dict()))
                    after = self.loader(kind, **(settings | {"threads": draw.randint(1, 7), "prefetch": 3}))
                    after.load_state_dict(state)
                    self.assertEqual(stream(after), whole[at:], (kind, settings, at))

    def test_behind_the_last_batch_the_pass_still_ends(self):
        loader = self.loader()
        batches = stream(loader)
        second = stream(loader)
        ended = self.loader()
        self.assertEqual(len(stream(ended, len(batches))), len(batches))
        again = self.loader()
        again.load_state_dict(ended.state_dict())
        self.assertEqual((stream(again), stream(again)), ([], second))

    def test_a_loader_goes_back_to_its_own_state(self):
        loader = self.loader()
        start = loader.state_dict()
        whole = stream(loader, 7)
        loader.load_state_dict(start)
        self.assertEqual(stream(loader, 7), whole)

    def test_another_batch_size_goes_on_with_the_same_samples(self):
        def lines(batches):
            return [tuple(t for t in line if t) for batch in batches for line in batch["input_ids"][1]]

        whole = lines(stream(self.loader()))
        before = self.loader()
        head = lines(stream(before, 6))
        after = self.loader(batch_size=8)
        after.load_state_dict(before.state_dict())
        self.assertEqual(head + lines(stream(after)), whole)

    def test_a_state_is_small_and_counts_what_was_handed_out(self):
        loader = self.loader(prefetch=8)
        self.assertEqual(len(stream(loader, 2)), 2)
        state = loader.state_dict()
        self.assertEqual((state["epoch"], state["position"], state["piece"]), (0, 10, 0))
        self.assertLess(len(pickle.dumps(state)), 400)
        self.assertLess(len(json.dumps(state)), 400)

    def test_a_state_of_another_stream_is_refused_by_name(self):
        state = self.loader().state_dict()
        others = {
            "seed": {"seed": 1}, "source_len": {"max_len": 15}, "packed": {"packed": True}, "long": {"long": "cut"},
            "window": {"window": 3}, "tokenizer": {"eos_id": 0}, "kind": {"kind": "chat"},
        }
        for name, change in others.items():
            with self.assertRaisesRegex(ValueError, f"its `{name}` is"):
                self.loader(**change).load_state_dict(state)
        with (self.dir / "text.jsonl").open("a") as file:
            file.write('{"text": "w1"}\n')
        with self.assertRaisesRegex(ValueError, "its `files` is"):
            self.loader().load_state_dict(state)
        with self.assertRaisesRegex(ValueError, "has no `kind`"):
            self.loader().load_state_dict({"epoch": 0, "version": 1})

    def test_a_place_that_cannot_be_is_refused(self):
        loader = self.loader()
        for place in ({"position": self.rows + 1}, {"epoch": -1}, {"piece": "x"}, {"position": None}):
            with self.assertRaisesRegex(ValueError, "the state has the place"):
                loader.load_state_dict(loader.state_dict() | place)

    def test_files_that_moved_are_the_same_files(self):
        before = self.loader()
        whole = stream(before)
        state = self.loader().state_dict()
        (self.dir / "text.jsonl").rename(self.dir / "moved.jsonl")
        after = plimsoll.DataLoader(self.dir / "moved.jsonl", tokenizer=self.model, max_len=16, batch_size=5)
        after.load_state_dict(state)
        self.assertEqual(stream(after), whole)


class Ranks(DataCase):
    def test_ranks_deal_the_one_stream_out(self):
        for kind, settings in (("text", {"packed": True}), ("pairs", {})):
            whole = stream(self.loader(kind, batch_size=4, **settings))
            for world in (2, 3):
                shares = [stream(self.loader(kind, batch_size=4, rank=r, world_size=world, **settings)) for r in range(world)]
                for rank, share in enumerate(shares):
                    self.assertEqual(share, whole[rank::world])
                even = [
                    self.loader(kind, batch_size=4, rank=r, world_size=world, drop_last=True, **settings)
                    for r in range(world)
                ]
                counts = {len(stream(loader)) for loader in even}
                self.assertEqual(len(counts), 1, counts)

    def test_len_is_of_the_rank(self):
        for drop_last in (False, True):
            for rank in range(3):
                loader = self.loader("pairs", batch_size=4, rank=rank, world_size=3, drop_last=drop_last)
                self.assertEqual(len(loader), len(stream(loader)))

    def test_all_ranks_have_one_state_and_their_number_may_change(self):
        whole = stream(self.loader())
        loaders = [self.loader(rank=r, world_size=2) for r in range(2)]
        states = []
        for loader in loaders:
            stream(loader, 3)
            states.append(loader.state_dict())
        self.assertEqual(states[0], states[1])
        rest = [self.loader(rank=r, world_size=3) for r in range(3)]
        for rank, loader in enumerate(rest):
            loader.load_state_dict(states[0])
            self.assertEqual(stream(loader), whole[6 + rank :: 3])


class Refused(DataCase):
    def test_settings_that_cannot_be_are_refused(self):
        refused = {
            "`kind` is `txt`": {"kind": "txt"}, "`batch_size` is 0": {"batch_size": 0}, "`max_len` is 1": {"max_len": 1},
            "`rank` is 2": {"rank": 2, "world_size": 2}, "`labels` is `x`": {"labels": "x"}, "`long` is `x`": {"long": "x"},
            "`columns` has `body`": {"columns": {"body": "text"}}, "`max_target_len` is for pairs": {"max_target_len": 4},
        }
        for words, change in refused.items():
            kind = change.pop("kind", "text")
            with self.assertRaisesRegex(ValueError, words):
                plimsoll.DataLoader(
                    self.dir / "text.jsonl",
                    **(dict(tokenizer=self.model, kind=kind, max_len=16, batch_size=5) | change),
                )
        with self.assertRaisesRegex(ValueError, "`packed` is for text and chat"):
            self.loader("pairs", packed=True)

    def test_errors_of_the_data_are_exceptions_in_our_words(self):
        bad = self.dir / "bad.jsonl"
        bad.write_text('{"text": "w1"}\n{"text": 3}\n')
        settings = dict(tokenizer=self.model, max_len=8, batch_size=2)
        with self.assertRaisesRegex(ValueError, "bad.jsonl`, line 2: expected a string in column `text`, found"):
            plimsoll.DataLoader(bad, **settings)
        with self.assertRaises(FileNotFoundError) as caught:
            plimsoll.DataLoader(self.dir / "none.jsonl", **settings)
        self.assertIn("none.jsonl", str(caught.exception))
        with self.assertRaisesRegex(ValueError, "matches no file"):
            plimsoll.DataLoader(self.dir / "none-*.jsonl", **settings)
        with self.assertRaisesRegex(ValueError, "expected the column `body`, found `text`"):
            self.loader(columns="body")
        with self.assertRaisesRegex(FileNotFoundError, "expected a tokenizer.json"):
            self.loader(tokenizer=self.dir)

    def test_a_file_that_vanishes_is_an_os_error_and_comes_again(self):
        loader = self.loader()
        (self.dir / "text.jsonl").unlink()
        with self.assertRaises(FileNotFoundError):
            stream(loader)
        with self.assertRaises(FileNotFoundError):
            stream(loader)

    def test_a_folder_that_does_not_say_where_a_text_ends_is_refused(self):
        (self.model / "tokenizer_config.json").unlink()
        with self.assertRaisesRegex(ValueError, "give `eos_id`"):
            self.loader()
        self.assertEqual(stream(self.loader(eos_id=EOS, pad_id=0))[0].keys(), stream(self.loader(eos_id=EOS))[0].keys())

    def test_ids_of_the_config_go_before_texts(self):
        (self.model / "config.json").write_text(json.dumps({"eos_token_id": [5, 1], "bos_token_id": 3, "vocab_size": 300}))
        batch = next(iter(self.loader(shuffle=False)))
        self.assertEqual(batch["input_ids"][0].tolist()[:3], [3, *ids(0, 1), 5])


class Tensors(DataCase):
    def test_a_batch_outlives_its_loader_and_may_be_written(self):
        loader = self.loader()
        batch = next(iter(loader))
        kept = plain(batch)
        stream(loader)
        del loader
        self.assertEqual(plain(batch), kept)
        batch["input_ids"][0, 0] = 77
        self.assertEqual(batch["input_ids"][0, 0].item(), 77)
        self.assertEqual(plain({"labels": batch["labels"]})["labels"], kept["labels"])

    def test_tensors_of_a_batch_lie_in_one_buffer(self):
        batch = next(iter(self.loader()))
        ids, labels = batch["input_ids"], batch["labels"]
        self.assertEqual(ids.data_ptr() + ids.nbytes, labels.data_ptr())
