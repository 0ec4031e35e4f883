"""Other processes: forked, spawned, killed."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from fixture import DataCase, stream


def rest(loader):
    """In a spawned process."""
    return stream(loader)


def threads():
    return len(os.listdir("/proc/self/task"))


class Processes(DataCase):
    def forked(self, deed):
        """What `deed` gives in a forked child, through a pipe."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "wb") as pipe:
                    pickle.dump(deed(), pipe)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            found = pipe.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return pickle.loads(found)

    def test_nothing_starts_before_the_first_batch(self):
        before = threads()
        loader = self.loader(threads=3)
        loader.state_dict()
        self.assertEqual(threads(), before)
        stream(loader, 1)
        self.assertEqual(threads(), before + 3)
        loader.close()
        self.assertEqual(threads(), before)
        stream(loader)
        self.assertEqual(threads(), before)

    def test_a_fork_in_the_middle_goes_on_on_both_sides(self):
        for kind, settings in (("text", {}), ("text", {"packed": True}), ("chat", {}), ("pairs", {})):
            whole = stream(self.loader(kind, **settings))
            for at in (0, 1, 7):
                loader = self.loader(kind, threads=3, **settings)
                stream(loader, at)
                self.assertEqual(self.forked(lambda: stream(loader)), whole[at:])
                self.assertEqual(stream(loader), whole[at:])

    def test_a_child_that_only_drops_the_loader_ends(self):
        loader = self.loader()
        stream(loader, 2)

        def drop():
            nonlocal loader
            del loader
            return "dropped"

        self.assertEqual(self.forked(drop), "dropped")

    def test_a_fork_while_another_thread_waits_for_a_batch(self):
        whole = stream(self.loader())
        loader = self.loader(epochs=None)
        stop = threading.Event()

        def consume():
            for _ in loader:
                if stop.is_set():
                    break

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            def fresh():
                loader.load_state_dict(loader.state_dict() | {"epoch": 0, "position": 0, "piece": 0})
                return stream(loader, len(whole))

            for _ in range(5):
                self.assertEqual(self.forked(fresh), whole)
        finally:
            stop.set()
            consumer.join()

    def test_a_pickle_is_settings_and_place(self):
        loader = self.loader()
        whole = stream(self.loader())
        stream(loader, 4)
        pickled = pickle.dumps(loader)
        self.assertLess(len(pickled), 4096)
        before = threads()
        again = pickle.loads(pickled)
        self.assertEqual(threads(), before)
        self.assertEqual(stream(again), whole[4:])

    def test_a_spawned_process_goes_on_at_the_same_place(self):
        loader = self.loader("chat")
        whole = stream(self.loader("chat"))
        stream(loader, 3)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(rest, (loader,)), whole[3:])
        self.assertEqual(stream(loader), whole[3:])

    def test_a_killed_process_leaves_nothing_behind(self):
        script = (
            "import pickle, sys\n"
            "loader = pickle.load(sys.stdin.buffer)\n"
            "for number, batch in enumerate(loader):\n"
            "    if number == 3: print('there', flush=True)\n"
        )

        def traces():
            return [sorted(os.listdir(path)) for path in (own_tmp, self.dir)]

        def shared(pid):
            """What the process has of shared memory by name, which would outlive it."""
            opened = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
            return [name for name in opened + mapped if name.startswith("/dev/shm/")]

        with tempfile.TemporaryDirectory() as own_tmp:
            before = traces()
            env = os.environ | {"TMPDIR": own_tmp}
            process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            process.stdin.write(pickle.dumps(self.loader(epochs=None, packed=True)))
            process.stdin.close()
            self.assertEqual(process.stdout.readline(), b"there\n")
            self.assertEqual(shared(process.pid), [])
            process.send_signal(signal.SIGKILL)
            self.assertEqual(process.wait(), -signal.SIGKILL)
            process.stdout.close()
            self.assertEqual(traces(), before)
