"""`DataLoader`: a place in a stream of batches, and a pass of the native loader that runs from there.

The place counts what was handed out. All else (files, threads, what is prefetched) can be made anew from settings and
place at any time, and is: after a fork, a pickle, `load_state_dict` or `set_epoch`; and where ranks share a loader and
lose it.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _folder, _memory, _node, _plimsoll

if TYPE_CHECKING:
    import torch

_VERSION = 1
_BY_LENGTH = "batch_size_by_length"
_STATE_PLACE = ("epoch", "position", "piece", "sample")
# Seconds that a rank may keep others waiting for their batches by taking none of its own; then they go on without it.
_PATIENCE_S = 30.0
_LEAST_MEMORY = 16 << 20
_LEAST_CACHE = 16 << 20


_Path = str | os.PathLike[str]
_Set = _Path | Sequence[_Path]
_Columns = str | Mapping[str, str] | None


class DataLoader:
    """Batches of `files` as dicts of torch tensors.

    >>> loader = plimsoll.DataLoader("rows.jsonl", tokenizer="model/", kind="chat", max_len=1024, batch_size=8)
    >>> for batch in loader:                    # one pass; the next `for` is the next pass, in another order
    ...     loss = model(**batch).loss
    >>> torch.save(loader.state_dict(), "loader.pt")
    >>> loader.load_state_dict(torch.load("loader.pt"))   # goes on with the batch behind the last one handed out

    What is read
        files: path, URL (s3://, gs://, az://, http://, https://), pattern or list of them (.jsonl, .csv, .tsv, .txt, .parquet, .arrow;
            .gz and .zst).
        tokenizer: a model folder, or its tokenizer.json.
        kind: "text", "chat" (by the folder's chat template, with labels on the assistant's part) or "pairs".
        columns: {"source": ..., "target": ...}, or the name of the source alone; guessed from usual names if absent.
        weights: a mixture: each entry of `files` (a path, a pattern or a list of them) is a set, and each of its rows comes so
            often in one pass (2: twice; 0.5: every second row, the others in the next pass). `columns` may be a list, too.
        cache_dir: the folder that packed files are unpacked into, once, and where parts of files that lie elsewhere are kept, and what was
            found out about large files; by default `~/.cache/plimsoll/data`, which is also that of `plimsoll train`.
        cache_bytes: the most that these parts take there, for all who use the folder; by default 8 GiB, and of the free disk a quarter.

    Samples
        max_len: tokens of a sample; of pairs, of the source, and of the target unless `max_target_len` is given.
        packed: several texts or chats in a sample, none of which sees another.
        long: a text of more than `max_len` tokens is "split" into samples, "cut", or left out ("drop"); chats and pairs are
            cut unless they are to be left out.
        group_by_length: batches of samples of like length, so that little is padded: sixteen batches at a time are sorted and
            cut anew, and come in a random order. Not with `packed`.
        eos_id, pad_id, bos_id, chat_template: instead of what the model folder says.

    Order
        shuffle, seed, window: the order is a function of these and of the pass; `window` is in blocks of the files.
        epochs: passes of one `for`; None: it never ends.
        drop_last: leave out the last batch of a pass where it is not full, and the last batches where not every rank has one.
        rank, world_size: of the batches of the one stream, rank r has those with number % world_size == r.

    Ranks of one node
        shared: True: one of the processes reads and tokenises for all ranks of its node, the others take their batches from a
            ring in memory. False: each rank does all of it, and drops what is not its own. "auto": as True with `drop_last`, where
            the environment (torchrun's) says that there are other ranks on this node. The stream is the same.
        local_rank, local_world_size: this rank's number on its node, and how many there are; by default of the environment,
            or all ranks are on one node.

    Tensors
        labels: "hf" for models that shift labels themselves, as Hugging Face's do; "shifted": each label at its own row.
        pad_to_multiple_of: widths are a multiple of this (`max_len`: all batches have the same shape).
        pin_memory: tensors are copied into pinned memory where there is CUDA.

    Speed
        threads, prefetch: threads that read and tokenise, and batches that they make ahead. They change nothing else.
        num_workers, prefetch_factor: torch's names; they become `threads` (at least 1) and `prefetch_factor * threads`.
        persistent_workers: torch's name; nothing to do, as there are no processes to keep.
        memory: bytes that the loader stays below, its tokenizer's tables and torch not counted: half of it is for the window, which has fewer
            blocks where rows are long, then there are as many threads as fit. By default only the window is bound, by 128 MiB; a number
            that cannot be kept is a ValueError.
        oversized: "refuse" or "skip" rows of more than 64 MiB, or, with `memory`, of more than an eighth of it, and rows in Parquet
            pages of more than a quarter of it. `oversized_rows` says how many were left out.
        page_cache: bytes of files that the kernel may keep in memory for the loader; of larger files hardly any pages stay.
            By default half of the memory that can be had.

    Nothing is started before the first batch. A loader may be pickled and forked: the other process starts at the same place.
    """

    def __init__(
        self,
        files: _Set | Sequence[_Set],
        *,
        tokenizer: str | os.PathLike[str],
        kind: str = "text",
        max_len: int,
        batch_size: int,
        max_target_len: int | None = None,
        packed: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        window: int | None = None,
        columns: _Columns | Sequence[_Columns] = None,
        weights: Sequence[float] | None = None,
        long: str = "split",
        group_by_length: bool = False,
        labels: str = "hf",
        epochs: int | None = 1,
        drop_last: bool = False,
        eos_id: int | None = None,
        pad_id: int | None = None,
        bos_id: int | None = None,
        chat_template: str | None = None,
        pad_to_multiple_of: int = 1,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        shared: bool | str = "auto",
        local_rank: int | None = None,
        local_world_size: int | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        memory: int | None = None,
        oversized: str = "refuse",
        page_cache: int | None = None,
    ):
        _one_of("kind", kind, ("text", "chat", "pairs"))
        _one_of("long", long, ("split", "cut", "drop"))
        _one_of("oversized", oversized, ("refuse", "skip"))
        _one_of("labels", labels, ("hf", "shifted"))
        for name, value in (("batch_size", batch_size), ("world_size", world_size), ("epochs", epochs),
                            ("pad_to_multiple_of", pad_to_multiple_of), ("window", window), ("threads", threads),
                            ("prefetch", prefetch), ("max_target_len", max_target_len)):
            _at_least(name, value, 1)
        _at_least("seed", seed, 0)
        _at_least("page_cache", page_cache, 0)
        _at_least("memory", memory, _LEAST_MEMORY)
        _at_least("cache_bytes", cache_bytes, _LEAST_CACHE)
        shifts = kind != "pairs" and labels == "hf"
        _at_least("max_len", max_len, 2 if shifts else 1)
        if not 0 <= rank < world_size:
            raise ValueError(f"`rank` is {rank}, expected 0 to {world_size - 1}, as `world_size` is {world_size}")
        # Ranks that take a different number of batches from a pass drift apart, and then cannot share: not without being asked to.
        # Nor do batches of samples of like length follow from larger ones.
        wanted = False if shared == "auto" and (group_by_length or not drop_last) else shared
        if group_by_length and wanted:
            raise ValueError("`group_by_length` and `shared` do not go together: which samples share a batch would depend on the ranks")
        self._node = _node.find(wanted, rank, world_size, local_rank, local_world_size)
        if kind == "pairs" and packed:
            raise ValueError("`packed` is for text and chat: pairs are never packed into one sample")
        if group_by_length and packed:
            raise ValueError("`group_by_length` is for batches that are padded, and packed ones hardly are")
        if kind != "pairs" and max_target_len is not None:
            raise ValueError("`max_target_len` is for pairs")
        if threads is None:
            threads = max(1, num_workers) if num_workers is not None else min(4, len(os.sched_getaffinity(0)))
        if prefetch is None:
            prefetch = (prefetch_factor or 2) * threads
        # The position of a sample's last token, which is only a label, is one that the rows of the loader do not have.
        source_len = max_len - 1 if shifts else max_len
        self._sets = _sets(files, columns, weights)
        self._page_cache, self._skip = page_cache, oversized == "skip"
        self._cache = _cache_folder() if cache_dir is None else os.fspath(cache_dir)
        self._cache_bytes = cache_bytes
        self._tokens = _folder.find(
            os.fspath(tokenizer), kind, eos_id=eos_id, pad_id=pad_id, bos_id=bos_id, chat_template=chat_template
        )
        self._kind, self._long, self._epochs, self._pin = kind, long, epochs, pin_memory
        self._by_length = group_by_length
        self._settings: dict[str, Any] = dict(
            seed=seed, shuffle=shuffle, window=window, batch_size=batch_size, source_len=source_len,
            target_len=source_len if max_target_len is None else max_target_len, packed=packed, hf_labels=shifts,
            multiple=pad_to_multiple_of, threads=threads, prefetch=prefetch, rank=rank, world_size=world_size,
            drop_last=drop_last, memory=memory,
        )
        self._place = (0, 0, 0, 0)
        self._forget()
        self._settings["window"] = self._opened().window(window, memory)
        if self._node is None:
            # Of ranks that share a loader only one needs a tokenizer, and nobody knows yet which.
            self._worded()

    # What a process has of its own.

    def _forget(self) -> None:
        self._data: _plimsoll.Data | None = None
        self._wording: tuple[int, _plimsoll.Wording] | None = None
        self._pass: tuple[int, tuple[int, int, int, int], _plimsoll.Pass] | None = None
        self._identity: dict[str, Any] | None = None
        self._lost: tuple[int, frozenset[int] | None] | None = None
        self._processes: list[int] = []

    def _opened(self) -> _plimsoll.Data:
        if self._data is None:
            cached = self._page_cache
            if cached is None:
                usable = _memory.usable()
                cached = 2**64 - 1 if usable is None else usable // 2
            memory = self._settings["memory"]
            self._data = _plimsoll.Data(
                self._sets, self._kind, self._cache, cached, memory, self._skip, self._cache_bytes
            )
        return self._data

    def _worded(self) -> _plimsoll.Wording:
        process = os.getpid()
        if self._wording is None or self._wording[0] != process:
            t = self._tokens
            self._wording = process, _plimsoll.Wording(
                t.path, t.vocab, t.eos_id, t.pad_id, t.bos_id, self._kind, self._long, t.template,
                self._by_length,
            )
        return self._wording[1]

    def _running(self) -> _plimsoll.Pass:
        """The pass of this process at our place: the one that runs, or a new one."""
        process = os.getpid()
        if self._pass is None or self._pass[:2] != (process, self._place):
            if self._pass is not None and self._pass[0] != process:
                self._node = None  # A fork of a rank is not one of the ranks.
            self._leave()
            self._pass = process, self._place, self._started()
        return self._pass[2]

    def _started(self) -> _plimsoll.Pass:
        """A new pass at our place: with the other ranks of the node where we share a loader with them, or by ourselves."""
        data, meeting = self._opened(), self._met()
        try:
            wording = None
            if meeting is None or meeting.leads:
                wording = self._worded()
            else:
                self._wording = None  # Another rank led the pass before.
            return _plimsoll.Pass(
                data, wording, place=self._place, pad_id=self._tokens.pad_id, most_id=self._tokens.most_id(), meeting=meeting,
                **self._settings,
            )
        except _plimsoll.RingLost as lost:
            self._lose(*lost.args)
        finally:
            # A traceback keeps this frame, and with it a leader that nobody must wait for.
            meeting = None
        return self._started()

    def _met(self) -> _plimsoll.Meeting | None:
        epoch = self._place[0]
        if self._lost is not None and self._lost[0] != epoch:
            # In another pass all meet again.
            self._lost = None
        gone = frozenset[int]() if self._lost is None else self._lost[1]
        if self._node is None or gone is None:
            return None
        s = self._settings
        sizes = {name: s[name] for name in ("batch_size", "source_len", "target_len", "packed")}
        try:
            return _plimsoll.Meeting(
                self._key(), seat=self._node.seat, seats=self._node.seats, gone=sorted(gone), processes=self._processes,
                patience_s=_PATIENCE_S, **sizes,
            )
        except OSError as error:
            self._lose(None, str(error))
            return None

    def _key(self) -> str:
        """The same for all ranks of this node that would make the same rounds from here on."""
        assert self._node is not None
        own = ("rank", "threads", "prefetch", "memory")
        settings = {name: value for name, value in self._settings.items() if name not in own}
        first = self._settings["rank"] - self._node.seat
        sets = [[[path if _is_url(path) else os.path.abspath(path) for path in files], *rest] for files, *rest in self._sets]
        what = [self._order(), sets, settings, first, self._node.seats, _node.job(), self._place]
        return hashlib.blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _leave(self) -> None:
        """Ends the pass that runs, and remembers whose processes took part: one that has ended is not waited for again."""
        if self._pass is not None and (now := self._pass[2].processes):
            before = self._processes or [0] * len(now)
            self._processes = [new or old for new, old in zip(now, before)]
        self._pass = None

    def _lose(self, gone: Sequence[int] | None, reason: str | None) -> None:
        """Remembers, for this pass, which ranks are gone, or that we go on by ourselves."""
        if gone is not None and self._node is not None and self._node.seat in gone:
            gone, reason = None, "the thread that made the batches of this node ended"
        self._leave()
        before = frozenset[int]() if self._lost is None else self._lost[1] or frozenset()
        self._lost = self._place[0], None if gone is None else before | set(gone)
        if reason is not None:
            rank = self._settings["rank"]
            warnings.warn(
                f"rank {rank} reads and tokenises by itself to the end of this pass: {reason}", RuntimeWarning, stacklevel=2
            )

    def close(self) -> None:
        """Stops the threads. The next batch starts them again, at the same place."""
        self._leave()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_data", "_wording", "_pass", "_identity", "_lost", "_processes")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # Batches.

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """The rest of the pass that the loader is in, or of its `epochs` passes."""
        since = None  # The pass of which no batch came yet, since its beginning.
        running: _plimsoll.Pass | None
        while True:
            running = None  # What a pass holds goes before another one is made.
            epoch, position, *inside = self._place
            if position == self._opened().rows:
                self.close()
                self._place = (epoch + 1, 0, 0, 0)
                if self._epochs is not None and (epoch + 1) % self._epochs == 0:
                    return
                if self._epochs is None and since == epoch:
                    raise ValueError("a pass has no full batch for every rank, so nothing would ever come")
                continue
            if position == 0 and not any(inside):
                since = epoch
            try:
                process, running = os.getpid(), self._running()
                made = running.next()
            except _plimsoll.RingLost as lost:
                # What follows is the same, wherever it is made.
                self._lose(*lost.args)
                continue
            except BaseException:
                # A pass that failed says so once; whoever tries again shall hear the reason again.
                self.close()
                raise
            if made is None:
                self._place = (epoch, self._opened().rows, 0, 0)
                continue
            since = None
            batch, self._place = made
            self._pass = (process, self._place, running)
            tensors = [self._tensors(batch)]
            del made, batch  # Here nobody keeps a batch while the next is made.
            yield tensors.pop()

    def _tensors(self, batch: _plimsoll.Batch) -> dict[str, torch.Tensor]:
        import torch

        tensors = {}
        for name, dtype, start, shape in batch.parts:
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            flat = torch.frombuffer(batch, dtype=getattr(torch, dtype), count=count, offset=start)
            tensors[name] = flat.view(shape)
        if self._pin and torch.cuda.is_available():
            return {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return tensors

    def __len__(self) -> int:
        """Batches of one `for` from the beginning. A TypeError where only a pass over the data could tell."""
        split = self._kind == "text" and self._long == "split"
        what = "packed" if self._settings["packed"] else "split" if split else "dropped" if self._long == "drop" else None
        if what:
            raise TypeError(f"the number of batches is not known before they are made, as texts are {what}")
        if self._epochs is None:
            raise TypeError("an endless loader has no length")
        s = self._settings
        rows, world, rank = self._opened().rows, s["world_size"], s["rank"]
        batches = rows // s["batch_size"] if s["drop_last"] else -(-rows // s["batch_size"])
        own: int = batches // world if s["drop_last"] else -(-(batches - rank) // world)
        return own * self._epochs

    @property
    def batch_size(self) -> int:
        """Samples of a full batch."""
        size: int = self._settings["batch_size"]
        return size

    @property
    def columns(self) -> tuple[str, str | None]:
        """The columns that are read, given or guessed."""
        return self._opened().columns

    @property
    def oversized_rows(self) -> int:
        """Rows of the files that are left out because they are too large."""
        return self._opened().oversized

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of the `for` with this number, unless the loader is in it already.

        So it does no harm behind `load_state_dict`. One `for` is `epochs` passes; an endless one is number 0.
        """
        _at_least("epoch", epoch, 0)
        if self._epochs is None:
            if epoch != 0:
                raise ValueError(f"`epoch` is {epoch}, and an endless loader has only number 0")
            return
        if self._place[0] // self._epochs != epoch:
            self._place = (epoch * self._epochs, 0, 0, 0)

    # The place.

    def _order(self) -> dict[str, Any]:
        """What the stream depends on, beside the place."""
        if self._identity is None:
            s = self._settings
            self._identity = {
                "version": _VERSION,
                "kind": self._kind,
                "files": format(self._opened().fingerprint, "016x"),
                "tokenizer": self._tokens.fingerprint(),
                "seed": s["seed"] if s["shuffle"] else None,
                "window": s["window"] if s["shuffle"] else None,
                "source_len": s["source_len"],
                "target_len": s["target_len"],
                "packed": s["packed"],
                "long": self._long if self._kind == "text" or self._long == "drop" else "cut",
                # Which samples share a batch of like length depends on how many do.
                _BY_LENGTH: s["batch_size"] if self._by_length else None,
            }
        return self._identity

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch that was handed out, and what it is a place of. Small and plain."""
        return dict(zip(_STATE_PLACE, self._place)) | self._order()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to the place of `state`. Of other files, tokens, lengths or another order it is refused with a ValueError.

        Batch size (but for `group_by_length`), ranks, threads and prefetch may be others than they were: the samples that
        follow are the same.
        """
        order = self._order()
        for name, own in order.items():
            if name not in state and name != _BY_LENGTH:  # Older states have none.
                raise ValueError(f"the state has no `{name}`; it is not one of this loader")
            if state.get(name) != own:
                raise ValueError(f"the state is of another stream: its `{name}` is {state.get(name)}, this loader's is {own}")
        place: list[Any] = [state.get(name) for name in _STATE_PLACE]
        epoch, position, piece, sample = place
        rows = self._opened().rows
        for number, most in ((epoch, None), (position, rows), (piece, None), (sample, None)):
            if type(number) is not int or number < 0 or (most is not None and number > most):
                raise ValueError(f"the state has the place {tuple(place)}, and the data have {rows} rows")
        self._place = (epoch, position, piece, sample)


def _sets(
    files: _Set | Sequence[_Set], columns: _Columns | Sequence[_Columns], weights: Sequence[float] | None
) -> list[tuple[list[str], str | None, str | None, float]]:
    """The sets of files, each with its columns and its weight; one, where there are no weights."""
    if weights is None:
        files, weights = [files], [1.0]  # type: ignore[list-item]
    elif isinstance(files, (str, os.PathLike)) or len(files) != len(weights):
        count = 1 if isinstance(files, (str, os.PathLike)) else len(files)
        raise ValueError(f"`weights` has {len(weights)} numbers, expected one for each of {count} entries of `files`")
    each = columns if isinstance(columns, Sequence) and not isinstance(columns, str) else [columns] * len(weights)
    if len(each) != len(weights):
        raise ValueError(f"`columns` has {len(each)} entries, expected one for all or one for each of {len(weights)} sets")
    found = []
    for of_set, names, weight in zip(files, each, weights):
        paths = [of_set] if isinstance(of_set, (str, os.PathLike)) else of_set
        names = {"source": names} if isinstance(names, str) else dict(names or {})
        if unknown := set(names) - {"source", "target"}:
            raise ValueError(f"`columns` has `{sorted(unknown)[0]}`, expected `source` and `target`")
        paths = [os.fspath(path) for path in paths]
        found.append((paths, names.get("source"), names.get("target"), float(weight)))
    return found


def _is_url(path: str) -> bool:
    return "://" in path


def _cache_folder() -> str:
    """Where `plimsoll train` keeps what it makes of files, too."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "plimsoll", "data")


def _one_of(name: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        said = ", ".join(f"`{one}`" for one in expected[:-1])
        raise ValueError(f"`{name}` is `{value}`, expected {said} or `{expected[-1]}`")


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"`{name}` is {value}, expected at least {least}")
