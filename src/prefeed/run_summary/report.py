"""Prints the run summary when the outermost Python process of a program ends.

``prefeed run`` becomes the program, so the program's process prints at exit, and before ``os._exit``. A signal that ends the process
leaves no summary. Nothing here creates dataclasses, because after Ctrl-C generated code would make Python exit with status 1.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import sys
import time
from functools import partial
from typing import IO, Any

from prefeed.run_summary import counters
from prefeed.system.units import format_bytes

RUN, COUNTS, JSON = "PREFEED_RUN", "PREFEED_RUN_COUNTS", "PREFEED_RUN_JSON"
"""Variables: process id and runtime directory of ``prefeed run``; directory of the counters; file for ``--json``."""

_STORE_URL = re.compile(r"(?:^|=)((?:s3|gs|az):/)/(?:[^/]*@)?([^?#\s]+)")
_RANK = re.compile(r", rank \d+(?=\)|\t|$)")
_LONG_START_SECONDS, _LONG_START_SHARE, _MANY_WAITS = 10.0, 0.1, 1000
"""A scan of file names waits once or twice for each; the import of torch waits some tens of times."""


def begin() -> str:
    """Create the directory of the counters and print at the end of this process, which is the program's outermost one."""
    pid, (first, _, runtime) = os.getpid(), os.environ[RUN].partition(":")
    directory = os.environ.setdefault(COUNTS, f"{runtime}/run-{pid}-{time.time_ns()}")
    os.makedirs(directory, mode=0o700, exist_ok=True)  # this process may have become another program
    end = partial(_print_summary, directory, pid, time.monotonic(), _stderr_file(), is_first=first == str(pid))
    exit_now = os._exit
    atexit.register(end, [sys.stdout, sys.stderr])
    os._exit = lambda status: (end([]), exit_now(status))[1]
    return directory


def _print_summary(
    directory: str, pid: int, began: float, stderr: tuple[int, int], streams: list[IO[str]], *, is_first: bool
) -> None:
    """Print the summary, write the JSON file and remove the counters, once and not in forks. Never raises."""
    with contextlib.suppress(Exception):
        if os.getpid() != pid or not os.path.isdir(directory):
            return
        for stream in streams:
            with contextlib.suppress(Exception):  # Python itself reports the error
                stream.flush()
        counts, num_loops = counters.sums(directory)
        remove(directory)
        facts = facts_of(counts, num_loops, program=sys.orig_argv, seconds=time.monotonic() - began)
        lines = lines_of(facts) if is_first or counts else []
        if path := os.environ.get(JSON):
            try:
                with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(json.dumps(facts) + "\n")
            except OSError as err:
                lines.append(f"cannot write {path}: {err.strerror}")
        if os.environ.get("PREFEED_QUIET") != "1" and _stderr_file() == stderr:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # the program may have made it deadly
            os.write(2, "".join(f"prefeed: {line}\n" for line in lines).encode("utf-8", "backslashreplace"))


def remove(directory: str) -> None:
    """Remove the counters of a program; a process that still runs counts no longer."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)


def _stderr_file() -> tuple[int, int]:
    """Identify the file that is the standard error, because a program may have closed it and opened another."""
    with contextlib.suppress(OSError):
        return os.fstat(2).st_dev, os.fstat(2).st_ino
    return 0, 0


def facts_of(counts: dict[str, int], num_loops: int, *, program: list[str], seconds: float) -> dict[str, Any]:
    """Convert the counters of a program to the object that ``--json`` writes."""
    facts: dict[str, Any] = {"version": 2, "program": program, "seconds": seconds, "processes": num_loops}
    facts |= dict.fromkeys(counters.NUMBERS, 0) | {counters.SERVED: [], counters.REFUSED: {}, counters.OPENED: {}}
    for key, number in counts.items():
        kind, *parts = _RANK.sub("", key).split("\t")
        if not parts:
            facts[kind] = number
        elif kind == counters.OPENED:
            facts[kind][" ".join(parts)] = number
        elif kind == counters.REFUSED:
            facts[kind].setdefault(parts[0], {})[parts[1]] = None
        elif parts[0] not in facts[kind]:  # another rank's
            facts[kind] += parts
    refused = facts[counters.REFUSED].items()
    facts[counters.REFUSED] = {name: list(whys) for name, whys in refused if name not in facts[counters.SERVED]}
    return facts


def lines_of(facts: dict[str, Any]) -> list[str]:
    """Return the lines of the run summary. The first is about the loaders."""
    hits, late, direct, own_threads, cached, fetched, *times = (facts[name] for name in counters.NUMBERS)
    loop_ns, waited_ns, start_ns, start_waits = times
    processes, seconds = max(1, facts["processes"]), facts["seconds"]
    served, refused, opened = facts[counters.SERVED], facts[counters.REFUSED], facts[counters.OPENED]
    lines = [f"{len(served) or 'no'} loader{'s' * (len(served) != 1)} served: {', '.join(served)}".removesuffix(": ")]
    if refused:
        lines[0] += f"; {len(refused)} not: " + "; ".join(f"{name}: {' / '.join(refused[name])}" for name in refused)
    if num_reads := hits + late + direct:
        lines.append(
            f"{num_reads:,} reads: {hits:,} hits ({100 * hits / num_reads:.1f} %), {late:,} late or missed, {direct:,} direct; "
            f"{format_bytes(cached)} from the cache, {format_bytes(fetched)} from the origin"
        )
    if own_threads:
        lines.append(f"{own_threads:,} direct reads in threads of its own: PREFEED_READS=all answers them")
    if loop_ns:
        all_of_them = f" of {processes} processes" if processes > 1 else ""
        lines.append(
            f"waited {100 * waited_ns / loop_ns:.1f} % of {loop_ns / 1e9:,.1f} s{all_of_them} for data; "
            f"epochs took {min(100, loop_ns / 1e7 / processes / seconds):.0f} % of the program's {seconds:,.1f} s"
        )
    start = start_ns / 1e9 / processes
    if start >= max(_LONG_START_SECONDS, _LONG_START_SHARE * seconds):
        scan = f", with {start_waits:,} waits, as a scan of names or sizes of files has: keep its result in a file"
        lines.append(f"{start:,.1f} s passed before the first epoch" + scan * (start_waits / processes >= _MANY_WAITS))
    if opened:
        calls = (f"{call} {opened[call]:,}" for call in sorted(opened, key=opened.__getitem__, reverse=True))
        lines.append(f"opens that bypassed the cache: {', '.join(calls)}")
    for url in ("/".join(found.groups()) for found in map(_STORE_URL.search, facts["program"]) if found):
        ways = f"prefeed.datasets, `prefeed mount {url} DIR` or `prefeed stage {url}`"
        lines += [] if num_reads else [f"nothing of {url} was read through prefeed: use {ways}"]
    return lines
