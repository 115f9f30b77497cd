"""What a process holds that a test must give back: descriptors, threads, children, shared memory, mounts."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import warm

SHM = Path("/dev/shm")
SANDBOX_PREFIX = "pft-"
"""Names of the directories that every test gets, in /tmp and /dev/shm: ``pft-<pid>-<random>``."""


@dataclass(frozen=True)
class Held:
    """What the process holds now; each thing is a name and how often it is there."""

    descriptors: Counter[str]
    threads: Counter[str]
    children: Counter[str]
    shared_memory: Counter[str]
    mounts: Counter[str]

    def beyond(self, before: Held) -> dict[str, list[str]]:
        """Return what is here and was not there before, by kind; empty if nothing."""
        more = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        # One that is about to run its program has no command line for a moment, and one that has ended has none any more.
        known = {child.split()[0] for child in before.children}
        more["children"] = Counter({child: 1 for child in more["children"] if child.split()[0] not in known})
        return {kind: sorted(counter.elements()) for kind, counter in more.items() if counter}


def held(*, mounts_below: Path, children: Counter[str] | None = None) -> Held:
    """Return what this process holds at this moment; ``children``: those that it is known to have."""
    return Held(
        descriptors=open_descriptors(),
        threads=Counter(f"{t.name} ({'daemon' if t.daemon else 'not daemon'})" for t in threading.enumerate()),
        children=Counter(_children()) if children is None else children,
        shared_memory=Counter(_shared_memory()),
        mounts=Counter(mount_points(mounts_below)),
    )


def wait_until(condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
    """Return True as soon as the condition holds, False when it does not within the time."""
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    delay = 0.001
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        pause.wait(min(delay, left))
        delay = min(delay * 2, 0.2)
    return True


def collect_ended_servers() -> None:
    """Wait for the servers that this process started and that have ended, as the next start would."""
    launch = sys.modules.get("prefeed.client.launch")
    for process in launch._started if launch else []:
        process.poll()


def _collect_adopted() -> None:
    """Wait for ended orphans that came to this process while it was the parent of those of ``warm``: daemons, as watchers of programs.

    Each is of a session that neither this process nor one of the warm ones leads, and is not the first of its own.
    """
    ours = {os.getsid(0), *warm.process_ids()}
    for pid in processes():
        stat = read_proc(pid, "stat").rpartition(b")")[2].split()
        if stat[:2] == [b"Z", str(os.getpid()).encode()] and int(stat[3]) not in {pid, *ours}:
            os.waitpid(pid, 0)


def leaked_since(
    before: Held, *, mounts_below: Path, timeout_seconds: float, has_children: bool = True
) -> dict[str, list[str]]:
    """Return what is held beyond ``before`` after giving it time to go; empty when all is back.

    Args:
        before: What was held then.
        mounts_below: Where mounts count.
        timeout_seconds: How long what is held may take to go.
        has_children: This process has started others since; to look for them takes the longest.
    """
    children = None if has_children else before.children

    def more() -> dict[str, list[str]]:
        if has_children:
            subprocess._cleanup()  # type: ignore[attr-defined]  # as the next Popen would: ended children nobody asks for
            collect_ended_servers()
            _collect_adopted()
        found = _without_runtime(held(mounts_below=mounts_below, children=children).beyond(before), before)
        if "shared_memory" in found:
            found["shared_memory"] = _not_of_others(found["shared_memory"])
        return {kind: names for kind, names in found.items() if names}

    if not more():
        return {}
    gc.collect()
    multiprocessing.active_children()  # collects those that have ended
    wait_until(lambda: not more(), timeout_seconds=timeout_seconds)
    return more()


# obstore opens these at its first use in a process and keeps them (0.12, 2026-11). Using it ahead of the tests, so that
# they are there before, would be worse: a process that has used it cannot be forked and use it again.
_RUNTIME = Counter({"anon_inode:[eventpoll]": 2, "anon_inode:[eventfd]": 1})
_runtime_came_after: list[Held] = []


def _without_runtime(more: dict[str, list[str]], before: Held) -> dict[str, list[str]]:
    """Forgive the first test that uses obstore, and no other, the descriptors of its runtime."""
    descriptors = Counter(more.get("descriptors", []))
    found = descriptors & _RUNTIME  # fewer, when others of their kind were closed meanwhile
    if "obstore" not in sys.modules or not found["anon_inode:[eventfd]"]:
        return more
    if not _runtime_came_after:
        _runtime_came_after.append(before)
    if _runtime_came_after[0] is not before:
        return more
    left = sorted((descriptors - found).elements())
    return {**more, "descriptors": left}


def open_descriptors() -> Counter[str]:
    """Return what the descriptors of this process lead to."""
    return Counter(_descriptors())


def descriptors_beyond(before: Counter[str]) -> list[str]:
    """Return what is open now and was not before; garbage is collected first."""
    if open_descriptors() <= before:
        return []
    gc.collect()
    more = open_descriptors() - before
    if "obstore" in sys.modules:
        more -= _RUNTIME  # the runtime that obstore keeps from its first use on
    return sorted(more.elements())


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Return where libraries lie: this environment, and others that it sees."""
    return (sys.prefix, *(entry for entry in sys.path if entry.endswith("site-packages")))


def _descriptors() -> list[str]:
    # Numbers in sockets and pipes are dropped: one closed and another opened is not a leak.
    found = []
    of_warm_processes = {str(number) for number in warm.descriptors()}
    for number in os.listdir("/proc/self/fd"):
        if number in of_warm_processes:
            continue
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{number}")
            of_library = target.startswith(_libraries())  # fonts and the like, which libraries keep open
            if not of_library and target != f"/proc/{os.getpid()}/fd":
                found.append(re.sub(r":\[\d+\]$", "", target))
    return found


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_proc(pid: int, name: str) -> bytes:
    """Return a file of a process, or nothing when the process is gone or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def parent_of(pid: int) -> int:
    """Return the parent's process id; 0 when the process is gone."""
    stat = read_proc(pid, "stat")
    return int(stat.rpartition(b")")[2].split()[1]) if stat else 0


def _children() -> list[str]:
    found = []
    of_tests = set(warm.process_ids())
    for pid in processes():
        if pid not in of_tests and parent_of(pid) == os.getpid():
            command = read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
            found.append(f"{pid} {command or '(ended, never waited for)'}")
    return found


def _shared_memory() -> list[str]:
    # Directories of tests that run at the same time in other processes are theirs to check, and those of other programs nobody's.
    ours = f"{SANDBOX_PREFIX}{os.getpid()}-"
    found = []
    for entry in os.scandir(SHM):
        with contextlib.suppress(FileNotFoundError):
            foreign = entry.is_dir(follow_symlinks=False) and not entry.name.startswith(ours)
            if not foreign and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(entry.name)
    return found


def _not_of_others(names: list[str]) -> list[str]:
    """Return the names without those that processes of somebody else have mapped."""
    mapped = b"".join(read_proc(pid, "maps") for pid in processes() if not _is_ours(pid))
    return [name for name in names if (mark := _mark_in_maps(SHM / name)) and mark not in mapped]


def _mark_in_maps(path: Path) -> bytes:
    # By number and not by name: glibc makes a semaphore under another name and then links it. (2.36, 2026-11)
    try:
        status = path.stat()
    except FileNotFoundError:
        return b""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return f" {device} {status.st_ino} ".encode()


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parent_of(pid)
    return False


def mount_points(below: Path) -> list[str]:
    """Return what is mounted below a directory, the innermost last."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [point for point in points if Path(point).is_relative_to(below)]
