"""``make soak``: several trainers on one node while everything around them is killed, suspended, changed and refused.

Two homes share a node and a pool; each has a server, a memory tier too small for its data, a disk tier and stage caches. The
files and the store that they read change all the time; the store refuses, stalls and breaks off. Servers, trainers, workers and
the pool are killed and suspended at random. Every byte of every sample is compared with what the origin had at some instant
since the epoch began. Ends with a table, and with status 1 unless wrong samples, errors, hangs and what is left are all 0.

    python -m soak [--minutes 10] [--seed N] [--objects 600]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from leaks import SHM, parent_of, processes, read_proc, wait_until
from prefeed_bench.memcached import Memcached, memcached
from sandbox import SERVER_MODULE
from soak.origin import FINE, REFUSING, STALLING, Changes, StoreServer, Table, write_files
from soak.trainer import COUNTS, EPOCHS, ERRORS, SAMPLES, WORKERS_LOST, WRONG

FETCHER_MODULE = b"prefeed.server.fetch_process"
TRAINER = Path(__file__).with_name("trainer.py")
KINDS = (("paths", 0), ("objects", 0), ("stage", 0), ("objects", 1), ("stage", 1), ("paths", 1))
"""Of each trainer: what it reads, and which home."""
HANG_SECONDS = 120.0
"""A trainer that was not suspended and has got no sample for so long hangs; a server that is held up costs 35 s."""
LONGEST_PAUSE_SECONDS = 6.0
END_SECONDS = 120.0
MEAN_SECONDS = 2.0
"""Between two of the things that are done to them."""


@dataclass
class Slot:
    """A place for one trainer after the other."""

    kind: str
    home: int
    process: subprocess.Popen[bytes]
    samples: int = 0
    moved_at: float = field(default_factory=time.monotonic)


@dataclass
class Server:
    """What a server held when it was first and last looked at: private memory in MiB, descriptors, threads."""

    first: tuple[float, int, int]
    last: tuple[float, int, int]
    looks: int = 1


class Soak:
    """One run; its files lie below ``work`` and ``memory``."""

    def __init__(self, work: Path, memory: Path, *, num_objects: int, seed: int) -> None:
        self.work = work
        self.memory = memory
        self.num_objects = num_objects
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.hangs = 0
        self.servers: dict[int, Server] = {}
        self._suspended: dict[int, float] = {}
        (work / "counts").write_bytes(bytes(8 * len(KINDS) * COUNTS))
        self.counts = np.memmap(work / "counts", np.uint64, "r").reshape(-1, COUNTS)
        self.table = Table(work / "table", num_objects)
        write_files(work / "files", num_objects)
        self.store = StoreServer(self.table)
        self.pool: Memcached | None = None
        self.slots: list[Slot] = []
        self._mode_until = 0.0

    # ------------------------------------------------------------ processes

    def environment(self, home: int) -> dict[str, str]:
        for name in ("run", "tmp", f"memory-{home}"):
            ((self.memory if name.startswith("memory") else self.work) / name).mkdir(mode=0o700, exist_ok=True)
        assert self.pool is not None
        tests = str(Path(__file__).parents[1])
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFEED_")},
            "PYTHONPATH": os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PREFEED_HOME": str(self.work / f"home-{home}"),
            "PREFEED_MEMORY": "6MiB",
            "PREFEED_MEMORY_DIR": str(self.memory / f"memory-{home}"),
            "PREFEED_DISK": "8MiB",
            "PREFEED_POOL": self.pool.address,
            "PREFEED_ROOTS": str(self.work / "files"),
            "PREFEED_METRICS": "0",
            "PREFEED_FETCH_PROCESSES": "1",
            "PREFEED_IDLE_TIMEOUT": "20",
            "XDG_RUNTIME_DIR": str(self.work / "run"),
            "TMPDIR": str(self.work / "tmp"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def start(self, at: int) -> subprocess.Popen[bytes]:
        kind, home = KINDS[at]
        words = [sys.executable, str(TRAINER), kind, str(self.work), str(at), str(self.num_objects), self.store.url]
        with open(self.work / f"trainer-{at}.log", "ab") as log:
            return subprocess.Popen(
                words,
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def of_home(self, home: int | None, module: bytes = SERVER_MODULE) -> list[int]:
        """Return the servers of a home, or of both; or other programs of theirs."""
        marks = [os.fsencode(f"PREFEED_HOME={self.work}/home-{n}\0") for n in (0, 1) if home in (None, n)]
        return [
            pid
            for pid in processes()
            if module in read_proc(pid, "cmdline").split(b"\0")
            and any(mark in read_proc(pid, "environ") for mark in marks)
        ]

    def workers(self, slot: Slot) -> list[int]:
        command = read_proc(slot.process.pid, "cmdline")
        return [p for p in processes() if parent_of(p) == slot.process.pid and read_proc(p, "cmdline") == command]

    # ------------------------------------------------------------ what is done to them

    def disturb(self) -> None:
        """Do one thing, at random."""
        things = {
            "server killed": 3, "server suspended": 3, "trainer killed": 3, "trainer suspended": 2, "worker killed": 3,
            "worker suspended": 3, "fetcher killed": 2, "fetcher suspended": 2, "pool killed": 1, "pool suspended": 1, "store refuses": 1, "store stalls": 1,
        }  # fmt: skip
        what = self.random.choices(list(things), list(things.values()))[0]
        slot = self.random.choice(self.slots)
        assert self.pool is not None
        if what.startswith("store"):
            self.table.mode[0] = REFUSING if what == "store refuses" else STALLING
            self._mode_until = time.monotonic() + self.random.uniform(0.5, 4)
        elif what == "pool killed":
            if self.pool.pid in self._suspended:
                return
            self.pool.kill()
            self.pool.start()
        else:
            name, _, how = what.partition(" ")
            found = {
                "server": self.of_home(0 if how == "killed" else None),  # home 1 has a server that lives long
                "trainer": [slot.process.pid],
                "worker": self.workers(slot),
                "fetcher": self.of_home(None, FETCHER_MODULE),
                "pool": [self.pool.pid],
            }[name]
            if not found:
                return
            pid = self.random.choice(found)
            if how == "killed":
                _signal(pid, signal.SIGKILL)
            elif pid not in self._suspended:
                _signal(pid, signal.SIGSTOP)
                self._suspended[pid] = time.monotonic() + self.random.uniform(0.1, LONGEST_PAUSE_SECONDS)
        self.done[what] += 1

    def look(self) -> None:
        """Let go on what was suspended for long enough, start again what is gone, and see what hangs."""
        now = time.monotonic()
        for pid, until in list(self._suspended.items()):
            if now >= until:
                _signal(pid, signal.SIGCONT)
                del self._suspended[pid]
        if self.table.mode[0] != FINE and now >= self._mode_until:
            self.table.mode[0] = FINE
        for at, slot in enumerate(self.slots):
            if (status := slot.process.poll()) is not None:
                if status != -signal.SIGKILL:
                    self.done[f"trainer ended with {status}"] += 1
                self.slots[at] = Slot(slot.kind, slot.home, self.start(at), int(self.counts[at, SAMPLES]))
                continue
            if slot.process.pid in self._suspended or self.counts[at, SAMPLES] != slot.samples:
                slot.samples, slot.moved_at = int(self.counts[at, SAMPLES]), now
            elif now - slot.moved_at > HANG_SECONDS:
                self.hangs += 1
                self._show_hang(at)
                slot.process.kill()
                slot.moved_at = now

    def _show_hang(self, at: int) -> None:
        print(f"trainer {at} ({KINDS[at]}) hangs", flush=True)
        _show([self.slots[at].process.pid, *self.workers(self.slots[at]), *self.of_home(None)])

    def weigh(self) -> None:
        """Note what the servers hold."""
        for pid in self.of_home(1):
            if (held := _held(pid)) is None:
                continue
            if pid in self.servers:
                self.servers[pid].last = held
                self.servers[pid].looks += 1
                if self.servers[pid].looks == 10:
                    self.servers[pid].first = held  # what it takes once is no growth
            else:
                self.servers[pid] = Server(held, held)

    # ------------------------------------------------------------ the run

    def run(self, seconds: float) -> None:
        with memcached(memory_mib=8, evicts=True) as self.pool:
            changes = Changes(self.work / "files", self.table, self.random.randrange(2**31))
            try:
                self.slots = [Slot(kind, home, self.start(at)) for at, (kind, home) in enumerate(KINDS)]
                self._until(time.monotonic() + seconds)
                self._end()
            finally:
                changes.stop()
                self.done["objects changed"] = changes.count
                self.store.stop()
                for pid in [*(slot.process.pid for slot in self.slots), *self.of_home(None)]:
                    _signal(pid, signal.SIGKILL)

    def _until(self, end: float) -> None:
        disturb_at = time.monotonic() + 15  # not before they have begun
        weigh_at = said_at = time.monotonic()
        while (now := time.monotonic()) < end:
            if now >= disturb_at:
                self.disturb()
                disturb_at = now + self.random.expovariate(1 / MEAN_SECONDS)
            self.look()
            if now >= weigh_at:
                self.weigh()
                weigh_at = now + 3
            if now >= said_at:
                print(f"{end - now:4.0f} s left: {self.line()}", flush=True)
                said_at = now + 30
            time.sleep(0.1)

    def _end(self) -> None:
        """Let the trainers end by themselves, then the servers."""
        for pid in self._suspended:
            _signal(pid, signal.SIGCONT)
        self._suspended.clear()
        self.table.mode[0] = FINE
        (self.work / "over").touch()
        processes = [slot.process for slot in self.slots]
        if not wait_until(lambda: all(p.poll() is not None for p in processes), timeout_seconds=END_SECONDS):
            for at, process in enumerate(processes):
                if process.poll() is None:
                    self.hangs += 1
                    self._show_hang(at)
        if not wait_until(lambda: not self.of_home(None), timeout_seconds=END_SECONDS):
            print("servers that did not end when nobody used them:")
            _show(self.of_home(None))
            self.hangs += 1
        if not wait_until(lambda: not self.of_home(None, FETCHER_MODULE), timeout_seconds=END_SECONDS):
            print("fetch processes that did not end with their server:")
            _show(self.of_home(None, FETCHER_MODULE))
            self.hangs += 1

    def line(self) -> str:
        total = self.counts.sum(axis=0)
        return f"{total[SAMPLES]} samples, {total[EPOCHS]} epochs, {total[WRONG]} wrong, {total[ERRORS]} errors, {self.hangs} hangs"

    def left(self) -> list[str]:
        """Return what nobody uses any more and is still there."""
        in_memory = [str(path) for path in self.memory.rglob("*") if path.parent != self.memory]
        in_runtime = [str(path) for path in (self.work / "run").rglob("*") if path.is_socket()]
        temporary = [str(path) for path in (self.work / "tmp").iterdir() if path.name.startswith("prefeed")]
        return in_memory + in_runtime + temporary

    def table_of_results(self) -> tuple[str, bool]:
        total = self.counts.sum(axis=0)
        left = self.left()
        lines = [f"{name:24} {count}" for name, count in sorted(self.done.items())]
        for name, value in (
            ("samples", total[SAMPLES]), ("epochs", total[EPOCHS]), ("epochs without a worker", total[WORKERS_LOST]),
            ("wrong samples", total[WRONG]), ("errors", total[ERRORS]), ("hangs", self.hangs), ("left behind", len(left)),
        ):  # fmt: skip
            lines.append(f"{name:24} {value}")
        lines += [f"  {name}" for name in left]
        of_store = sum(int(self.counts[at, SAMPLES]) for at, (kind, _) in enumerate(KINDS) if kind == "objects")
        lines.append(f"the store was asked for {self.store.num_requests} objects, for {of_store} samples")
        for pid, server in self.servers.items():
            if server.looks > 10:
                change = [f"{a:g} -> {b:g}" for a, b in zip(server.first, server.last, strict=True)]
                lines.append(f"server {pid}: private MiB {change[0]}, descriptors {change[1]}, threads {change[2]}")
        failures = self.work / "failures"
        if failures.exists():
            lines += ["", failures.read_text()[:20_000]]
        ended = sum(count for name, count in self.done.items() if name.startswith("trainer ended"))
        is_good = self.store.num_requests < of_store and not (
            total[WRONG] + total[ERRORS] + self.hangs + len(left) + ended
        )
        return "\n".join(lines), is_good


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _show(pids: Iterable[int]) -> None:
    """Print what processes are doing, with their stacks if py-spy is there."""
    for pid in pids:
        command = read_proc(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
        print(pid, command, read_proc(pid, "stat").rpartition(b")")[2].split()[0].decode(), flush=True)
        if dump := shutil.which("py-spy"):
            subprocess.run([dump, "dump", "--pid", str(pid)], check=False)


def _held(pid: int) -> tuple[float, int, int] | None:
    """Return the private memory of a process in MiB, its descriptors and threads; None when it is gone."""
    lines = dict(line.split(b":", 1) for line in read_proc(pid, "status").splitlines() if b":" in line)
    try:
        return (
            round(int(lines[b"RssAnon"].split()[0]) / 1024, 1),
            len(os.listdir(f"/proc/{pid}/fd")),
            int(lines[b"Threads"]),
        )
    except (KeyError, OSError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--objects", type=int, default=600)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="prefeed-soak-"))
    memory = Path(tempfile.mkdtemp(prefix="prefeed-soak-", dir=SHM))
    print(
        f"seed {options.seed}, {options.minutes:g} minutes, {len(KINDS)} trainers, {options.objects} files and objects, in {work}"
    )
    soak = Soak(work, memory, num_objects=options.objects, seed=options.seed)
    try:
        soak.run(options.minutes * 60)
        text, is_good = soak.table_of_results()
        print(text)
    finally:
        shutil.rmtree(memory)
    if is_good:
        shutil.rmtree(work)
    else:
        print(f"logs: {work}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
