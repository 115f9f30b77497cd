"""One connection to the node server: blocking, private to the process that opened it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from prefeed.client.launch import Reached, launch_and_connect, try_connect
from prefeed.client.tiers import keep_tier
from prefeed.config import SETTINGS, Config, is_size
from prefeed.errors import PrefeedError, ServerBusyError, ServerError, ServerUnavailableError, error_of
from prefeed.sources.filesystems import OWN, mounted_devices
from prefeed.sources.views import open_own_root
from prefeed.store.memory import NUM_FILES
from prefeed.system.machine import network_namespace
from prefeed.system.units import format_bytes
from prefeed.wire import messages as m
from prefeed.wire.endpoint import peer_process, place_of
from prefeed.wire.frames import FrameReader, encode

_RECEIVE_BYTES = 256 * 1024
_log = logging.getLogger("prefeed")

_ANSWER_SECONDS = 300.0
"""A server that says nothing for so long is taken for dead."""

_MOST_UNSENT_BYTES = 16 * 1024
"""So much waits for a server that takes nothing at the moment: some hundred messages."""

_GREETING_SECONDS = 10.0
"""The same for the first word, which costs a server nothing: the training loop may wait for it."""

Reply = TypeVar("Reply", bound=m.Message)

_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_inherited() -> None:
    """A forked child lets go of its parent's sockets: else a dead parent would look alive to the server."""
    for connection in list(_open):
        connection.close()
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)


def connected_servers() -> set[int]:
    """Return the process ids of the servers that this process is connected to."""
    found = set()
    for connection in list(_open):
        with contextlib.suppress(OSError):  # it is closed
            found.add(peer_process(connection._sock)[0])
    return found


_said: set[str] = set()


def _say_what_differs(config: Config, settings: dict[str, str]) -> None:
    """Say, once a process, which settings of this client the running server does not have."""
    for name, running in settings.items():
        if name not in SETTINGS:  # an option of `cache_admin`
            continue
        wanted = getattr(config, name)
        if wanted != SETTINGS[name].default and str(wanted) != running and name not in _said:
            _said.add(name)
            _log.warning(
                "prefeed: the node server runs with %s = %s; this process asked for %s; restart it to "
                "change that (`prefeed server stop`)",
                name, _shown(name, running), _shown(name, str(wanted)),
            )  # fmt: skip


def _shown(name: str, text: str) -> str:
    """Return the value of a setting as people write it."""
    if text == str(None):
        return "auto"
    return format_bytes(int(text)) if is_size(name) and text.isdigit() else text


def _require_same_home(config: Config, welcome: m.Welcome) -> None:
    """Raise ServerError if the server's home, where it keeps listings, is another directory than this process finds there."""
    if any(welcome.home) and place_of(config.home) != welcome.home:
        raise ServerError(
            f"the node server keeps its listings in {config.home}, and this process finds another directory there, or none: if it was "
            "replaced, run `prefeed server stop`; in a container share it with the server's; or set another PREFEED_HOME here"
        )


