"""Answers the requests of a mount with threads, so that a slow object delays no other reader.

``serve`` builds the parts of a daemon and runs it. ``Daemon`` takes requests from the device and passes them to ``service.Service``.
"""

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
from prefeed.fuse.wire import Feature, FuseRequest
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
"""The kernel withdrew the request."""


class Daemon:
    """Threads that answer requests of the kernel.

    One thread has the turn: it takes a request, answers it, and takes the next one. Before it waits for data, it passes the turn to another
    thread. Requests that the tier can answer thus need no thread switch. Before the thread sleeps, it polls the device for a
    moment if that pays (``BusyPolling``).

    **Ownership.** ``run`` starts the threads and returns when they have ended after an unmount. **Blocking.** All threads
    sleep while there are no requests.
    """

    def __init__(
        self,
        device: int,
        answer: Callable[[FuseRequest], Buffer | int],
        answer_at_once: Callable[[int, int, int, bytearray], Buffer | None] = lambda *_: None,
    ) -> None:
        """Answer the requests of a device.

        Args:
            device: Descriptor of the device. It is non-blocking during polling, so no other process may read it.
            answer: Returns the body of the answer, or an errno. Called in any thread.
            answer_at_once: Called first with operation, node, task and bytes of a request. Returns the body of the answer, or None to
                leave it to ``answer``. Never waits.
        """
        self._device = device
        self._answer = answer
        self._answer_at_once = answer_at_once
        self._turn = threading.Semaphore(1)
        self._lock = threading.Lock()
        self._num_waiting = 0  # threads that wait for the turn
        self._is_over = False
        self._threads: list[threading.Thread] = []
        self._own = threading.local()
        self._polling = BusyPolling()  # used by the thread that has the turn, like the device
        self._set_blocks(True)  # a daemon may have been killed while it polled

    def run(self) -> None:
        """Answer requests until the unmount."""
        self._start()
        ended = 0
        while ended < len(self._threads):  # an ended thread may have started others
            self._threads[ended].join()
            ended += 1

    def release_turn(self) -> None:
        """Pass the turn to another thread before waiting. Keep it if all threads wait."""
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
        """Answer the next request. Return False after an unmount."""
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
        except Exception:  # noqa: BLE001 - only this reader gets an error
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
            if err.errno not in (errno.ENOENT, errno.ENODEV, errno.EINVAL):  # interrupted or unmounted
                raise


class Records(NamedTuple):
    """Descriptors of files in memory that outlive a daemon and are passed to the next one.

    Attributes:
        files: Record of ``LocalFiles``.
        versions: Record of ``FirstVersions``.
    """

    files: int
    versions: int

    @classmethod
    def create(cls) -> Records:
        """Create the empty records of a new mount."""
        return cls(os.memfd_create("prefeed-mount-files"), os.memfd_create("prefeed-mount-versions"))


def serve(
    request: MountRequest, config: Config, device: int, records: Records, features: Feature, ready: Callable[[], None]
) -> None:
    """Answer the requests of a mount until it is unmounted.

    Args:
        request: Parameters of the mount.
        config: Settings.
        device: Descriptor of the device.
        records: Records of earlier daemons.
        features: Features agreed on with the kernel.
        ready: Called when requests are being answered.
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
        os.write(own, wire.resend())  # requests that a killed daemon had read but not answered
    daemon = Daemon(own, service.answer, service.answer_at_once)
    objects.waits = files.waits = daemon.release_turn
    ready()
    daemon.run()
    service.close()
