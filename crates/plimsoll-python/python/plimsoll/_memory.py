"""How much memory this process can still have: the least of what the machine and its cgroups leave."""

from __future__ import annotations

from pathlib import Path


def usable(root: Path = Path("/")) -> int | None:
    """Bytes; None where nothing says how many. Pages of files that nobody uses count as free, as the kernel drops them."""
    found = [room for room in (_machine(root), *_cgroups(root)) if room is not None]
    return min(found, default=None)


def _machine(root: Path) -> int | None:
    available = _table(root / "proc/meminfo").get("MemAvailable:")
    return None if available is None else available * 1024


def _cgroups(root: Path) -> list[int | None]:
    """Of the process's cgroup (version 2) and of those around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    top = root / "sys/fs/cgroup"
    folder = top / own.lstrip("/")
    return [_room(one) for one in (folder, *folder.parents) if one.is_relative_to(top)]


def _room(folder: Path) -> int | None:
    most = [number for name in ("memory.max", "memory.high") if (number := _number(folder / name)) is not None]
    used = _number(folder / "memory.current")
    if not most or used is None:
        return None
    return max(0, min(most) - used + _table(folder / "memory.stat").get("inactive_file", 0))


def _number(path: Path) -> int | None:
    try:
        said = path.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