class Connection:
    """A greeted connection.

    **Threads and processes**: one thread at a time, by a lock; not used after a fork (``pid`` tells).
    **Blocking**: until the server answers; its death ends every wait at once.

    Attributes:
        runtime_dir: Directory of the server's socket, and of files that are passed to the server.
        instance: Identifies this run of the server.
        settings: With which it was started.
    """

    def __init__(self, reached: Reached, config: Config, *, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self.pid: int = os.getpid()
        _open.add(self)
        self.runtime_dir: Path = reached.directory
        self.instance = ""
        self.settings: dict[str, str] = {}
        self.config = config
        self._sock = reached.sock
        # The garbage collector calls this before it finalizes the objects of a cycle, so the socket of a dropped loader is closed first.
        weakref.finalize(self, self._sock.close).atexit = False
        self._sock.settimeout(answer_seconds)
        self._answer_seconds = answer_seconds
        self._frames = FrameReader()
        self._pending: list[m.AnyMessage] = []
        self._unsent = bytearray()
        self._descriptors: list[int] = []  # of the memory tier, until the greeting has succeeded
        self._lock = threading.Lock()
        self._token = 0

    @classmethod
    def open(
        cls, config: Config, *, autostart: bool | None = None, answer_seconds: float = _ANSWER_SECONDS
    ) -> Connection:
        """Return a connection to the home's server, which is started first if need be and allowed.

        Args:
            config: Settings.
            autostart: Start a server when none runs; defaults to the setting.
            answer_seconds: A server that says nothing for so long is taken for dead.

        Raises:
            ServerBusyError: One runs, and does not answer.
            ServerUnavailableError: None runs and it may not, or could not, be started.
            VersionMismatchError: It speaks another protocol.
        """
        reached = try_connect(config)
        if reached is not None:
            try:
                return cls._of_running(config, reached, answer_seconds)
            except ServerBusyError:
                raise
            except ServerUnavailableError:
                pass  # it was about to end
        if not (config.autostart if autostart is None else autostart):
            raise ServerUnavailableError(
                f"no server runs for {config.home}; start one with `prefeed server start`",
                home=str(config.home), is_absent=True,
            )  # fmt: skip
        connection, welcome = cls._greet(config, launch_and_connect(config)[1], answer_seconds)
        for notice in welcome.notices:
            _log.warning("prefeed: %s", notice)
        return connection

    @classmethod
    def try_open(cls, config: Config, *, answer_seconds: float) -> Connection | None:
        """Return a connection to the home's server, None when none runs.

        Args:
            config: Settings.
            answer_seconds: A server that says nothing for so long is taken for dead, now and later.

        Raises:
            ServerUnavailableError: One runs, or ends just now, and does not answer.
            VersionMismatchError: It speaks another protocol.
        """
        reached = try_connect(config, may_wait=False)
        return None if reached is None else cls._of_running(config, reached, answer_seconds)

    @classmethod
    def _of_running(cls, config: Config, reached: Reached, answer_seconds: float) -> Connection:
        connection, welcome = cls._greet(config, reached, answer_seconds)
        _say_what_differs(config, welcome.settings)
        return connection

    @classmethod
    def _greet(cls, config: Config, reached: Reached, answer_seconds: float) -> tuple[Connection, m.Welcome]:
        connection = cls(reached, config, answer_seconds=answer_seconds)
        try:
            OWN.learn()
            hello = m.Hello(m.PROTOCOL, version("prefeed"), os.getpid(), mounted_devices(), network_namespace())
            welcome = connection.request(hello, m.Welcome, within_seconds=min(_GREETING_SECONDS, answer_seconds))
            _require_same_home(config, welcome)
        except BaseException:
            connection.close()
            raise
        descriptors, connection._descriptors = connection._descriptors, []
        keep_tier(welcome.instance, descriptors)
        connection.instance = welcome.instance
        connection.settings = welcome.settings
        return connection, welcome

    def expect_answers_within(self, seconds: float) -> None:
        """From now on a server that says nothing, or takes nothing, for so long is taken for dead."""
        self._answer_seconds = seconds
        self._sock.settimeout(seconds)

    def is_alive(self) -> bool:
        """Return False once the server has closed its end, or died; asks the kernel, not the server."""
        try:
            ended = select.poll()
            ended.register(self._sock, select.POLLRDHUP)
            return not ended.poll(0)
        except (OSError, ValueError):  # this end is closed
            return False

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed: by its user, or because the server did not answer."""
        return self._sock.fileno() < 0

    def next_token(self) -> int:
        """Return a number for a question whose answer carries it."""
        self._token += 1
        return self._token

    def send(self, message: m.Message, *, within_seconds: float | None = None) -> None:
        """Send a message that has no answer.

        Args:
            message: To send.
            within_seconds: A server that takes nothing for so long is taken for dead; defaults to the connection's.

        Raises:
            ServerUnavailableError: The server is gone; the connection is of no more use.
        """
        with self._lock, self._patience(within_seconds):
            self._send(message)

    def send_nowait(self, message: m.Message) -> None:
        """Send a message that has no answer; what the server does not take now is sent before what follows.

        Raises:
            ServerBusyError: It has not taken anything for long, and the message was not kept.
            ServerUnavailableError: The server is gone.
        """
        with self._lock:
            self._keep_and_flush(message)

    def send_unless_in_use(self, message: m.Message) -> bool:
        """The same for what may run at any moment, as a finalizer does; return False, with nothing sent, while it is in use.

        Raises:
            ServerBusyError, ServerUnavailableError: As ``send_nowait``.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._keep_and_flush(message)
        finally:
            self._lock.release()
        return True

    def has_taken_all(self) -> bool:
        """Return False while the server has not taken all that it was told; what it takes now is sent.

        Raises:
            ServerUnavailableError: The server is gone.
        """
        with self._lock:
            self._flush_nowait()
            return not self._unsent

    def request(
        self,
        message: m.Message,
        reply_type: type[Reply],
        *,
        meanwhile: Callable[[m.AnyMessage], bool] | None = None,
        within_seconds: float | None = None,
    ) -> Reply:
        """Send the message and return its answer.

        Args:
            message: The question.
            reply_type: Type of the answer.
            meanwhile: Given every message before the answer; True means that it was the answer's forerunner.
            within_seconds: A server that says nothing for so long is taken for dead; defaults to the connection's.

        Raises:
            PrefeedError: The server refused; the error is the one it names.
            ServerBusyError: It runs, and has not answered in time. Another question may be asked where answers have tokens.
            ServerUnavailableError: The server is gone.
        """
        with self._lock:
            try:
                with self._patience(within_seconds):
                    return self._exchange(message, reply_type, meanwhile)
            except PrefeedError:
                raise
            except BaseException:
                self.close()  # interrupted: an answer will come
                raise
            finally:
                if within_seconds is not None and self._sock.fileno() >= 0:
                    self._sock.settimeout(self._answer_seconds)

    def wait_closed(self) -> None:
        """Block until the server is gone."""
        with self._lock, contextlib.suppress(ServerUnavailableError):
            while True:
                self._receive()

    def close(self) -> None:
        """Close the socket; in a forked child only the child's copy."""
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    @contextlib.contextmanager
    def _patience(self, seconds: float | None) -> Iterator[None]:
        """Inside it, a server that is silent for so long is taken for dead; None: for as long as ever."""
        if seconds is None:
            yield
            return
        self._sock.settimeout(seconds)
        yield
        self._sock.settimeout(self._answer_seconds)

    def _exchange(
        self, message: m.Message, reply_type: type[Reply], meanwhile: Callable[[m.AnyMessage], bool] | None
    ) -> Reply:
        wanted_token = getattr(message, "token", 0)
        self._send(message)
        while True:
            reply = self._receive()
            if getattr(reply, "token", wanted_token) != wanted_token:
                continue  # the answer to a question that was given up, or to a message that has none
            if isinstance(reply, m.Refused):
                raise error_of(reply.code, reply.text, PrefeedError)
            if meanwhile is not None and meanwhile(reply):
                continue
            if not isinstance(reply, reply_type):
                raise ServerError(f"the server answered {type(reply).__name__} to {type(message).__name__}")
            return reply

    def _send(self, message: m.Message) -> None:
        try:
            if isinstance(message, m.Hello):
                self._send_with_root(encode(message))
                return
            self._unsent += encode(message)
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except OSError as err:
            raise self._silent_or_gone(err) from err

    def _keep_and_flush(self, message: m.Message) -> None:
        self._flush_nowait()
        if len(self._unsent) > _MOST_UNSENT_BYTES:
            pid = peer_process(self._sock)[0]
            raise ServerBusyError(f"the node server (pid {pid}) accepts no messages: it is busy, or suspended", pid=pid)
        self._unsent += encode(message)
        self._flush_nowait()

    def _flush_nowait(self) -> None:
        try:
            takes = select.poll()  # a socket with a time-out would wait, whatever flags are given
            takes.register(self._sock, select.POLLOUT)
            while self._unsent and takes.poll(0):
                del self._unsent[: self._sock.send(self._unsent)]
        except OSError as err:
            raise self._silent_or_gone(err) from err
        except ValueError as err:  # closed in another thread: its number is negative
            raise ServerUnavailableError("the connection to the node server was closed") from err

    def _silent_or_gone(self, err: OSError) -> ServerUnavailableError:
        if isinstance(err, TimeoutError) and self.is_alive():
            pid = peer_process(self._sock)[0]
            return ServerBusyError(
                f"the node server (pid {pid}) runs and does not answer: no message came for {self._sock.gettimeout():g} s; it is busy, "
                "or suspended; `prefeed server stop` ends it",
                pid=pid,
            )
        return ServerUnavailableError(f"the node server is gone: {err}")

    def _send_with_root(self, frame: bytes) -> None:
        """Send the first word, and with it what this process sees of file systems."""
        root = open_own_root()
        try:
            sent = socket.send_fds(self._sock, [frame], [root])
        finally:
            os.close(root)
        self._sock.sendall(frame[sent:])

    def _receive_first(self) -> bytes:
        """Receive the first bytes of the server, and the descriptors of its memory tier that come with them."""
        data, descriptors, _, _ = socket.recv_fds(self._sock, _RECEIVE_BYTES, NUM_FILES, socket.MSG_CMSG_CLOEXEC)
        self._descriptors = descriptors
        return data

    def _receive(self) -> m.AnyMessage:
        while not self._pending:
            try:
                data = self._receive_first() if self._frames.is_new else self._sock.recv(_RECEIVE_BYTES)
            except OSError as err:
                raise self._silent_or_gone(err) from err
            if not data:
                raise ServerUnavailableError("the node server closed the connection")
            self._pending.extend(self._frames.feed(data))
        return self._pending.pop(0)
