"""Mounts, keeps the device open, and restarts the daemon after a crash (``python -m prefeed.mount.holder``).

While no daemon runs, requests wait in the kernel. The next daemon also answers those that the last one had read, so readers only notice a
pause. After several crashes within a minute, the holder unmounts.

Reads a ``MountRequest`` as JSON from standard input, and writes one line: empty after mounting, otherwise the error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import msgspec

from prefeed.config import Config, resolve
from prefeed.errors import PrefeedError
from prefeed.fuse import wire
from prefeed.fuse.device import Mounted, ProgramMount, detach, mount_directly, mounted_at
from prefeed.fuse.wire import Feature
from prefeed.mount.daemon import Records, serve
from prefeed.mount.request import SUBTYPE, MountRequest
from prefeed.mount.service import WANTED
from prefeed.system.locks import try_flock
from prefeed.system.signals import END_SIGNALS, ignore_job_signals

_MAX_DEATHS: Final = 5
_WITHIN_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 10
"""Time for readers to close their files after the holder received an end signal."""

_log = logging.getLogger("prefeed")


class Holder:
    """A mount and its daemon, in this process and a child.

    **Ownership.** ``run`` mounts and unmounts. **Threads and processes.** One thread. Signals that end a process detach the
    mount.
    """

    def __init__(self, request: MountRequest, config: Config, report: Callable[[str], None]) -> None:
        """Prepare a mount. ``report`` is called once, with ``""`` after mounting or with the error."""
        self._request = request
        self._config = config
        self._report = report
        self._has_reported = False
        self._program: ProgramMount | None = None
        self._device = -1
        self._mounted: Mounted | None = None
        self._daemon = 0
        self._is_ending = False
        self._deaths: list[float] = []

    def run(self) -> int:
        """Mount and keep the mount until it is unmounted. Return the exit status."""
        place = os.open(self._request.point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Lock the directory below the mount, so that another process can wait for the end of this one.
        try_flock(place)
        self._mount()
        try:
            features = self._negotiate()
            records = Records.create()
            for number in END_SIGNALS:
                signal.signal(number, self._end)
            signal.signal(signal.SIGALRM, self._end_daemon)
            status = 1
            while status and not self._has_failed_often():
                status = self._run_daemon(records, features)
                self._deaths.append(time.monotonic())
                if status and self._is_ending:
                    break
                if status:
                    _log.warning("prefeed: the daemon of %s has ended with status %d", self._request.point, status)
            return 0 if self._is_ending else status
        finally:
            self._unmount()
            os.close(place)

    def _mount(self) -> None:
        point, shown, others = self._request.point, self._request.url, self._request.others
        if os.geteuid() == 0:
            self._device = mount_directly(
                point, subtype=SUBTYPE, shown=shown, others=others, read_bytes=self._request.read_bytes
            )
        else:
            self._program = ProgramMount(
                point, subtype=SUBTYPE, shown=shown, others=others, read_bytes=self._request.read_bytes
            )
            self._device = self._program.device
        self._mounted = mounted_at(point)

    def _detach(self) -> None:
        if self._mounted is not None:
            detach(self._mounted)

    def _unmount(self) -> None:
        self._detach()
        if self._program is not None:
            self._program.close()
        else:
            os.close(self._device)

    def _negotiate(self) -> Feature:
        """Answer the kernel's first request and return the features agreed on, which all daemons use."""
        data = memoryview(os.read(self._device, wire.REQUEST_BYTES))
        request = wire.parse_request(data)
        answer, features = wire.greeting_answer(
            wire.parse_greeting(request.body), WANTED, stack_depth=1, read_bytes=self._request.read_bytes
        )
        os.write(
            self._device, wire.ANSWER_HEADER.pack(wire.ANSWER_HEADER.size + len(answer), 0, request.unique) + answer
        )
        return features

    def _run_daemon(self, records: Records, features: Feature) -> int:
        """Run a daemon until it ends. Return its exit status, 0 after an unmount."""
        life, ours = os.pipe()
        messages, sender = os.pipe()
        self._daemon = os.fork()
        if not self._daemon:
            os.close(ours)
            os.close(messages)
            self._serve_as_daemon(records, features, life, sender)
        os.close(life)
        os.close(sender)
        try:
            words = _read_all(messages)
            if not self._has_reported:
                self._has_reported = True
                self._report("" if words == "ready" else words or "the daemon has ended at once; see the log")
                if words != "ready":  # do not restart a daemon that failed at its start
                    self._deaths += [time.monotonic()] * _MAX_DEATHS
            _, status = os.waitpid(self._daemon, 0)
            return os.waitstatus_to_exitcode(status)
        finally:
            self._daemon = 0
            os.close(messages)
            os.close(ours)

    def _serve_as_daemon(self, records: Records, features: Feature, life: int, sender: int) -> None:
        """Run the daemon in a forked child. Never returns."""
        status = 1
        try:
            for number in (*END_SIGNALS, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)  # the holder unmounts, which ends this process
            if self._program is not None:
                os.close(self._program.link)
            watcher = threading.Thread(target=self._watch_holder, args=(life,), daemon=True)
            watcher.start()

            def ready() -> None:
                os.write(sender, b"ready")
                os.close(sender)

            serve(self._request, self._config, self._device, records, features, ready)
            status = 0
        except (PrefeedError, OSError, ValueError) as err:
            _log.error("prefeed: %s", err)
            os.write(sender, str(err).encode("utf-8", "replace"))
        except BaseException:  # noqa: BLE001 - the child must not run the holder's code
            _log.exception("prefeed: the daemon of %s fails", self._request.point)
        finally:
            logging.shutdown()
            os._exit(status)

    def _watch_holder(self, life: int) -> None:
        """Detach the mount when the holder ends. Open files stay readable until they are closed."""
        os.read(life, 1)
        self._detach()

    def _has_failed_often(self) -> bool:
        recent = [at for at in self._deaths if time.monotonic() - at < _WITHIN_SECONDS]
        if len(recent) < _MAX_DEATHS:
            return False
        _log.error("prefeed: %s is unmounted: its daemon has ended %d times", self._request.point, len(recent))
        return True

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._is_ending = True
        self._detach()
        signal.alarm(_GRACE_SECONDS)

    def _end_daemon(self, number: int, frame: FrameType | None) -> None:
        if self._daemon and self._is_ending:  # otherwise a scheduler has sent the signal
            os.kill(self._daemon, signal.SIGKILL)


def _read_all(descriptor: int) -> str:
    parts = []
    while part := os.read(descriptor, 4096):
        parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


def main() -> int:
    """Run the holder process. Settings come from the environment."""
    os.umask(0o077)
    config = resolve()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("prefeed").setLevel(logging.INFO)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=MountRequest)

    def report(words: str) -> None:
        os.write(1, f"{words}\n".encode("utf-8", "replace"))
        os.dup2(2, 1)  # closes the pipe, so that its reader sees the end

    try:
        with ignore_job_signals():
            return Holder(request, config, report).run()
    except (PrefeedError, OSError) as err:
        report(str(err))
        return 1


if __name__ == "__main__":
    sys.exit(main())
