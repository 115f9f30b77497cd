"""Starts and ends mounts: checks the mount point, lists the origin, and starts the holder."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from prefeed.client.launch import server_environment
from prefeed.config import Config
from prefeed.copying.copies import COMPLETE, DATA, PARTIAL, list_copies
from prefeed.datasets.origin import Origin
from prefeed.errors import MountError
from prefeed.fuse.device import missing, mounted_at, unmount
from prefeed.mount.request import KIND, MountRequest, read_bytes_for
from prefeed.mount.tree import find_hidden
from prefeed.system.locks import flock_within
from prefeed.system.signals import hold_job_signals
from prefeed.wire.endpoint import make_runtime_dir

_END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class MountHandle:
    """A running mount.

    Attributes:
        point: Absolute path of the mount point.
        holder: Process that ends after the unmount. The caller must wait for it.
        log: Log file of the holder.
    """

    point: str
    holder: subprocess.Popen[bytes]
    log: Path


def start_mount(
    url: str,
    point: str | os.PathLike[str],
    config: Config,
    *,
    links: Mapping[str, str] | None = None,
    others: bool = False,
) -> MountHandle:
    """Mount an origin read-only. Return when it is readable.

    Args:
        url: URL, path or ``sampleset://NAME``, without credentials.
        point: Empty directory.
        config: Settings.
        links: Names in the root of the mount, and the directories of this machine that they link to.
        others: True if other users may read the mount.

    Raises:
        MountError: FUSE or the mount point is not usable.
        SourceError: Listing the origin failed.
        SampleSetNotFoundError: The set does not exist.
    """
    lacking = missing()
    if lacking is not None:
        raise MountError(f"nothing can be mounted: {lacking}")
    where = _prepare_point(point)
    targets = {name: _check_link(name, target) for name, target in (links or {}).items()}
    origin = Origin(url, config)
    manifest = origin.settle()
    find_hidden(manifest).warn(origin.url, what="files")
    settings = origin.node_config or config
    request = MountRequest(
        url=origin.url, manifest=str(manifest.directory), point=where, links=targets, others=others,
        copies=_find_local_directories(origin.url, settings), read_bytes=read_bytes_for(manifest.sizes),
    )  # fmt: skip
    taken = [name for name in targets if manifest.index_of(name) is not None or manifest.paths_below(name)]
    if taken:
        raise MountError(f"{origin.url} has {taken[0]!r} already; give the output directory another name")
    return _start_holder(request, settings)


def stop_mount(point: str | os.PathLike[str], *, lazily: bool = False) -> None:
    """Unmount a mount of prefeed.

    Args:
        point: Mount point.
        lazily: True to detach a mount in use. Open files stay readable until they are closed.

    Raises:
        MountError: The mount is not one of prefeed, or is in use.
    """
    where = _absolute(point)
    found = mounted_at(where)
    if found is None or found.kind != KIND:
        what = "nothing is" if found is None else f"a file system of type {found.kind} is"
        raise MountError(f"{what} mounted at {where}: `prefeed umount` only ends mounts of `prefeed mount`")
    try:
        unmount(where, lazily=lazily)
    except OSError as err:
        if err.errno == errno.EBUSY:
            raise MountError(
                f"{where} is in use: end the programs that read it (`fuser -vm {where}` shows them), or detach it with --lazy: "
                "open files can then be read until they are closed"
            ) from err
        raise MountError(f"{where} cannot be unmounted: {err}") from err
    if not lazily:
        _wait_for_holder(where)


def _wait_for_holder(where: str) -> None:
    """Wait until the holder of an ended mount has ended, because it would detach the next mount there."""
    place = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock_within(place, _END_SECONDS)
    finally:
        os.close(place)


def _start_holder(request: MountRequest, config: Config) -> MountHandle:
    log = make_runtime_dir(config.runtime_dirs) / f"mount-{xxh3_64_hexdigest(request.point.encode())}.log"
    with log.open("wb") as output, hold_job_signals():
        holder = subprocess.Popen(
            [sys.executable, "-m", "prefeed.mount.holder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=server_environment(config, os.environ),
        )
    assert holder.stdin is not None, "started with pipes"
    assert holder.stdout is not None, "started with pipes"
    with holder.stdout as answer, contextlib.suppress(BrokenPipeError):
        with holder.stdin as asked:
            asked.write(msgspec.json.encode(request))
        words = answer.readline().decode("utf-8", "replace")
    if words == "\n":
        return MountHandle(request.point, holder, log)
    status = holder.wait()
    raise MountError(f"{request.point} cannot be mounted: {words.strip() or f'status {status}; see {log}'}")


def _absolute(point: str | os.PathLike[str]) -> str:
    """Return the absolute path of a mount point without accessing the mount, which may not respond."""
    directory, name = os.path.split(os.path.abspath(os.fspath(point)))
    return os.path.join(os.path.realpath(directory), name) if name else directory


def _prepare_point(point: str | os.PathLike[str]) -> str:
    """Check that a mount point is an empty directory. Detach a mount of prefeed without a daemon first."""
    where = _absolute(point)
    if os.path.islink(where):
        where = os.path.realpath(where)
    found = mounted_at(where)
    try:
        names = os.listdir(where)
    except FileNotFoundError as err:
        raise MountError(f"{where} does not exist: create the directory first (mkdir -p {where})") from err
    except NotADirectoryError as err:
        raise MountError(f"{where} is not a directory: name an empty one") from err
    except OSError as err:
        is_dead = err.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        if not is_dead or found is None or found.kind != KIND:
            raise MountError(f"{where} cannot be used: {os.strerror(err.errno or 0)}") from err
        unmount(where, lazily=True)
        return _prepare_point(where)
    if found is not None and found.kind == KIND:
        raise MountError(f"{found.source} is already mounted at {where}; run `prefeed umount {where}` first")
    if names:
        shown = sorted(names)[0]
        raise MountError(f"{where} is not empty ({len(names)} names, such as {shown!r}): name an empty directory")
    return where


def _check_link(name: str, target: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise MountError(f"{name!r} is not a valid name below the mount: write NAME=DIR, with a NAME without slashes")
    where = os.path.abspath(target)
    if not os.path.isdir(where):
        raise MountError(f"{where} is not a directory: create it first, for {name}={target}")
    return where


def _find_local_directories(url: str, config: Config) -> tuple[str, ...]:
    """Return the directories that may contain large objects: staged copies and a local origin."""
    staged = [
        f"{copy.directory}/{DATA}"
        for copy in list_copies(config)
        if copy.source == url and copy.state in (COMPLETE, PARTIAL)
    ]
    return (*staged, url) if url.startswith("/") else tuple(staged)
