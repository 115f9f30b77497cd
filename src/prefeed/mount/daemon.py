"""The process that answers for a mount: threads that each take a request from the kernel, answer it, and take the next one.

Another thread is started when all of them have something to do: an object that comes from far away delays no other reader.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.fuse import wire
from prefeed.fuse.device import cloned
from prefeed.fuse.wire import Feature, Request
from prefeed.mount.backing import LocalFiles
from prefeed.mount.objects import Objects
from prefeed.mount.request import MountRequest
from prefeed.mount.service import Service
from prefeed.mount.tree import Tree
from prefeed.sources.manifest import COLUMNS, Manifest
from prefeed.types import Buffer

_log = logging.getLogger("prefeed")

_FIRST_THREADS: Final = 2
_MOST_THREADS: Final = 64
_NOT_FOR_US: Final = frozenset({errno.ENOENT, errno.EINTR, errno.EAGAIN})
"""The request was taken back, or another thread has it."""


class Daemon:
    """Threads that answer the kernel.

    **Ownership.** ``run`` starts them and returns when all have ended, because the mount is gone.
    """

    def __init__(self, device: int, answer: Callable[[Request], Buffer | int]) -> None:
        """Answer what comes from a device; ``answer`` returns the body of an answer, or an errno, in any thread."""
        self._device = device
        self._answer = answer
        self._lock = threading.Lock()
        self._num_idle = 0
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Answer until the mount is gone: it blocks so long."""
        for _ in range(_FIRST_THREADS):
            self._start()
        ended = 0
        while ended < len(self._threads):  # the ended ones may have started others
            self._threads[ended].join()
            ended += 1

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="prefeed-mount", daemon=True)
        with self._lock:
            self._threads.append(thread)
            self._num_idle += 1
        thread.start()

    def _work(self) -> None:
        buffer = bytearray(wire.REQUEST_BYTES)
        view = memoryview(buffer)
        while True:
            try:
                size = os.readv(self._device, [buffer])
            except OSError as err:
                if err.errno in _NOT_FOR_US:
                    continue
                return  # the mount is gone
            with self._lock:
                self._num_idle -= 1
                is_last = not self._num_idle and len(self._threads) < _MOST_THREADS
            request = wire.parse_request(view[:size])
            if request.operation not in wire.UNANSWERED:
                if is_last and request.operation in wire.MAY_WAIT:
                    self._start()
                self._send(request.unique, self._outcome(request))
            with self._lock:
                self._num_idle += 1

    def _outcome(self, request: Request) -> Buffer | int:
        try:
            return self._answer(request)
        except Exception:  # noqa: BLE001 - the reader gets an error, and the others go on
            _log.exception("prefeed: request %d failed", request.operation)
            return errno.EIO

    def _send(self, unique: int, outcome: Buffer | int) -> None:
        if isinstance(outcome, int):
            parts: list[Buffer] = [wire.ANSWER_HEADER.pack(wire.ANSWER_HEADER.size, -outcome, unique)]
        else:
            parts = [wire.ANSWER_HEADER.pack(wire.ANSWER_HEADER.size + len(outcome), 0, unique), outcome]
        try:
            os.writev(self._device, parts)
        except OSError as err:
            if err.errno not in (errno.ENOENT, errno.ENODEV, errno.EINVAL):  # interrupted, or the mount is gone
                raise


def serve(
    request: MountRequest, config: Config, device: int, record: int, features: Feature, ready: Callable[[], None]
) -> None:
    """Answer for a mount until it is gone; ``ready`` is called as soon as requests are taken.

    Args:
        request: What is mounted.
        config: Settings.
        device: Of the mount.
        record: Descriptor of the record of files that the kernel reads by itself.
        features: What was agreed on with the kernel.
        ready: See above.
    """
    manifest = Manifest.open(Path(request.manifest))
    links = {os.fsencode(name): os.fsencode(target) for name, target in request.links.items()}
    own = device if Feature.RESEND in features else cloned(device)
    files = LocalFiles(
        manifest, request.copies, device=device, record=record, passthrough=Feature.PASSTHROUGH in features
    )
    service = Service(
        Tree(manifest, links), Objects(request.url, manifest, config), files, features,
        listed_ns=os.stat(manifest.directory / COLUMNS).st_mtime_ns,
    )  # fmt: skip
    if Feature.RESEND in features:
        os.write(own, wire.resend())  # what a process before this one has read, and not answered
    ready()
    Daemon(own, service.answer).run()
    service.close()
