"""Files that lie elsewhere, at a real HTTP server of this machine."""

import gzip
import os
import pickle
import shutil
import signal
import threading
from unittest import mock

from fixture import DataCase, stream, words
from server import Server

import plimsoll


class Elsewhere(DataCase):
    def setUp(self):
        super().setUp()
        self.server = Server(self.dir)
        self.addCleanup(self.server.close)
        self.cache = self.dir / "cache"

    def remote(self, *names, kind="text", **settings):
        wanted = dict(tokenizer=self.model, kind=kind, max_len=16, batch_size=5, threads=2, cache_dir=self.cache) | settings
        return plimsoll.DataLoader([self.server.url(name) for name in names], **wanted)

    def forget(self):
        """Takes the parts that are kept away."""
        shutil.rmtree(self.cache / "blocks", ignore_errors=True)

    def long_rows(self):
        """A file of 3 MiB."""
        (self.dir / "long.txt").write_text("".join(words(i, 500)[:1023] + "\n" for i in range(3 * 1024)))
        return dict(long="cut", shuffle=False, prefetch=1000)

    def test_the_stream_is_that_of_local_files(self):
        (self.dir / "text.jsonl.gz").write_bytes(gzip.compress((self.dir / "text.jsonl").read_bytes()))
        for kind, settings in (("text", {}), ("text", {"packed": True}), ("chat", {}), ("pairs", {})):
            whole = stream(self.loader(kind, **settings))
            self.assertEqual(stream(self.remote(f"{kind}.jsonl", kind=kind, **settings)), whole)
        self.assertEqual(stream(self.remote("text.jsonl.gz")), stream(self.loader()))
        with_local = plimsoll.DataLoader(
            [self.server.url("text.jsonl"), self.dir / "text.jsonl"], tokenizer=self.model, max_len=16, batch_size=5,
            cache_dir=self.cache, threads=1,
        )
        self.assertEqual(sum(len(batch["input_ids"][1]) for batch in stream(with_local)), 2 * self.rows)

    def test_it_goes_on_from_a_state_here_and_there(self):
        whole = stream(self.loader())
        loader = self.remote("text.jsonl")
        self.assertEqual(stream(loader, 6), whole[:6])
        state = loader.state_dict()
        self.forget()
        for other in (self.remote("text.jsonl", batch_size=5), self.loader(), pickle.loads(pickle.dumps(loader))):
            other.load_state_dict(state)
            self.assertEqual(stream(other), whole[6:])

    def test_what_was_read_once_is_not_asked_for_again(self):
        whole = stream(self.remote("text.jsonl"))
        asked = len(self.server.ranges)
        self.assertGreater(asked, 0)
        self.assertEqual(stream(self.remote("text.jsonl")), whole)
        self.assertEqual(len(self.server.ranges), asked)

    def test_parts_lie_in_the_folder_of_plimsoll_unless_one_is_given(self):
        with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.dir / "home")}):
            stream(self.remote("text.jsonl", cache_dir=None))
        blocks = self.dir / "home" / "plimsoll" / "data" / "blocks"
        self.assertTrue([path for path in blocks.iterdir() if path.suffix == ".block"])
        with self.assertRaisesRegex(ValueError, "`cache_bytes` is 1, expected at least 16777216"):
            self.remote("text.jsonl", cache_bytes=1)

    def test_parts_stay_below_the_ceiling(self):
        (self.dir / "large.txt").write_text("".join(words(i, 800)[:2047] + "\n" for i in range(10 * 1024)))
        settings = dict(long="cut", batch_size=512)
        whole = stream(plimsoll.DataLoader(self.dir / "large.txt", tokenizer=self.model, max_len=16, **settings))
        loader = self.remote("large.txt", cache_bytes=16 << 20, **settings)
        self.assertEqual(stream(loader), whole)
        held = sum(path.stat().st_size for path in (self.cache / "blocks").iterdir())
        # One mebibyte a part, and its mark.
        self.assertLessEqual(held, 16 * ((1 << 20) + 8) + 8)

    def test_what_is_not_there_is_told_with_its_url(self):
        url = self.server.url("nothing.jsonl")
        with self.assertRaisesRegex(OSError, f"`{url}` is not there"):
            self.remote("nothing.jsonl")
        with self.assertRaisesRegex(ValueError, "name each file"):
            self.remote("*.jsonl")
        secret = self.server.url("text.jsonl").replace("http://", "http://me:s3cret@")
        with self.assertRaisesRegex(ValueError, "credentials") as told:
            plimsoll.DataLoader(secret, tokenizer=self.model, max_len=16, batch_size=5, cache_dir=self.cache)
        self.assertNotIn("s3cret", str(told.exception))

    def test_a_server_whose_answers_will_never_do_is_not_asked_again(self):
        for header in ("Content-Length", "Content-Range"):
            self.server.without = header
            with self.assertRaisesRegex(OSError, f"`{self.server.url('text.jsonl')}` does not .*`{header}`.*; copy it here"):
                self.remote("text.jsonl")

    def test_a_file_that_changes_is_refused(self):
        loader = self.remote("text.jsonl")
        (self.dir / "text.jsonl").write_text((self.dir / "text.jsonl").read_text().replace("w1", "w2"))
        self.forget()
        with self.assertRaisesRegex(ValueError, "its version"):
            stream(loader)

    def test_a_trouble_is_waited_for_and_told(self):
        whole = stream(self.loader())
        # One failure of a request, which is three of them, is common.
        self.server.failures = 6
        with self.assertLogs("plimsoll", "WARNING") as told:
            loader = self.remote("text.jsonl")
        self.assertEqual(len(told.output), 2, told.output)
        self.assertIn("answers 503", told.output[0])
        self.assertIn("answers again", told.output[1])
        self.forget()
        self.server.failures = 12
        with self.assertLogs("plimsoll", "WARNING") as told:
            self.assertEqual(stream(loader), whole)
        self.assertIn("answers 503", told.output[0])

    def test_a_fork_reads_with_connections_of_its_own(self):
        whole = stream(self.loader())
        loader = self.remote("text.jsonl")
        for at in (0, 2):
            self.assertEqual(stream(loader, at), whole[:at])
            self.forget()
            reader, writer = os.pipe()
            if (child := os.fork()) == 0:
                code = 1
                try:
                    self.forget()
                    with os.fdopen(writer, "wb") as pipe:
                        pickle.dump(stream(loader), pipe)
                    code = 0
                finally:
                    os._exit(code)
            os.close(writer)
            with os.fdopen(reader, "rb") as pipe:
                self.assertEqual(pickle.loads(pipe.read()), whole[at:])
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.forget()
        self.assertEqual(stream(loader), whole[2:])

    def test_a_fork_while_a_thread_waits_for_the_server_reads(self):
        settings = self.long_rows()
        whole = stream(plimsoll.DataLoader(self.dir / "long.txt", tokenizer=self.model, max_len=16, batch_size=5, **settings), 3)
        loader = self.remote("long.txt", **settings)
        self.forget()
        self.server.silent_from = 1 << 20
        stream(loader, 1)
        self.assertTrue(self.server.waited_for.wait(60))
        # A thread of ours holds the one part that is in memory.
        if (child := os.fork()) == 0:
            code = 1
            try:
                self.forget()
                loader.load_state_dict(loader.state_dict() | {"position": 0})
                code = 0 if stream(loader, 3) == whole else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        loader.close()

    def test_nothing_is_waited_for_by_a_loader_that_is_closed(self):
        settings = self.long_rows()
        loader = self.remote("long.txt", **settings)
        self.forget()
        self.server.silent_from = 1 << 20
        stream(loader, 1)
        self.assertTrue(self.server.waited_for.wait(60))
        # Without more ado this would take half an hour.
        loader.close()
        self.server.silent_from = None
        self.assertEqual(len(stream(loader, 4)), 4)

    def test_ctrl_c_ends_the_opening(self):
        # Whoever starts the tests in the background may have it ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.server.silent_from = 0

        def press():
            if self.server.waited_for.wait(60):
                os.kill(os.getpid(), signal.SIGINT)

        keyboard = threading.Thread(target=press)
        keyboard.start()
        with self.assertRaises(KeyboardInterrupt):
            self.remote("text.jsonl")
        keyboard.join()

    def test_no_thread_is_there_before_the_first_batch(self):
        before = len(os.listdir("/proc/self/task"))
        loader = self.remote("text.jsonl")
        loader.state_dict()
        # One of the server's for each connection that is open.
        served = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
        self.assertEqual(len(os.listdir("/proc/self/task")), before + len(served))
