"""The last line of a program under ``prefeed run``: who says it, and what is written for machines.

The program's first process says it when it ends as Python programs do. Where it cannot, because it was killed, left by
``os._exit``, closed its standard error or became another program, the watcher does (``watcher.py``), a moment after its end. Who
has said it removes the directory of the program.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from prefeed.cli.program_facts import facts_of, last_lines
from prefeed.cli.text import printable
from prefeed.tally.program import sums

ORDER: Final = "order"
"""What ``prefeed run`` wrote down before the program began; the watcher of the program has it locked."""

_STDERR: Final = 2


def read_order(directory: str) -> dict[str, Any]:
    """Return what ``prefeed run`` wrote down.

    Raises:
        OSError, ValueError: It is not there, or not whole.
    """
    with open(os.path.join(directory, ORDER), "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order


def say_at_exit(directory: str) -> None:
    """Say the last line, as the program's first process ends; leave it to the watcher where that cannot be done."""
    order = read_order(directory)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # Python says it again, in its own words
            stream.flush()
    if list(place_of_stderr()) == order["stderr"] or not order["is_watched"]:
        say(directory, order)


def say(directory: str, order: Mapping[str, Any]) -> None:
    """The last line is said, the file for machines written, the directory removed.

    Raises:
        OSError: The directory is gone: it was said.
    """
    facts = facts_of(sums(directory), order, seconds=time.monotonic() - order["began_monotonic"])
    lines = [] if order["is_quiet"] else last_lines(facts)
    if order["json"]:
        try:
            write_whole(order["json"], json.dumps(facts) + "\n")
        except OSError as err:
            lines.append(f"cannot write {order['json']}: {err.strerror}")
    _write("".join(f"prefeed: {line}\n" for line in lines))
    remove(directory)


def place_of_stderr() -> tuple[int, int]:
    """Return which file the standard error is; zeros when it is closed."""
    try:
        status = os.fstat(_STDERR)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def write_whole(path: str, text: str) -> None:
    """The file has this text, or is as it was.

    As ``system.files.replacing``, which has to be imported: a module with a data class runs generated text, and Python forgets then
    that it was Ctrl-C that ended the program, and exits with 1.

    Raises:
        OSError: It cannot be written.
    """
    folder, name = os.path.split(os.path.realpath(path))
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        with open(part, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(part, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def remove(directory: str) -> None:
    """Nothing is left of the directory of a program; a process that still runs counts no more. Idempotent."""
    gone = f"{directory}.gone"
    with contextlib.suppress(OSError):
        os.rename(directory, gone)  # from now on no process finds it to make a file in it
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(gone), key=ORDER.__eq__):  # that one last: who finds it knows whose all this was
            os.unlink(os.path.join(gone, name))
        os.rmdir(gone)


def _write(text: str) -> None:
    """Write to the standard error, past what the program has put there; nothing when there is no reader."""
    data = printable(text).encode()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # the program may have made it deadly
    try:
        while data:
            data = data[os.write(_STDERR, data) :]
    except OSError as err:
        if err.errno == errno.EPIPE:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
