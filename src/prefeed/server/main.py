"""The life of a server. Start-up is recovery: there is no other way to start."""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from prefeed.config import EVERYTHING, Config, resolve
from prefeed.errors import ConfigError, PrefeedError, ServerAlreadyRunningError, ServerError
from prefeed.server.disk import DiskTier
from prefeed.server.handlers import Handlers
from prefeed.server.loop import Loop
from prefeed.server.metrics_endpoint import MetricsEndpoint, Questions
from prefeed.server.node import Node
from prefeed.server.opening_pool import open_pool
from prefeed.server.rooms import Room
from prefeed.server.sessions import Sessions
from prefeed.sources.file_catalogues import remove_unused
from prefeed.sources.store_access import forget_store_environment
from prefeed.store.capacity import choose_store_dir, clamp_budget, default_budget_bytes, disk_limits, memory_limits
from prefeed.store.directory import require_private
from prefeed.store.tier import MIN_BUDGET_BYTES, TierWriter
from prefeed.wire.endpoint import ensure_private_dir

_BUSY_TURN_SECONDS = 0.01
"""Longest wait while fetches are under way: arrivals are taken in groups, most without a wake-up."""

_IDLE_TURN_SECONDS = 5.0
_LOG_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_LEAST_DISK_BYTES = 64 * 1024**2
"""A disk tier of all that there is, when that is less, is not worth its name."""

_NICENESS = 5
"""The trainer's processes go first where both want a core."""


def run_foreground(config: Config) -> int:
    """Run the node server until it is stopped or idle; return the exit status.

    Raises:
        ServerAlreadyRunningError: Another server owns this home.
        UnsafeDirectoryError, ServerError, StoreError: It cannot start; the message says what to change.
    """
    _allow_many_descriptors()
    ensure_private_dir(config.runtime_dir)
    with (
        _only_server(config), _held_port(config), _stores(config) as (tier, sessions, on_tmpfs, notices),
        closing(MetricsEndpoint(config.metrics)) as metrics,
    ):  # fmt: skip
        _remove_files_in_transit(config)
        remove_unused(config.home)
        if metrics.notice:
            notices = (*notices, metrics.notice)
            print(f"prefeed: {metrics.notice}", file=sys.stderr, flush=True)
        handlers = Handlers(
            config, clock=time.monotonic, store_dir=tier.directory, on_tmpfs=on_tmpfs, notices=notices,
            metrics_url=metrics.url,
        )  # fmt: skip
        loop = Loop(
            config.socket_path, clock=time.monotonic, on_message=handlers.on_message, on_closed=handlers.on_closed
        )
        disk = _disk_tier(config, sessions.disk)
        pool = open_pool(config)
        node = Node(
            config, tier, clock=time.monotonic, wake=loop.wake, call_later=loop.call_later, disk=disk, pool=pool
        )
        sessions.share_memory_with(node)
        handlers.bind(loop, node, sessions)
        try:
            metrics.start(Questions(loop.call_soon, handlers.observer.observe))
            _serve(config, handlers, loop, node)
        finally:
            metrics.close()  # it asks the loop
            node.fetchers.close()  # what a tier that is closed does not give is not to be asked of the origin
            if pool is not None:
                pool.close()
            if disk is not None:
                disk.close()  # before the catalogues, which name what it is to keep
            node.close()
            sessions.remove_memory()
            tier.destroy()
            loop.close()
    return 0


