"""Records of applied sample sets: one directory per set.

::

    <home>/samplesets/.lock             locked while documents are applied or a set is deleted
    <home>/samplesets/<name>/           0700
        sampleset.json                  name, namespace, spec and URLs; without this file the set does not exist
        progress.json                   progress: listed, copied, error
        working                         locked by the process that brings up the set
        node/                           home of the set's node server, with credentials.json (0600)
        jobs/                           records of the set's jobs
    <home>/secrets/<name>.json          0600
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from prefeed.config import MIB, SETTINGS, Config
from prefeed.errors import ConfigError, CredentialsError, SampleSetError, SampleSetNotFoundError
from prefeed.sampleset.documents import Document, require_name
from prefeed.sampleset.spec import SampleSetSpec, parse_spec
from prefeed.sampleset.tiers import tier_settings
from prefeed.store.node_directory import servers_elsewhere
from prefeed.system.clock import call_periodically
from prefeed.system.files import read_private, write_private
from prefeed.system.locks import flock_within, try_flock
from prefeed.system.removing import remove_tree

RECORD: Final = "sampleset.json"
PROGRESS: Final = "progress.json"
_DIRECTORY: Final = "samplesets"
_NODE: Final = "node"
_LEFTOVERS: Final = re.compile(r"node|jobs|working|bring-up\.log|\.?progress\.json.*|\.sampleset\.json\..*")
"""Files of a deleted set. A directory with other files is not one of a deleted set and is kept."""

_HEARTBEAT_SECONDS: Final = 20.0
"""Interval at which the process that brings up a set touches its lock file."""

_STALE_SECONDS: Final = 600.0
"""Age of the lock file from which its holder counts as dead, for example because its node has failed."""

_APPLY_SECONDS: Final = 60.0
"""Maximum wait for another process that applies or deletes, which takes seconds."""

_DELETED_SECONDS: Final = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """An applied sample set.

    Attributes:
        name: Name, unique over all namespaces.
        namespace: Namespace as written.
        spec: Requested state.
        source_url: URL that the data comes from, without credentials. Equal to ``origin_url`` if the spec has no source.
        origin_url: URL that the data is read from: ``source_url``, or the bucket that the data is copied to.
        directory: Directory of the records. Those of jobs are in ``jobs`` below it.
        created: Time of the first apply, in seconds since 1970.
        document: The ``spec`` as written.
    """

    name: str
    namespace: str
    spec: SampleSetSpec
    source_url: str
    origin_url: str
    directory: Path
    created: float
    document: Document = field(compare=False, repr=False)

    @property
    def needs_sync(self) -> bool:
        """True if the data is copied from the source to another origin."""
        return self.source_url != self.origin_url

    @property
    def read_url(self) -> str:
        """Root URL of the set's objects: the origin, or its directory ``sub-dir``."""
        below = self.spec.options.below.strip("/")
        return f"{self.origin_url.rstrip('/')}/{below}" if below else self.origin_url

    def url_of(self, path: str) -> str:
        """Return the URL of a path below ``read_url``. An empty path gives ``read_url``."""
        return f"{self.read_url.rstrip('/')}/{path}" if path else self.read_url

    @property
    def home(self) -> Path:
        """Home of the set's node server."""
        return self.directory / _NODE

    def settings(self, base: Config) -> Config:
        """Return the settings of the set's node: its own home and tiers, and all else as in ``base``."""
        options = self.spec.options
        changes: dict[str, Any] = {"home": self.home, "idle_timeout": 0.0}
        changes.update(tier_settings(self.spec, base, self.home))
        limits = changes.get("limits", base.limits)
        if options.get_timeout is not None:
            limits = replace(limits, request_seconds=float(options.get_timeout))
        if options.buffer_size is not None:
            limits = replace(limits, lookahead_bytes=options.buffer_size * MIB)
        changes["limits"] = limits
        changes["metrics"] = _metrics_address(options.metrics, base)
        return replace(base, **changes)


def _metrics_address(address: str | None, base: Config) -> str | None:
    """Return the address for the node's metrics. The address of ``base`` is used by another server."""
    if address is not None:
        return cast("str | None", SETTINGS["metrics"].metadata["parse"](address))
    return None if base.metrics else base.metrics


# ---------------------------------------------------------------- finding


