"""The life of a server. Start-up is recovery: there is no other way to start."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from prefeed.config import EVERYTHING, Config, resolve
from prefeed.errors import ConfigError, PrefeedError, ServerAlreadyRunningError, ServerError, StoreDamagedError
from prefeed.server.disk import DiskTier
from prefeed.server.fetch_processes import FetchProcesses
from prefeed.server.fetch_thread import FetchThread
from prefeed.server.fetchers import Job
from prefeed.server.handlers import Handlers
from prefeed.server.loop import Loop, allow_descriptors, few_descriptors
from prefeed.server.memory_watch import MemoryWatch
from prefeed.server.metrics_endpoint import MetricsEndpoint, Questions
from prefeed.server.node import Node
from prefeed.server.sessions import Sessions
from prefeed.server.tier_budget import Room, SessionFiles
from prefeed.sources.catalogue_writer import remove_unused as remove_unused_catalogues
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.store_access import forget_store_environment
from prefeed.store.capacity import (
    choose_store_dir,
    clamp_budget,
    default_budget_bytes,
    disk_limits,
    memory_limits,
)
from prefeed.store.directory import choose_own_dir, require_private
from prefeed.store.log import MIN_BUDGET_BYTES, LogWriter
from prefeed.store.memory import MemoryFiles
from prefeed.store.node_directory import BEAT_SECONDS, NODES, NodeDirectory, remove_from_killed, remove_left
from prefeed.store.node_directory import remove_unused as remove_unused_directories
from prefeed.system.removing import remove_tree
from prefeed.system.signals import END_SIGNALS, ignore_job_signals
from prefeed.system.trust import open_own
from prefeed.system.units import format_bytes
from prefeed.wire.endpoint import LOCK, make_runtime_dir, remove_in_transit

if TYPE_CHECKING:
    from prefeed.server.pool import PoolTier

_BUSY_TURN_SECONDS = 0.01
"""Longest wait while fetches are under way: arrivals are taken in groups, most without a wake-up."""

_IDLE_TURN_SECONDS = 5.0
_LOG_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_INFO = 1
"""Default level of the log, by its number in ``cache_admin``."""

_LEAST_DISK_BYTES = 64 * 1024**2
"""A disk tier of all that there is, when that is less, is not worth its name."""

_TIER_ON_DISK = "prefeed-*"
"""Names of memory tiers in the directories of servers."""

_DISK = "disk"
_NICENESS = 5
"""The trainer's processes go first where both want a core."""


class _Grant(NamedTuple):
    """How much memory the tier and the caches got of what was asked for, and why not all."""

    asked_bytes: int
    granted_bytes: int
    notice: str | None


def run_foreground(config: Config, *, port: int = 0) -> int:
    """Run the node server until it is stopped or idle; return the exit status.

    Args:
        config: Settings.
        port: TCP port of 127.0.0.1 that stays reserved for ``cache_admin``, without a listener; 0 for none.

    Raises:
        ServerAlreadyRunningError: Another server owns this home.
        UnsafeDirectoryError, ServerError, StoreError: It cannot start; the message says what to change.
    """
    allow_descriptors(all_of_them=True)
    runtime_dir = make_runtime_dir(config.runtime_dirs)
    files = MemoryFiles()
    files.guard()  # before there are threads, locks and sockets
    with (
        closing(files), ignore_job_signals(), _only_server(config, runtime_dir), _held_port(port), _node_directory(config) as own,
        _stores(config, own, files) as (tier, store_dir, sessions, on_tmpfs, notices, grant), closing(MetricsEndpoint(config.metrics)) as metrics,
    ):  # fmt: skip
        _remove_unused(config, own, runtime_dir, store_dir)
        for notice in filter(None, (metrics.notice, few_descriptors())):
            notices = (*notices, notice)
            print(f"prefeed: {notice}", file=sys.stderr, flush=True)
        handlers = Handlers(
            config, clock=time.monotonic, runtime_dir=runtime_dir, own_dir=own.path, store_dir=store_dir,
            on_tmpfs=on_tmpfs, notices=notices, metrics_url=metrics.url,
        )  # fmt: skip
        loop = Loop(runtime_dir, clock=time.monotonic, on_message=handlers.on_message, on_closed=handlers.on_closed)
        disk = _disk_tier(config, sessions.disk)
        pool = open_pool(config)
        processes = _fetch_processes(config, tier, loop)
        node = Node(
            config, tier, clock=time.monotonic, wake=loop.wake, call_later=loop.call_later, disk=disk, pool=pool,
            processes=processes,
        )  # fmt: skip
        if processes is not None:
            node.fetchers.fetch_parts_in(FetchThread(tier, watcher=loop, clock=time.monotonic))
        sessions.share_memory_with(node)
        _say_damage(node, sessions, disk)
        handlers.bind(loop, node, sessions, files.descriptors)
        watch = MemoryWatch(
            asked_bytes=grant.asked_bytes, granted_bytes=grant.granted_bytes, notice=grant.notice, node=node, sessions=sessions,
        )  # fmt: skip
        handlers.observer.memory_notice = lambda: watch.notice
        try:
            metrics.start(Questions(loop.call_soon, handlers.observer.observe))
            _keep_in_use(own, (runtime_dir, store_dir), node, loop)
            _watch_memory(watch, loop)
            allow_descriptors(all_of_them=False)
            _serve(config, handlers, loop, node)
        finally:
            allow_descriptors(all_of_them=True)
            metrics.close()  # it asks the loop
            handlers.close()
            node.fetchers.close()  # what a tier that is closed does not give is not to be asked of the origin
            if pool is not None:
                pool.close()
            if disk is not None:
                disk.close()  # before the catalogues, which name what it is to keep
            node.close()
            sessions.remove_memory()
            with suppress(OSError):
                store_dir.rmdir()
            loop.close()
    return 0


