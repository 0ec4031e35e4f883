"""The ranks of this node: which seat this one has among them, and what job they are of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """Ranks `rank - seat` to `rank - seat + seats - 1` of the job are on this node, and this one is number `seat` of them."""

    seat: int
    seats: int


def find(
    shared: bool | str,
    rank: int,
    world_size: int,
    local_rank: int | None,
    local_world_size: int | None,
    environ: Mapping[str, str] = os.environ,
) -> Node | None:
    """The node, where its ranks share one loader. "auto" believes the environment only where it means the ranks that are given."""
    if shared not in (True, False, "auto"):
        raise ValueError(f'`shared` is `{shared}`, expected True, False or "auto"')
    if (local_rank is None) != (local_world_size is None):
        raise ValueError("`local_rank` and `local_world_size` are given together or not at all")
    if not shared or world_size == 1:
        return None
    if local_rank is None or local_world_size is None:
        means_us = (_number(environ, "RANK"), _number(environ, "WORLD_SIZE")) == (rank, world_size)
        found = (_number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE")) if means_us else (None, None)
        if None in found:
            # Nobody says that there is another node.
            found = (None, None) if shared == "auto" else (rank, world_size)
        local_rank, local_world_size = found
    if local_rank is None or local_world_size is None:
        return None
    first = rank - local_rank
    even = local_world_size > 0 and world_size % local_world_size == 0 and first % local_world_size == 0
    if not (even and 0 <= local_rank < local_world_size):
        if shared == "auto":
            return None
        raise ValueError(
            f"rank {rank} of {world_size} is number {local_rank} of {local_world_size} on its node; to share a loader, all nodes "
            "must have as many ranks, with numbers behind each other"
        )
    return Node(local_rank, local_world_size) if local_world_size > 1 else None


def job(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What only the ranks of one job have in common; without a launcher's word, that one process started them."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    said = [f"{name}={environ[name]}" for name in names if name in environ]
    return said or [f"parent={os.getppid()}"]


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None
