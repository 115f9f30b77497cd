"""The process behind ``slow_directory``: answers the kernel's requests for one FUSE mount from one thread.

Run as ``python -m prefeed_bench.slow_directory_server SOURCE MOUNT_POINT OPEN_SECONDS READ_SECONDS
VALID_SECONDS SILENT``. Writes ``ready``
once the directory is there, answers each line on its standard input with its counts as JSON, and ends, with the directory
unmounted, when its standard input is closed: also when the process that started it was killed.

The protocol is spoken directly rather than through libfuse: an open that waits is one entry of a queue and not a
thread, so that any number of them wait side by side, and a file costs three short messages: opening, reading and closing
one of 84 KB takes 70 to 85 microseconds of processor time, 30 when it is in the page cache. (2026, 2 shared cores)
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import resource
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from prefeed.fuse import wire
from prefeed.fuse.device import ProgramMount
from prefeed.fuse.wire import Attributes, FileSystemSizes, FuseRequest, Operation

SUBTYPE: Final = "slow"
_TURN: Final = 64
"""Requests answered before the queue of waiting opens is looked at again."""


class SlowTree:
    """A real directory, answered for request by request.

    **Invariants.** Node ``n`` is ``_paths[n]``, relative to the source, ``b""`` for the root; nodes are never reused.
    **Threads and processes.** One thread.
    """

    def __init__(
        self,
        source: bytes,
        device: int,
        *,
        open_seconds: float,
        read_seconds: float,
        valid_seconds: int,
        silent: bytes = b"",
    ) -> None:
        self._source = source
        self._device = device
        self._open_seconds = open_seconds
        self._read_seconds = read_seconds
        self._valid_seconds = valid_seconds
        self._silent = silent
        self._paths = [b"", b""]
        self._nodes = {b"": wire.ROOT_NODE}
        self._files: dict[int, int] = {}
        self._listings: dict[int, list[bytes]] = {}
        self._waiting: list[tuple[float, int, bytes | int]] = []  # a heap
        self._read_buffer = memoryview(bytearray(wire.READ_BYTES))
        self._opens: Counter[int] = Counter()
        self._reads: Counter[int] = Counter()
        self._operations: dict[int, Callable[[FuseRequest], bytes]] = {
            Operation.LOOKUP: self._look_up,
            Operation.GETATTR: self._get_attributes,
            Operation.READLINK: lambda request: os.readlink(self._real(request.node)),
            Operation.STATFS: lambda request: wire.file_system(FileSystemSizes.of(os.statvfs(self._source))),
            Operation.RELEASE: self._release,
            Operation.INIT: lambda request: wire.greeting_answer(wire.parse_greeting(request.body))[0],
            Operation.OPENDIR: self._open_listing,
            Operation.READDIR: lambda request: self._list(request, plus=False),
            Operation.READDIRPLUS: lambda request: self._list(request, plus=True),
            Operation.RELEASEDIR: self._release_listing,
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how often each file was opened, and read from, by its path below the source."""
        return {
            "opens": {os.fsdecode(self._paths[node]): times for node, times in self._opens.items()},
            "reads": {os.fsdecode(self._paths[node]): times for node, times in self._reads.items()},
        }

    def answer(self, request: FuseRequest) -> None:
        """Answer one request now, or have it wait."""
        if request.operation in wire.UNANSWERED:
            return
        if request.operation == Operation.OPEN:
            self._open(request)
        elif request.operation == Operation.READ:
            self._read(request)
        else:
            self._send(request.unique, self._outcome(request))

    def seconds_to_next(self) -> float | None:
        """Return the time until an answer has waited long enough; None when none waits."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None

    def answer_waiting(self) -> None:
        """Send the answers that have waited long enough."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, unique, outcome = heapq.heappop(self._waiting)
            self._send(unique, outcome)

    def _send_in(self, seconds: float, unique: int, outcome: bytes | int) -> None:
        if seconds > 0:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, unique, outcome))
        else:
            self._send(unique, outcome)

    def _outcome(self, request: FuseRequest) -> bytes | int:
        """Return the body of the answer, or the errno."""
        operation = self._operations.get(request.operation)
        if operation is None:
            return errno.ENOSYS
        try:
            return operation(request)
        except OSError as err:
            return err.errno or errno.EIO

    def _send(self, unique: int, outcome: bytes | int) -> None:
        body, error = (outcome, 0) if isinstance(outcome, bytes) else (b"", outcome)
        self._write([wire.ANSWER_HEADER.pack(wire.ANSWER_HEADER.size + len(body), -error, unique), body])

    def _write(self, parts: list[bytes | memoryview]) -> None:
        try:
            os.writev(self._device, parts)
        except OSError as err:
            if err.errno != errno.ENOENT:  # who asked was interrupted and is gone
                raise

    # ------------------------------------------------------------ files

    def _open(self, request: FuseRequest) -> None:
        self._opens[request.node] += 1
        outcome: bytes | int
        try:
            outcome = wire.opened(self._open_file(request))
        except OSError as err:
            outcome = err.errno or errno.EIO
        self._send_in(self._open_seconds, request.unique, outcome)

    def _open_file(self, request: FuseRequest) -> int:
        if not wire.opens_to_read(request.body):
            raise OSError(errno.EROFS, "read-only")
        return os.open(self._real(request.node), os.O_RDONLY | os.O_CLOEXEC)

    def _read(self, request: FuseRequest) -> None:
        self._reads[request.node] += 1
        if self._silent and self._paths[request.node] == self._silent:
            return
        place = wire.parse_read(request.body)
        try:
            size = os.preadv(place.handle, [self._read_buffer[: place.size_bytes]], place.offset)
        except OSError as err:
            self._send_in(self._read_seconds, request.unique, err.errno or errno.EIO)
            return
        if self._read_seconds > 0:
            self._send_in(self._read_seconds, request.unique, bytes(self._read_buffer[:size]))
            return
        header = wire.ANSWER_HEADER.pack(wire.ANSWER_HEADER.size + size, 0, request.unique)
        self._write([header, self._read_buffer[:size]])

    def _release(self, request: FuseRequest) -> bytes:
        os.close(wire.parse_handle(request.body))
        return b""

    # ------------------------------------------------------------ names and listings

    def _real(self, node: int) -> bytes:
        return os.path.join(self._source, self._paths[node])

    def _node(self, path: bytes) -> int:
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = len(self._paths)
            self._paths.append(path)
        return node

    def _look_up(self, request: FuseRequest) -> bytes:
        path = os.path.join(self._paths[request.node], wire.parse_name(request.body))
        try:
            found = os.lstat(os.path.join(self._source, path))
        except FileNotFoundError:
            return wire.no_entry(self._valid_seconds)
        return wire.entry(self._node(path), Attributes.of(found), self._valid_seconds)

    def _get_attributes(self, request: FuseRequest) -> bytes:
        return wire.attributes(Attributes.of(os.lstat(self._real(request.node))), self._valid_seconds)

    def _open_listing(self, request: FuseRequest) -> bytes:
        names = sorted(os.listdir(self._real(request.node)))
        handle = max(self._listings, default=0) + 1
        self._listings[handle] = [b".", b"..", *names]
        return wire.opened(handle)

    def _release_listing(self, request: FuseRequest) -> bytes:
        del self._listings[wire.parse_handle(request.body)]
        return b""

    def _list(self, request: FuseRequest, *, plus: bool) -> bytes:
        """Return as many lines of the listing as have room, from the wanted offset on."""
        place = wire.parse_read(request.body)
        names = self._listings[place.handle]
        answer = bytearray()
        for index in range(place.offset, len(names)):
            line = self._line(request.node, names[index], index + 1, plus=plus)
            if len(answer) + len(line) > place.size_bytes:
                break
            answer += line
        return bytes(answer)

    def _line(self, directory: int, name: bytes, next_offset: int, *, plus: bool) -> bytes:
        path = os.path.join(self._paths[directory], name)
        try:
            found = os.lstat(os.path.join(self._source, path))
        except FileNotFoundError:  # removed since it was listed
            return wire.no_entry(0) * plus + wire.directory_entry(name, 1, 0, next_offset)
        line = wire.directory_entry(name, found.st_ino, found.st_mode, next_offset)
        if not plus:
            return line
        if name in (b".", b".."):
            return wire.no_entry(0) + line
        return wire.entry(self._node(path), Attributes.of(found), self._valid_seconds) + line


