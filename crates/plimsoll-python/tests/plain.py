"""A loader without torch, and a process that takes from one as it is told: `python plain.py < orders`.

The first line of orders is the loader (JSON: files, settings, patience, state); then `next`, `all`, `state`, `leads`,
`threads`, `close`, `child` or `fork` are each answered by a line of JSON, and an end of orders is one of the process.
"""

import hashlib
import json
import logging
import math
import os
import signal
import sys
import warnings
from pathlib import Path

import plimsoll
from plimsoll import _loader


class Plain(plimsoll.DataLoader):
    """Batches as bytes."""

    def _tensors(self, batch):
        view = memoryview(batch).cast("B")
        size = {"int64": 8, "int32": 4}
        return {
            name: (dtype, tuple(shape), view[start : start + math.prod(shape) * size[dtype]].tobytes())
            for name, dtype, start, shape in batch.parts
        }


def digest(batch):
    return hashlib.blake2b(repr(sorted(batch.items())).encode(), digest_size=12).hexdigest()


def threads(pid="self"):
    """Names of the threads of a process."""
    return sorted((task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir())


def forked(deed):
    """What `deed` gives in a child."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writer, "w") as pipe:
            json.dump(deed(), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = json.load(pipe)
    os.wait()
    return found


def main():
    # Whoever started the tests may ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")
    logging.getLogger("plimsoll").addHandler(logging.NullHandler())
    order = json.loads(sys.stdin.readline())
    _loader._PATIENCE_S = order.get("patience", 30.0)
    loader = Plain(order["files"], **order["settings"])
    if order.get("state"):
        loader.load_state_dict(order["state"])
    batches = iter(loader)
    for line in sys.stdin:
        told = line.strip()
        if told == "next":
            batch = next(batches, None)
            answer = None if batch is None else digest(batch)
        elif told == "all":
            answer = [digest(batch) for batch in batches]
        elif told == "state":
            answer = loader.state_dict()
        elif told == "leads":
            answer = loader._pass is not None and loader._pass[2].leads
        elif told == "close":
            answer = loader.close()
        elif told == "threads":
            answer = threads()
        elif told == "child":
            answer = forked(lambda: [digest(batch) for batch in loader])
        elif told == "fork":
            # A child that lives on with all that its parent had open.
            answer = os.fork()
            if answer == 0:
                os.close(1)
                while True:
                    signal.pause()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print(json.dumps("interrupted"), flush=True)