def find(name: str, config: Config) -> SampleSet:
    """Return a sample set by its name.

    Raises:
        SampleSetNotFoundError: No set has this name. The message lists the existing names.
        CredentialsError: Another user owns the set.
        SampleSetError: The record is damaged.
    """
    directory = directory_of(name, config)
    known, version = _found.get(directory), _version_of(directory / RECORD)
    if version is not None and known is not None and known[0] == version:
        return known[1]
    try:
        data = read_private(directory / RECORD)
    except CredentialsError as err:
        if isinstance(err.__cause__, PermissionError) and config.home.exists():
            raise CredentialsError(
                f"user {os.geteuid()} cannot read the sample set {name}: user {config.home.stat().st_uid} owns {config.home} and alone may "
                "read it; run this as that user. In a pod: set securityContext.runAsUser, or the annotation prefeed.io/user of the set",
                path=str(directory / RECORD),
            ) from err
        raise
    if data is None:
        there = ", ".join(names(config)) or "none"
        raise SampleSetNotFoundError(
            f"there is no sample set {name!r} in {config.home} (there: {there}); apply one with `prefeed sampleset apply -f "
            "FILE`, or set PREFEED_HOME to where it was applied",
            name=name,
        )
    try:
        found = _decode_record(data, directory)
        _found[directory] = version, found
        return found
    except (ValueError, msgspec.ValidationError) as err:
        raise SampleSetError(f"{directory / RECORD} is damaged; apply the sample set {name} again") from err


_found: dict[Path, tuple[tuple[int, ...] | None, SampleSet]] = {}
"""Decoded sets with the version of their records, because decoding takes longer than a cached read."""


