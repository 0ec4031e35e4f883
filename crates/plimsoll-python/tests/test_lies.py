"""Somebody of our own user at the meeting point who does not speak as we do."""

import fcntl
import os
import socket
import struct
import threading
from unittest import mock

from fixture import FIRST, WORDS
from plain import digest
from ranks import WAIT_S, SharedCase

from plimsoll import _loader


class Lies(SharedCase):
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
            "speaks otherwise": ("another language", lambda caller: caller.send(b"hello")),
            "no memory": ("another language", lambda caller: caller.send(b"w")),
            "too late": ("went on without it", lambda caller: caller.send(b"l")),
        }
        for name, (short, words, seals) in {
            "not sealed": (0, {}, False), "too short": (4, {}, True), "another mark": (0, {"w0": 1}, True),
            "other seats": (0, {"w1": 3}, True), "other slots": (0, {"w2": 9}, True), "other words": (0, {"w3": 9}, True),
        }.items():
            file, _, seal = self.ring(made, short=short, seals=seals, **words)
            self.addCleanup(os.close, file)
            seal()
            lies[name] = "not one of this loader", offer(file)
        # Rounds that cannot be: 4 samples of at most 15 rows.
        rounds = {
            "more documents than there can be": [9, 1, 1, 1, *([1] * 9), 1, 5, 5],
            "more samples than there can be": [1, 9, 1, 1],
            "more words than there are": [1, 1, 2**32 - 1, 1],
            "lengths that are not of the rows": [1, 1, 3, 3, 2, 2, 5, 6, 7, 5, 6, 7],
            "a sample of no rows": [1, 2, 1, 1, 1, 1, 0, 5, 5],
            "a sample longer than planned": [1, 1, 16, 16, 16, 16, *range(32)],
            "a document across two samples": [1, 2, 4, 4, 4, 2, 2, *range(8)],
            "an id that is none": [1, 1, 1, 1, 1, 1, FIRST + WORDS, 5],
            "a label that is none": [1, 1, 1, 1, 1, 1, 5, FIRST + WORDS],
            "an input that is left out": [1, 1, 1, 1, 1, 1, 2**32 - 1, 5],
        }
        for name, part in rounds.items():
            file, header, seal = self.ring(made, w5=1)
            self.addCleanup(os.close, file)
            part = struct.pack(f"{len(part)}I", *part)
            body = place(0, 4, 0, 0) + bytes(4 * seat_words) + part
            seal()
            lies[name] = "what cannot be a batch", offer(file, header, body)
        good = struct.pack("8I", 1, 1, 1, 1, 1, 1, 5, 5)
        for name, where in (("another pass", (1, 4, 0, 0)), ("behind the data", (0, 98, 0, 0))):
            file, header, seal = self.ring(made, w5=1)
            self.addCleanup(os.close, file)
            seal()
            content = place(*where) + bytes(4 * seat_words) + good
            lies[name] = "a place that cannot be", offer(file, header, content)
        for name, (reason, answer) in lies.items():
            loader = self.plain("text", 1, 2)
            server, line, thread = self.host(loader, answer)
            try:
                with self.assertWarnsRegex(RuntimeWarning, f"rank 1 reads and tokenises by itself .*{reason}", msg=name):
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