def _allow_many_descriptors() -> None:
    """Take what the system allows: each catalogue holds nine, each client and each request one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    """Entry point of ``python -m prefeed.server``: settings come from the environment and ``prefeed.toml``."""
    try:
        config = resolve()
        forget_store_environment()
        logging.basicConfig(format="%(message)s")
        logging.getLogger("prefeed").setLevel(_LOG_LEVELS[config.log_level])
        return run_foreground(config)
    except PrefeedError as err:
        print(f"prefeed: {err}", file=sys.stderr)
        return 4 if isinstance(err, ServerAlreadyRunningError) else 1


def _serve(config: Config, handlers: Handlers, loop: Loop, node: Node) -> None:
    with _signals_that_stop(handlers, loop):
        idle_since = time.monotonic()
        idle_turn = min(_IDLE_TURN_SECONDS, config.idle_timeout or _IDLE_TURN_SECONDS)
        while not handlers.is_stopping:
            busy = node.scheduler.num_in_flight > 0
            loop.run_once(_BUSY_TURN_SECONDS if busy else idle_turn)
            node.pump()
            handlers.after_pump()
            now = time.monotonic()
            if loop.connections:
                idle_since = now
            elif config.idle_timeout and now - idle_since >= config.idle_timeout:
                if not handlers.sessions.would_be_lost:
                    return
                idle_since = now
            if not busy and not loop.owns_socket():
                return  # the socket was removed, or another server listens there: nobody can reach this one


def _remove_files_in_transit(config: Config) -> None:
    """Plans and lists that a server before this one was killed over: nobody asks for them again."""
    for pattern in ("plan-*", "paths-*"):
        for path in config.runtime_dir.glob(pattern):
            path.unlink(missing_ok=True)


@contextmanager
def _only_server(config: Config) -> Iterator[None]:
    """Hold the home's lock; the kernel lets go of it when the process dies, however it dies."""
    path = config.runtime_dir / "server.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise ServerAlreadyRunningError(
                f"a server (pid {owner}) already serves {config.home}; "
                "run `prefeed server stop` first, or set another PREFEED_HOME",
                pid=owner,
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _held_port(config: Config) -> Iterator[None]:
    """Hold the port, if there is one, so that nobody else takes it for free; nothing listens there.

    Raises:
        ServerError: Somebody has it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as held:
        try:
            if config.port:
                held.bind(("127.0.0.1", config.port))
        except OSError as err:
            raise ServerError(
                f"port {config.port} on 127.0.0.1 cannot be had ({err.strerror}): another program uses it; name another "
                "one with PREFEED_PORT or `cache_admin --start -p`"
            ) from err
        yield


@contextmanager
def _held_disk(config: Config) -> Iterator[None]:
    """Make the directory of the disk tier, if there is to be one, and hold it: it belongs to one server.

    Raises:
        ServerError: It cannot be made, or another home's server has it.
    """
    if not config.disk:
        yield
        return
    directory = config.disk_path
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise ServerError(
            f"cannot make {directory}: {err.strerror}; set PREFEED_DISK_DIR to a directory you can write to"
        ) from err
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ServerError(
            f"{directory} is the disk tier of another server: give each PREFEED_HOME a PREFEED_DISK_DIR of its own"
        ) from None
    except OSError:
        pass  # a file system without locks


@contextmanager
def _stores(config: Config) -> Iterator[tuple[TierWriter, Sessions, bool, tuple[str, ...]]]:
    """Open the memory tier where there is room for it, beside the sessions; yield also what differs from the settings."""
    name = f"prefeed-{os.getuid()}-{config.home_id}"
    try:
        config.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as err:
        raise ServerError(
            f"cannot make {config.home}: {err.strerror}; set PREFEED_HOME to a directory you can write to"
        ) from err
    parent, on_tmpfs, warning = choose_store_dir(config.memory_dir, config.home, store_name=name)
    store_dir = parent / name
    limits = memory_limits(store_dir)
    asked = default_budget_bytes(limits) if config.memory is None else config.memory
    budget, reason = clamp_budget(asked, limits)
    with _held_disk(config):
        disk, disk_reason = _disk_room(config)
        notices = tuple(text for text in (warning, reason, disk_reason) if text)
        for text in notices:
            print(f"prefeed: {text}", file=sys.stderr, flush=True)
        if budget < MIN_BUDGET_BYTES:
            raise ConfigError(
                f"a memory tier needs at least {MIN_BUDGET_BYTES} bytes, and {store_dir} may take {budget}; "
                "raise PREFEED_MEMORY, or set PREFEED_MEMORY_DIR to a directory with more room"
            )
        memory = Room(store_dir, budget)
        sessions = Sessions(memory, disk)
        tier = TierWriter.open(store_dir, budget_bytes=memory.shares.objects_limit_bytes)
        try:
            yield tier, sessions, on_tmpfs, notices
        finally:
            tier.close()
            sessions.close()


def _disk_room(config: Config) -> tuple[Room | None, str | None]:
    """Return the room on disk, None when the node is to have none; and what is to be said about it."""
    if not config.disk:
        return None, None
    budget, floor = disk_limits(config.disk_path, asked_bytes=config.disk, floor_bytes=config.disk_free)
    return Room(config.disk_path, budget, floor_bytes=floor), disk_notice(config.disk, budget, floor, config.disk_path)


def disk_notice(asked_bytes: int, budget_bytes: int, floor_bytes: int, directory: Path) -> str | None:
    """Return a sentence when the disk tier may take less than was asked for, or hardly anything. Pure."""
    least = _LEAST_DISK_BYTES if asked_bytes == EVERYTHING else asked_bytes
    if budget_bytes >= least:
        return None
    return (
        f"the disk tier may take {budget_bytes / 1024**3:.2f} GiB: more would not leave {floor_bytes / 1024**3:.2f} GiB "
        f"free on the file system of {directory}; lower PREFEED_DISK_FREE, or set PREFEED_DISK_DIR to a larger disk"
    )


def _disk_tier(config: Config, room: Room | None) -> DiskTier | None:
    """Open the disk tier of objects, which gets what no stage cache on disk was given; None without a room."""
    if room is None:
        return None
    with suppress(FileNotFoundError):
        require_private(config.disk_path / "objects")
    of_caches = room.shares.budget_bytes - room.shares.objects_limit_bytes
    tier = DiskTier(
        config.disk_path / "objects",
        budget_bytes=room.shares.objects_limit_bytes,
        min_free_bytes=room.floor_bytes,
        # Others have filled the disk since: nothing more is stored, and what is there stays, if that was not asked for.
        keep_bytes=config.disk - of_caches,
    )
    room.bind(objects_bytes=lambda: tier.file_bytes, resize_objects=tier.resize)
    return tier


@contextmanager
def _signals_that_stop(handlers: Handlers, loop: Loop) -> Iterator[None]:
    def stop(_signum: int, _frame: object) -> None:
        handlers.is_stopping = True
        loop.wake()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        os.nice(_NICENESS)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
