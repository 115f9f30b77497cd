"""The process that answers for a mount: threads that take turns, so that an object from far away delays no other reader."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from prefeed.config import Config
from prefeed.fuse import wire
from prefeed.fuse.device import clone_device
from prefeed.fuse.wire import Feature, Request
from prefeed.mount.backing import LocalFiles
from prefeed.mount.objects import MountedObjects
from prefeed.mount.polling import BusyPolling
from prefeed.mount.request import MountRequest
from prefeed.mount.service import Service
from prefeed.mount.tree import Tree
from prefeed.mount.versions import FirstVersions
from prefeed.sources.manifest import COLUMNS, Manifest
from prefeed.types import Buffer

_log = logging.getLogger("prefeed")

_MAX_THREADS: Final = 64
_WITHDRAWN: Final = frozenset({errno.ENOENT, errno.EINTR})
"""The request was taken back."""


class Daemon:
    """Threads that answer the kernel.

    One of them has the turn: it takes a request, answers it, and takes the next one. When it has to wait for bytes it gives the turn
    away. So what the tier holds is answered by one thread, without a change of threads in between. Before it sleeps it polls the
    device for a moment, while that pays (``BusyPolling``).

    **Ownership.** ``run`` starts them and returns when all have ended, because the mount is gone. **Blocking.** Without
    requests all threads sleep.
    """

    def __init__(
        self,
        device: int,
        answer: Callable[[Request], Buffer | int],
        answer_at_once: Callable[[int, int, int, bytearray], Buffer | None] = lambda *_: None,
    ) -> None:
        """Answer what comes from a device, in any thread.

        Args:
            device: Of the mount; nobody else may read from it, because it does not block while it is polled.
            answer: Returns the body of an answer, or an errno.
            answer_at_once: Is asked first, with operation, node and task of a request, and all of it; returns the body of an answer, or
                None. It never waits.
        """
        self._device = device
        self._answer = answer
        self._answer_at_once = answer_at_once
        self._turn = threading.Semaphore(1)
        self._lock = threading.Lock()
        self._num_waiting = 0  # for the turn
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        self._polling = BusyPolling()  # of the thread that has the turn, as the device is
        self._set_blocks(True)  # a daemon before this one may have been killed while it polled

    def run(self) -> None:
        """Answer until the mount is gone: it blocks so long."""
        self._start()
        ended = 0
        while ended < len(self._threads):  # the ended ones may have started others
            self._threads[ended].join()
            ended += 1

    def release_turn(self) -> None:
        """This thread is about to wait: another one takes the next requests, unless all wait already."""
        if not getattr(self._own, "has_turn", False):
            return
        with self._lock:
            is_alone = not self._num_waiting
            if is_alone and len(self._threads) >= _MAX_THREADS:
                return
        self._own.has_turn = False
        self._turn.release()
        if is_alone:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="prefeed-mount", daemon=True)
        with self._lock:
            self._threads.append(thread)
            self._num_waiting += 1
        thread.start()

    def _work(self) -> None:
        buffer = bytearray(wire.REQUEST_BYTES)
        while True:
            self._turn.acquire()
            with self._lock:
                self._num_waiting -= 1
            self._own.has_turn = True
            while self._own.has_turn:
                if self._is_over or not self._answer_next(buffer):
                    self._is_over = True
                    self._turn.release()
                    return
            with self._lock:
                self._num_waiting += 1

    def _answer_next(self, buffer: bytearray) -> bool:
        """Answer the next request; return False when the mount is gone."""
        polling = self._polling
        if self._blocks == (polling.seconds > 0.0):
            self._set_blocks(not self._blocks)
        began = looked = time.perf_counter()
        size = 0
        while not size:
            try:
                size = os.readv(self._device, (buffer,))
            except BlockingIOError:
                now = time.perf_counter()
                if polling.should_sleep(now - began, now - looked):
                    self._set_blocks(True)
                else:
                    looked = now
            except OSError as err:
                return err.errno in _WITHDRAWN
        now = time.perf_counter()
        operation, unique, node, task = wire.REQUEST_HEADER.unpack_from(buffer)
        polling.record_request(task, now - began, now - looked)
        if operation not in wire.UNANSWERED:
            self._send(unique, self._compute_answer(operation, node, task, buffer, size))
        return True

    def _set_blocks(self, blocks: bool) -> None:
        os.set_blocking(self._device, blocks)
        self._blocks = blocks

    def _compute_answer(self, operation: int, node: int, task: int, buffer: bytearray, size_bytes: int) -> Buffer | int:
        try:
            data = self._answer_at_once(operation, node, task, buffer)
            return self._answer(wire.parse_request(memoryview(buffer)[:size_bytes])) if data is None else data
        except Exception:  # noqa: BLE001 - the reader gets an error, and the others continue
            _log.exception("prefeed: request %d failed", operation)
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


class Records(NamedTuple):
    """Descriptors of files in memory that outlive a daemon, for the next one.

    Attributes:
        files: Files that the kernel reads by itself (``LocalFiles``).
        versions: Versions of objects that were not listed (``FirstVersions``).
    """

    files: int
    versions: int

    @classmethod
    def create(cls) -> Records:
        """Return those of a new mount."""
        return cls(os.memfd_create("prefeed-mount-files"), os.memfd_create("prefeed-mount-versions"))


def serve(
    request: MountRequest, config: Config, device: int, records: Records, features: Feature, ready: Callable[[], None]
) -> None:
    """Answer for a mount until it is gone; ``ready`` is called as soon as requests are taken.

    Args:
        request: What is mounted.
        config: Settings.
        device: Of the mount.
        records: What daemons before this one have noted.
        features: What was agreed on with the kernel.
        ready: See above.
    """
    manifest = Manifest.open(Path(request.manifest))
    links = {os.fsencode(name): os.fsencode(target) for name, target in request.links.items()}
    own = device if Feature.RESEND in features else clone_device(device)
    files = LocalFiles(
        manifest, request.copies, device=device, record=records.files, passthrough=Feature.PASSTHROUGH in features
    )
    objects = MountedObjects(request.url, manifest, config, FirstVersions(records.versions))
    service = Service(
        Tree(manifest, links), objects, files, features,
        listed_ns=os.stat(manifest.directory / COLUMNS).st_mtime_ns,
    )  # fmt: skip
    if Feature.RESEND in features:
        os.write(own, wire.resend())  # what a process before this one has read, and not answered
    daemon = Daemon(own, service.answer, service.answer_at_once)
    objects.waits = files.waits = daemon.release_turn
    ready()
    daemon.run()
    service.close()