def serve(tree: SlowTree, device: int, commands: int) -> None:
    """Answer the kernel until it is told to end, the standard input ends, or the directory is unmounted."""
    buffer = bytearray(wire.REQUEST_BYTES)
    while True:
        readable, _, _ = select.select([device, commands], [], [], tree.seconds_to_next())
        tree.answer_waiting()
        if commands in readable and not _answer_command(tree, commands):
            return
        if device in readable and not _answer_requests(tree, device, buffer):
            return


def _answer_command(tree: SlowTree, commands: int) -> bool:
    """Return False when there is an end to it, or the process that gives the commands is gone."""
    if os.read(commands, 4096) in (b"", b"end\n"):
        return False
    _say(json.dumps(tree.counts()))
    return True


def _answer_requests(tree: SlowTree, device: int, buffer: bytearray) -> bool:
    """Answer what the kernel has asked so far; return False when the directory is unmounted."""
    view = memoryview(buffer)
    for _ in range(_TURN):
        try:
            size = os.readv(device, [buffer])
        except BlockingIOError:
            return True
        except OSError as err:
            if err.errno == errno.ENODEV:
                return False
            if err.errno not in (errno.ENOENT, errno.EINTR):  # ENOENT: the request was taken back
                raise
            continue
        tree.answer(wire.parse_request(view[:size]))
    return True


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point of the process."""
    source, mount_point, open_seconds, read_seconds, valid_seconds, silent = sys.argv[1:]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.closing(ProgramMount(mount_point, subtype=SUBTYPE, shown="prefeed-slow")) as mount:
        os.set_blocking(mount.device, False)
        tree = SlowTree(
            os.fsencode(source), mount.device,
            open_seconds=float(open_seconds), read_seconds=float(read_seconds), valid_seconds=int(valid_seconds),
            silent=os.fsencode(silent),
        )  # fmt: skip
        _say("ready")
        serve(tree, mount.device, sys.stdin.fileno())


if __name__ == "__main__":
    main()