def main() -> int:
    """Entry point of ``python -m prefeed.server``: settings come from the environment, and from files."""
    try:
        os.umask(0o077)  # what a server makes is its user's alone
        arguments = _parse_arguments()
        config = resolve()
        forget_store_environment()
        logging.basicConfig(format="%(message)s")
        logging.getLogger("prefeed").setLevel(_LOG_LEVELS[arguments.log_level])
        return run_foreground(config, port=arguments.port)
    except PrefeedError as err:
        print(f"prefeed: {err}", file=sys.stderr)
        return 4 if isinstance(err, ServerAlreadyRunningError) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prefeed.server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log-level", type=int, default=_INFO, choices=range(len(_LOG_LEVELS)))
    return parser.parse_args()


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
                return  # the socket was removed, or another server listens there: no client can reach this one


def _remove_unused(config: Config, own: NodeDirectory, runtime_dir: Path, tier_dir: Path) -> None:
    """Remove files that are not asked for again: plans and lists of a server that was killed, and what other boots left."""
    remove_in_transit(runtime_dir)
    remove_unused_catalogues(own.path)
    remove_unused_directories(own.path.parent, keep=own.path)
    ManifestLibrary(config.home).remove_unused()
    remove_left(runtime_dir.parent, f"{config.home_id}*", keep=runtime_dir)
    remove_left(config.memory_dir, f"prefeed-{os.getuid()}-{config.home_id}*", keep=tier_dir)


def _keep_in_use(own: NodeDirectory, others: Sequence[Path], node: Node, loop: Loop) -> None:
    """Say now and then that this server runs, and which listings and other directories it has open: the rest is removed."""
    own.beat()
    for path in (*others, *(dataset.manifest.directory for dataset in node.datasets.values())):
        with suppress(OSError):
            os.utime(path)
    loop.call_later(BEAT_SECONDS, lambda: _keep_in_use(own, others, node, loop))


def _watch_memory(watch: MemoryWatch, loop: Loop) -> None:
    """Look at the memory that is left, now and then, as long as the server runs."""
    loop.call_later(watch.look(), lambda: _watch_memory(watch, loop))


@contextmanager
def _node_directory(config: Config) -> Iterator[NodeDirectory]:
    """Hold what of the home is this server's alone.

    Raises:
        ServerError: It cannot be made.
    """
    try:
        own = NodeDirectory.claim(config.home / NODES)
    except OSError as err:
        raise ServerError(
            f"cannot make {config.home}: {err.strerror}; set PREFEED_HOME to a directory you can write to"
        ) from err
    with closing(own):
        yield own


