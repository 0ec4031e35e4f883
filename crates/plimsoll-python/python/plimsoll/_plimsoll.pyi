"""The native half: opened data, wordings, meetings of ranks, passes and batches."""

from collections.abc import Sequence
from os import PathLike
from typing import final

from typing_extensions import Buffer

_Path = str | PathLike[str]
_Files = tuple[Sequence[_Path], str | None, str | None, float]
_Place = tuple[int, int, int, int]
_Template = tuple[str, dict[str, str]]

def chat_template(folder: _Path) -> _Template | None: ...

@final
class Data:
    def __new__(
        cls,
        sets: Sequence[_Files],
        kind: str,
        cache: _Path | None,
        cached: int,
        memory: int | None,
        skip: bool,
        cache_bytes: int | None,
    ) -> Data: ...
    def window(self, window: int | None, memory: int | None) -> int | None: ...
    @property
    def oversized(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def columns(self) -> tuple[str, str | None]: ...

@final
class Wording:
    def __new__(
        cls,
        tokenizer: _Path,
        vocab: int | None,
        eos_id: int,
        pad_id: int,
        bos_id: int | None,
        kind: str,
        long: str,
        template: _Template | None,
        by_length: bool,
    ) -> Wording: ...

@final
class Batch(Buffer):
    @property
    def parts(self) -> list[tuple[str, str, int, list[int]]]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class RingLost(Exception):
    args: tuple[list[int] | None, str | None]

@final
class Meeting:
    def __new__(
        cls,
        key: str,
        *,
        seat: int,
        seats: int,
        gone: Sequence[int],
        processes: Sequence[int],
        patience_s: float,
        batch_size: int,
        source_len: int,
        target_len: int,
        packed: bool,
    ) -> Meeting: ...
    @property
    def leads(self) -> bool: ...

@final
class Pass:
    def __new__(
        cls,
        data: Data,
        wording: Wording | None,
        *,
        place: _Place,
        seed: int,
        shuffle: bool,
        window: int | None,
        batch_size: int,
        source_len: int,
        target_len: int,
        packed: bool,
        hf_labels: bool,
        multiple: int,
        pad_id: int,
        most_id: int | None,
        threads: int,
        prefetch: int,
        memory: int | None,
        rank: int,
        world_size: int,
        drop_last: bool,
        meeting: Meeting | None = None,
    ) -> Pass: ...
    @property
    def leads(self) -> bool: ...
    @property
    def processes(self) -> list[int]: ...
    def next(self) -> tuple[Batch, _Place] | None: ...