def _version_of(record: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(record)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def set_of_home(home: Path) -> SampleSet | None:
    """Return the sample set whose node has this home; None if none has, or its record is damaged."""
    data = read_private(home.parent / RECORD) if home.name == _NODE else None
    try:
        return None if data is None else _decode_record(data, home.parent)
    except (ValueError, msgspec.ValidationError):
        return None


def names(config: Config) -> list[str]:
    """Return the names of all sample sets, sorted.

    Raises:
        ConfigError: The home belongs to another user and cannot be read.
    """
    try:
        return sorted(file.parent.name for file in (config.home / _DIRECTORY).glob(f"*/{RECORD}"))
    except PermissionError as err:
        raise ConfigError(
            f"user {os.geteuid()} cannot read {err.filename}: it is another user's; run this as that user, or set PREFEED_HOME to a "
            "directory of your own",
            setting="home",
        ) from err


def directory_of(name: str, config: Config) -> Path:
    """Return the directory for the records of a set, which need not exist.

    Raises:
        SpecError: The name is invalid.
    """
    require_name(name, "the name of a sample set")
    return config.home / _DIRECTORY / name


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``sampleset.json``."""

    format: Literal[1] = 1
    spec: Document
    name: str
    namespace: str
    source_url: str
    origin_url: str
    created: float


def _is_recorded(found: SampleSet) -> bool:
    """Return True if the set still exists and was not replaced by a new set of the same name."""
    data = read_private(found.directory / RECORD)
    try:
        return data is not None and msgspec.convert(json.loads(data), _Record).created == found.created
    except (ValueError, msgspec.ValidationError):
        return False


def _decode_record(data: bytes, directory: Path) -> SampleSet:
    record = msgspec.convert(json.loads(data), _Record)
    return SampleSet(
        name=record.name,
        namespace=record.namespace,
        spec=parse_spec(record.spec),
        source_url=record.source_url,
        origin_url=record.origin_url,
        directory=directory,
        created=record.created,
        document=record.spec,
    )


# ---------------------------------------------------------------- writing


def write_record(found: SampleSet) -> None:
    """Write the record of a set atomically.

    Raises:
        OSError: The file cannot be written.
    """
    found.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = _Record(
        spec=found.document,
        name=found.name,
        namespace=found.namespace,
        source_url=found.source_url,
        origin_url=found.origin_url,
        created=found.created,
    )
    data = json.dumps(msgspec.structs.asdict(record), indent=1, default=str)
    write_private(found.directory / RECORD, data.encode())


def remove_record(found: SampleSet, *, keep_home: bool = False) -> None:
    """Remove the record and directory of a set. The record goes first, so that a partial set is never found.

    Args:
        found: The set.
        keep_home: True to keep the files that servers on other nodes have open. ``remove_deleted`` removes them later.
    """
    (found.directory / RECORD).unlink(missing_ok=True)
    if keep_home:
        (found.directory / PROGRESS).unlink(missing_ok=True)
    else:
        remove_tree(found.directory, ignore_errors=True)


def remove_deleted(config: Config) -> None:
    """Remove the files of deleted sets that servers on other nodes no longer use."""
    for directory in (config.home / _DIRECTORY).glob("*/"):
        with suppress(OSError):
            is_old = time.time() - directory.stat().st_mtime > _DELETED_SECONDS
            is_ours = all(map(_LEFTOVERS.fullmatch, os.listdir(directory)))
            is_deleted = is_ours and not (directory / RECORD).exists()
            if is_old and is_deleted and not servers_elsewhere(directory / _NODE):
                remove_tree(directory, ignore_errors=True)


@contextmanager
def lock_sets(config: Config) -> Iterator[None]:
    """Hold the lock for applying and deleting sets. The kernel releases the lock if the process dies.

    Raises:
        OSError: The home cannot be written.
    """
    directory = config.home / _DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(directory / ".lock", _APPLY_SECONDS):
        yield


@contextmanager
def _locked(path: Path, patience_seconds: float) -> Iterator[int]:
    """Hold a file lock and yield its descriptor, which a long-running holder must touch.

    If the holder has not touched the file for ``patience_seconds``, continue without the lock. Otherwise, a failed NFS client or a
    stopped process would block all others forever. Two processes that run at once repeat work, but write each file atomically.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock_within(descriptor, patience_seconds, life=lambda: os.fstat(descriptor).st_mtime_ns)
        with suppress(OSError):
            os.utime(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a set, except for facts that can be observed. Times are in seconds since 1970, 0.0 for not yet.

    Attributes:
        begun: Time when the source was opened, before copying and listing.
        synced: Time when the data was copied to the origin.
        listed: Time when the origin was listed.
        emptied: Time when a job removed the last object.
        error: Error of the last attempt; empty if it succeeded or is still running.
        sync_job: Id of the job that copies the data.
        warmup_job: Id of the last job that filled the tiers.
        changed: Time when this record was written.
    """

    begun: float = 0.0
    synced: float = 0.0
    listed: float = 0.0
    emptied: float = 0.0
    error: str = ""
    sync_job: str = ""
    warmup_job: str = ""
    changed: float = 0.0


def read_progress(found: SampleSet) -> Progress:
    """Read the progress of a set; if the file is missing or damaged, return one without progress."""
    try:
        return msgspec.convert(json.loads(read_private(found.directory / PROGRESS) or b"{}"), Progress)
    except (ValueError, msgspec.ValidationError):
        return Progress()


def record_progress(found: SampleSet, **changes: Any) -> Progress:
    """Update and return the progress of a set. If the set was deleted, nothing is written."""
    progress = replace(read_progress(found), **changes, changed=time.time())
    if (found.directory / RECORD).exists():
        write_private(found.directory / PROGRESS, json.dumps(asdict(progress), indent=1).encode())
    return progress


@contextmanager
def lock_set(found: SampleSet) -> Iterator[None]:
    """Hold the lock of a set for bringing it up or for a job, and touch it regularly."""
    with (
        _locked(found.directory / "working", _STALE_SECONDS) as lock,
        call_periodically(lambda: os.utime(lock), every_seconds=_HEARTBEAT_SECONDS, name="prefeed-set"),
    ):
        yield


@contextmanager
def lock_recorded(found: SampleSet) -> Iterator[None]:
    """Hold the lock of a set and check that the set still exists.

    Raises:
        SampleSetNotFoundError: The set was deleted since it was found, perhaps during the wait for the lock.
    """
    with ExitStack() as stack:
        with suppress(FileNotFoundError):
            stack.enter_context(lock_set(found))
        if not _is_recorded(found):
            raise SampleSetNotFoundError(
                f"the sample set {found.name!r} was deleted in the meantime; nothing was done", name=found.name
            )
        yield


def is_being_set_up(found: SampleSet) -> bool:
    """Return True if a live process brings up the set: the lock is held, and was touched recently."""
    try:
        descriptor = os.open(found.directory / "working", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if try_flock(descriptor, fcntl.LOCK_SH):
            return False
        return time.time() - os.fstat(descriptor).st_mtime < _STALE_SECONDS
    finally:
        os.close(descriptor)