@contextmanager
def _only_server(config: Config, runtime_dir: Path) -> Iterator[None]:
    """Hold the home's lock; the kernel lets go of it when the process dies, however it dies.

    It is held in each runtime directory that there is, in their order, and one that does not depend on the environment is
    made for that: another server may be started when not the same of them can be trusted, or with another
    ``XDG_RUNTIME_DIR``. Who finds the lock reads in it where this server listens.
    """
    make_runtime_dir(config.common_runtime_dirs)
    with ExitStack() as held:
        for directory in config.runtime_dirs:
            try:
                within = open_own(directory)
            except OSError:  # it is not there, or not this user's: no server of theirs is in it
                continue
            held.callback(os.close, within)
            held.callback(os.close, _locked_within(within, config.home, runtime_dir))
        yield


def _locked_within(within: int, home: Path, runtime_dir: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(LOCK, flags, 0o600, dir_fd=within)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n%s\n" % (os.getpid(), os.fsencode(runtime_dir)), 0)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).partition(b"\n")[0].decode(errors="replace")
        os.close(descriptor)
        raise ServerAlreadyRunningError(
            f"a server (pid {owner}) already serves {home}; "
            "run `prefeed server stop` first, or set another PREFEED_HOME",
            pid=owner,
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _held_port(port: int) -> Iterator[None]:
    """Hold the port, if there is one, so that no other process takes it; nothing listens there.

    Raises:
        ServerError: Somebody has it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as held:
        try:
            if port:
                held.bind(("127.0.0.1", port))
        except OSError as err:
            raise ServerError(
                f"port {port} on 127.0.0.1 is not available ({err.strerror}): another program uses it; name another "
                "one with `cache_admin --start -p`"
            ) from err
        yield


@contextmanager
def _held_disk(config: Config, own: NodeDirectory) -> Iterator[Path]:
    """Yield the directory of the disk tier, which no other server has, made if there is to be such a tier.

    Raises:
        ServerError: It cannot be made, or another home's server has it.
    """
    if not config.disk.size_bytes:
        yield own.path / _DISK
        return
    directory, held = own.path / _DISK, None
    try:
        if config.disk.directory is None:
            directory.mkdir(mode=0o700, exist_ok=True)
        else:
            held = NodeDirectory.claim(config.disk.directory, [own.number])
    except OSError as err:
        raise ServerError(
            f"cannot make {config.disk_path}: {err.strerror}; name a directory you can write to, as in "
            "PREFEED_DISK=500GB:/nvme"
        ) from err
    except ServerError as err:
        raise ServerError(
            f"{config.disk.directory} is the disk tier of another server: give each PREFEED_HOME its own directory in "
            "PREFEED_DISK"
        ) from err
    if held is None:
        yield directory
        return
    assert config.disk.directory is not None
    with closing(held):
        remove_unused_directories(config.disk.directory, keep=held.path)
        yield held.path


@contextmanager
def _stores(
    config: Config, own: NodeDirectory, files: MemoryFiles
) -> Iterator[tuple[LogWriter, Path, Sessions, bool, tuple[str, ...], _Grant]]:
    """Open the memory tier where there is room for it, beside the sessions; yield also what differs from the settings."""
    name = f"prefeed-{os.getuid()}-{config.node_id}" + (f"-{own.number:x}" if own.number else "")
    parent, on_tmpfs, warning = choose_store_dir(config.memory_dir, own.path, store_name=name)
    store_dir, taken = choose_own_dir(parent, name)
    for left in own.path.glob(_TIER_ON_DISK):  # in place of memory: before this kernel was booted, or there was room
        if left != store_dir:
            remove_tree(left, ignore_errors=True)
    remove_from_killed(own.path.parent, _TIER_ON_DISK, keep=own.path)
    limits = memory_limits(store_dir)
    asked = default_budget_bytes(limits.memory) if config.memory is None else config.memory
    budget, reason = clamp_budget(asked, limits)
    with _held_disk(config, own) as disk_dir:
        disk, disk_reason = _disk_room(config, disk_dir)
        notices = tuple(text for text in (warning, taken, disk_reason) if text)
        for text in (*notices, *([reason] if reason else [])):
            print(f"prefeed: {text}", file=sys.stderr, flush=True)
        if budget < MIN_BUDGET_BYTES:
            with suppress(OSError):
                store_dir.rmdir()  # one that holds nothing
            raise ConfigError(
                f"a memory tier needs at least {MIN_BUDGET_BYTES} bytes, and may take {budget}; "
                + (reason or "raise PREFEED_MEMORY")
            )
        if not on_tmpfs:  # its values have no sums, and the power may have gone since
            SessionFiles(store_dir).remove_all()
        memory = Room(store_dir, budget)
        sessions = Sessions(memory, disk)
        tier = LogWriter(files.index, files.segments, budget_bytes=memory.shares.objects_limit_bytes)
        try:
            yield tier, store_dir, sessions, on_tmpfs, notices, _Grant(asked, budget, reason)
        finally:
            sessions.close()


def _say_damage(node: Node, sessions: Sessions, disk: DiskTier | None) -> None:
    """Say and count what earlier servers left that could not be used."""
    again = "lost objects are fetched again"
    found = [
        *([f"the disk tier was damaged ({disk.damage}), and is emptied: {again}"] if disk and disk.damage else ()),
        *sessions.damage,
    ]
    for text in found:
        node.count_error(StoreDamagedError.code)
        print(f"prefeed: {text}", file=sys.stderr, flush=True)


def _disk_room(config: Config, directory: Path) -> tuple[Room | None, str | None]:
    """Return the room on disk, None when the node is to have none; and what is to be said about it."""
    if not config.disk.size_bytes:
        return None, None
    budget, floor = disk_limits(
        directory, asked_bytes=config.disk.size_bytes, floor_bytes=config.limits.disk_free_bytes
    )
    notice = disk_notice(config.disk.size_bytes, budget, floor, directory)
    return Room(directory, budget, floor_bytes=floor, on_disk=True), notice


def disk_notice(asked_bytes: int, budget_bytes: int, floor_bytes: int, directory: Path) -> str | None:
    """Return a sentence when the disk tier may take less than was asked for, or hardly anything. Pure."""
    least = _LEAST_DISK_BYTES if asked_bytes == EVERYTHING else asked_bytes
    if budget_bytes >= least:
        return None
    rest = f" beyond the {format_bytes(floor_bytes)} that stay free" if floor_bytes else ""
    return (
        f"the disk tier may take {format_bytes(budget_bytes)}: the file system of {directory} has no more{rest}; free space there, "
        "or name a directory on a larger disk, as in PREFEED_DISK=500GB:/nvme"
    )


def _disk_tier(config: Config, room: Room | None) -> DiskTier | None:
    """Open the disk tier of objects, which gets what no stage cache on disk was given; None without a room."""
    if room is None:
        return None
    objects = room.directory / "objects"
    with suppress(FileNotFoundError):
        require_private(objects)
    of_caches = room.shares.budget_bytes - room.shares.objects_limit_bytes
    tier = DiskTier(
        objects,
        budget_bytes=room.shares.objects_limit_bytes,
        min_free_bytes=room.floor_bytes,
        # Others have filled the disk since: nothing more is stored, and what is there stays, if that was not asked for.
        keep_bytes=config.disk.size_bytes - of_caches,
    )
    room.bind(objects_bytes=lambda: tier.file_bytes, resize_objects=tier.resize)
    return tier


@contextmanager
def _signals_that_stop(handlers: Handlers, loop: Loop) -> Iterator[None]:
    def stop(_signum: int, _frame: object) -> None:
        handlers.is_stopping = True
        loop.wake()

    previous = {number: signal.signal(number, stop) for number in END_SIGNALS}
    try:
        os.nice(_NICENESS)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _fetch_processes(config: Config, tier: LogWriter, loop: Loop) -> FetchProcesses[Job] | None:
    """Return the processes that fetch, not started yet; None when the server is to fetch itself."""
    if config.fetch_processes == 0:
        return None
    return FetchProcesses(tier, number=config.fetch_processes, watcher=loop, clock=time.monotonic)


_CLIENT: Final = "pymemcache"


def open_pool(config: Config) -> PoolTier | None:
    """Return the tier that the settings name, None if they name no server; none of them is waited for.

    Raises:
        ConfigError: The client that reaches them is not installed.
    """
    if not config.pool:
        return None
    try:
        module = importlib.import_module("prefeed.server.pool")
    except ModuleNotFoundError as err:
        if err.name is None or err.name.partition(".")[0] != _CLIENT:
            raise
        raise ConfigError(f"PREFEED_POOL needs {_CLIENT}: pip install 'prefeed[pool]'", setting="pool") from err
    tier: PoolTier = module.PoolTier(config.pool.split(","), clock=time.monotonic)
    return tier
