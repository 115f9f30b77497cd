"""Real memcached servers on loopback, each a process of its own that can be paused, killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prefeed_bench.errors import BenchFailedError, MissingRequirementError

_START_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 5.0
_EPHEMERAL: Final = -1
"""memcached's way to say: a port that is free, and write into a file which."""


class Memcached:
    """One memcached on 127.0.0.1, on a port that is free when it first starts and its own from then on.

    **Ownership.** ``kill`` ends the process; ``memcached`` does at the end of its block.

    Args:
        memory_mib: What it may hold, in MiB.
        max_item: Largest item, as its option ``-I`` wants it: ``1m``, ``8m``.
        evicts: False (``-M``): when it is full it refuses, and evicts nothing.
        socket_path: Listens on this unix socket, and on no port.
        options: Further options of its command line.

    Raises:
        MissingRequirementError: memcached is not installed.
        BenchFailedError: It does not start.
    """

    def __init__(
        self,
        *,
        memory_mib: int = 64,
        max_item: str = "1m",
        evicts: bool = False,
        socket_path: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._socket_path = socket_path
        self._port = _EPHEMERAL
        self._options = ["-m", str(memory_mib), "-I", max_item, "-t", "2", *([] if evicts else ["-M"]), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        """``host:port``, or the path of the socket, as ``PREFEED_POOL`` wants it."""
        return str(self._socket_path) if self._socket_path is not None else f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id; 0 when it does not run."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the process, empty, at the same address as before; returns when it answers."""
        assert self._process is None, "it runs already"
        with tempfile.TemporaryDirectory(prefix="prefeed-memcached-") as scratch:
            port_file = Path(scratch) / "port"
            self._process = subprocess.Popen(
                [_program(), *self._listen(), *(["-u", "root"] if os.geteuid() == 0 else []), *self._options],
                env={**os.environ, "MEMCACHED_PORT_FILENAME": str(port_file)},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                self._wait_until_it_answers(port_file)
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """End the process with SIGKILL: it has nothing to lose, and takes a second for SIGTERM. Nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections are accepted by the kernel from now on, and nothing is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: what was asked meanwhile is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def statistics(self) -> dict[str, str]:
        """Return what its command ``stats`` says: ``curr_items``, ``bytes``, ``get_hits``, ``cmd_set`` and more."""
        with self._connect() as connection, connection.makefile("rb") as answer:
            connection.sendall(b"stats\r\n")
            lines: list[str] = []
            while (line := answer.readline().decode().strip()) != "END":
                if not line.startswith("STAT "):
                    raise OSError(f"memcached at {self.address} answered {line!r}")
                lines.append(line)
        return {name: value for _, name, value in (line.split(" ", 2) for line in lines)}

    def _connect(self) -> socket.socket:
        if self._socket_path is None:
            return socket.create_connection(("127.0.0.1", self._port), timeout=_STOP_SECONDS)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_STOP_SECONDS)
            connection.connect(str(self._socket_path))
        except OSError:
            connection.close()
            raise
        return connection

    def _listen(self) -> list[str]:
        if self._socket_path is not None:
            return ["-s", str(self._socket_path)]
        return ["-l", "127.0.0.1", "-p", str(self._port), "-U", "0"]

    def _wait_until_it_answers(self, port_file: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchFailedError(f"memcached stopped at once with exit status {self._process.returncode}")
            with contextlib.suppress(OSError, ValueError, IndexError):
                if self._socket_path is None and self._port == _EPHEMERAL:
                    self._port = int(port_file.read_text().split()[-1])
                self.statistics()
                return
            time.sleep(0.005)
        raise BenchFailedError(f"memcached did not answer at {self.address} within {_START_SECONDS:g} s")


@contextlib.contextmanager
def memcached(
    *, memory_mib: int = 64, max_item: str = "1m", evicts: bool = False, socket_path: Path | None = None
) -> Iterator[Memcached]:
    """Run one memcached for the time of the block.

    Args:
        memory_mib, max_item, evicts, socket_path: As for ``Memcached``.

    Raises:
        MissingRequirementError: memcached is not installed.
        BenchFailedError: It does not start.
    """
    server = Memcached(memory_mib=memory_mib, max_item=max_item, evicts=evicts, socket_path=socket_path)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def memcached_ring(count: int, *, memory_mib: int = 64, max_item: str = "1m") -> Iterator[list[Memcached]]:
    """Run that many during the block; ``",".join(s.address for s in ring)`` is their ``PREFEED_POOL``.

    Args:
        count: How many.
        memory_mib, max_item: Of each, as for ``Memcached``.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(memcached(memory_mib=memory_mib, max_item=max_item)) for _ in range(count)]


def _program() -> str:
    program = shutil.which("memcached", path=f"{os.environ.get('PATH', '')}:/usr/bin:/usr/local/bin")
    if program is None:
        raise MissingRequirementError("this needs memcached: apt-get install memcached")
    return program
