"""Runs a command in a memory cgroup of its own and says what it took.

    measure.py [--limit BYTES] [--out FILE.json] [--log FILE] [--term-on TEXT] [--kill-on TEXT] -- COMMAND...

Peaks are of the whole tree: PSS (every 0.25 s) and the cgroup's anonymous and shared memory (every 0.02 s), which is what
a limit is really filled by. Cgroup version 1 only, as root. Everything left in the cgroup is killed at the end.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup/memory")


def stat(group: Path) -> dict[str, int]:
    return {k: int(v) for k, v in (line.split() for line in (group / "memory.stat").read_text().splitlines())}


def procs(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def role(pid: int) -> str:
    """The command's name, the script and the rank: enough to tell a launcher from a rank from a loader worker."""
    comm = Path(f"/proc/{pid}/comm").read_text().strip()
    argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    script = next((Path(a).name for a in argv[1:] if a.endswith(".py") or "/bin/" in a), argv[0])
    env = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    rank = next((e.split("=")[1] for e in env if e.startswith("RANK=")), "-")
    return f"{comm}:{script}:{rank}"


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes and the proportional share."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    of = lambda key: int(re.search(rf"^{key}:\s+(\d+)", text, re.M)[1]) * 1024
    return of("Rss"), of("Pss")


def victims(group: Path) -> list[str]:
    """Whom the kernel says it killed in this cgroup: `comm pid`."""
    out = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
    return [f"{comm} {pid}" for comm, pid in re.findall(rf"oom_memcg=/{group.name},.*,task=(.+?),pid=(\d+),", out)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--term-on", help="send SIGTERM to the main process at this text")
    parser.add_argument("--kill-on", help="send SIGKILL to rank 1 at this text")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command

    group = MOUNT / f"plimsoll-measure-{os.getpid()}"
    group.mkdir()
    if args.limit:
        (group / "memory.limit_in_bytes").write_text(str(args.limit))
        try:
            (group / "memory.memsw.limit_in_bytes").write_text(str(args.limit))
        except OSError:
            pass
    start = time.monotonic()
    log = args.log.open("w")
    child = subprocess.Popen(
        command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
    )
    peak = {"pss": 0, "rss": 0, "anon_shmem": 0, "shmem": 0, "kernel": 0}
    people: dict[int, dict] = {}
    signalled, looked = None, 0.0
    try:
        while child.poll() is None:
            now = stat(group)
            kernel = int((group / "memory.kmem.usage_in_bytes").read_text())
            held = now["total_rss"] + now["total_shmem"]
            peak["anon_shmem"] = max(peak["anon_shmem"], held)
            peak["shmem"] = max(peak["shmem"], now["total_shmem"])
            peak["kernel"] = max(peak["kernel"], kernel)
            if time.monotonic() - looked >= 0.25:
                looked, tree = time.monotonic(), [0, 0]
                for pid in procs(group):
                    try:
                        rss, pss = memory(pid)
                        who = people.setdefault(pid, {"born": round(looked - start, 1), "rss": 0, "pss": 0})
                        who["role"] = role(pid)
                    except (OSError, TypeError):
                        continue
                    who["rss"], who["pss"] = max(who["rss"], rss), max(who["pss"], pss)
                    tree = [tree[0] + rss, tree[1] + pss]
                peak["rss"], peak["pss"] = max(peak["rss"], tree[0]), max(peak["pss"], tree[1])
                said = args.log.read_text(errors="replace") if (args.term_on or args.kill_on) and not signalled else ""
                if args.term_on and args.term_on in said:
                    child.send_signal(signal.SIGTERM)
                    signalled = time.monotonic()
                if args.kill_on and args.kill_on in said:
                    rank = next(p for p in people if people[p]["role"].endswith(":1") and "pt_data" not in people[p]["role"])
                    os.kill(rank, signal.SIGKILL)
                    signalled = time.monotonic()
            time.sleep(0.02)
        seconds = time.monotonic() - start
        time.sleep(1)
        oom = dict(line.split() for line in (group / "memory.oom_control").read_text().splitlines())
        found = {
            "rc": child.returncode,
            "seconds": round(seconds, 1),
            "mib": {k: round(v / 2**20) for k, v in peak.items()},
            "max_usage_mib": round(int((group / "memory.max_usage_in_bytes").read_text()) / 2**20),
            "limit_mib": args.limit and round(args.limit / 2**20),
            "oom_kill": int(oom.get("oom_kill", 0)),
            "killed": victims(group),
            "after_signal_s": signalled and round(seconds + start - signalled, 1),
            "left_after_1_s": [people.get(pid, {}).get("role", str(pid)) for pid in procs(group)],
            "processes": [
                {**who, "pid": pid, "rss": who["rss"] >> 20, "pss": who["pss"] >> 20}
                for pid, who in people.items()
                if who["rss"] > 2**25
            ],
        }
    finally:
        for _ in range(100):
            left = procs(group)
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            child.poll()
            time.sleep(0.05)
        group.rmdir()
    text = json.dumps(found, indent=1)
    if args.out:
        args.out.write_text(text)
    short = {k: v for k, v in found.items() if k != "processes"}
    print(json.dumps(short))
    for who in found["processes"]:
        print("   ", who)


sys.exit(main())
