"""What was applied: one directory a sample set.

::

    <home>/samplesets/.lock             held by who applies or deletes
    <home>/samplesets/<name>/           0700
        sampleset.json                  name, namespace, spec, where the data is read; without it there is no set
        progress.json                   how far it has come: listed, copied, what failed
        working                         held by the process that brings it up, whose log is beside it
        node/                           the home of its node server, with credentials.json (0600)
        jobs/                           its jobs
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
"""What is left of a set: a directory in which anything else lies is none."""

_HEARTBEAT_SECONDS: Final = 20.0
"""How often who brings a set up says so."""

_STALE_SECONDS: Final = 600.0
"""Who has not said so for that long does not do it any more."""

_APPLY_SECONDS: Final = 60.0
"""What is done at once takes seconds."""

_DELETED_SECONDS: Final = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """A sample set that was applied.

    Attributes:
        name: Its name.
        namespace: As it was written; names are unique over all namespaces.
        spec: What was asked for.
        source_url: Where the data comes from; no credentials in it. The origin, when there is no source.
        origin_url: Where it is read: ``source_url``, or the bucket that it is copied to.
        directory: Its records; jobs keep theirs below ``jobs``.
        created: Seconds since 1970 when it was first applied.
        document: The ``spec`` as it was written.
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
        """True when data is copied to where it is read."""
        return self.source_url != self.origin_url

    @property
    def read_url(self) -> str:
        """URL below which names of the set lie: the origin, or the directory in it that ``sub-dir`` names."""
        below = self.spec.options.below.strip("/")
        return f"{self.origin_url.rstrip('/')}/{below}" if below else self.origin_url

    def url_of(self, path: str) -> str:
        """Return the URL of what lies at a path below ``read_url``; empty: that itself."""
        return f"{self.read_url.rstrip('/')}/{path}" if path else self.read_url

    @property
    def home(self) -> Path:
        """Home of the node that serves the set."""
        return self.directory / _NODE

    def settings(self, base: Config) -> Config:
        """Return the settings of the node that serves the set: its own home, its levels as tiers.

        What the document does not say is as in ``base``.
        """
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
    """Return where the node shows metrics: an address of its own, since that of ``base`` is another server's."""
    if address is not None:
        return cast("str | None", SETTINGS["metrics"].metadata["parse"](address))
    return None if base.metrics else base.metrics


# ---------------------------------------------------------------- finding


def find(name: str, config: Config) -> SampleSet:
    """Return a sample set by its name.

    Raises:
        SampleSetNotFoundError: There is none; the message says which there are.
        CredentialsError: Another user owns it.
        SampleSetError: Its record is damaged.
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
"""Sets that were found, with the version of their records: decoding one takes longer than a cached read."""


def _version_of(record: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(record)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def set_of_home(home: Path) -> SampleSet | None:
    """Return the sample set whose node has this home; None when there is none, or its record is damaged."""
    data = read_private(home.parent / RECORD) if home.name == _NODE else None
    try:
        return None if data is None else _decode_record(data, home.parent)
    except (ValueError, msgspec.ValidationError):
        return None


def names(config: Config) -> list[str]:
    """Return the names of all sample sets, sorted.

    Raises:
        ConfigError: The home is another user's, and closed to this one.
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
    """Return where a sample set of this name has its records, whether there is one or not.

    Raises:
        SpecError: It is no name.
    """
    require_name(name, "the name of a sample set")
    return config.home / _DIRECTORY / name


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What lies on disk of a set."""

    format: Literal[1] = 1
    spec: Document
    name: str
    namespace: str
    source_url: str
    origin_url: str
    created: float


def _is_recorded(found: SampleSet) -> bool:
    """Return whether this very set is there, and not another one of its name."""
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
    """The set is recorded, whole or not at all.

    Raises:
        OSError: It cannot be written.
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
    """There is no such set any more; its name first, so that half of it is never found.

    Args:
        found: The set.
        keep_home: What its servers have open stays: some run on other nodes. ``remove_deleted`` removes it later.
    """
    (found.directory / RECORD).unlink(missing_ok=True)
    if keep_home:
        (found.directory / PROGRESS).unlink(missing_ok=True)
    else:
        remove_tree(found.directory, ignore_errors=True)


def remove_deleted(config: Config) -> None:
    """Remove what was left of sets that were deleted while servers of other nodes used them, when none does so any more."""
    for directory in (config.home / _DIRECTORY).glob("*/"):
        with suppress(OSError):
            is_old = time.time() - directory.stat().st_mtime > _DELETED_SECONDS
            is_ours = all(map(_LEFTOVERS.fullmatch, os.listdir(directory)))
            is_deleted = is_ours and not (directory / RECORD).exists()
            if is_old and is_deleted and not servers_elsewhere(directory / _NODE):
                remove_tree(directory, ignore_errors=True)


@contextmanager
def lock_sets(config: Config) -> Iterator[None]:
    """One at a time applies and deletes; the kernel lets go of the lock when the process dies.

    Raises:
        OSError: The home cannot be written.
    """
    directory = config.home / _DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(directory / ".lock", _APPLY_SECONDS):
        yield


@contextmanager
def _locked(path: Path, patience_seconds: float) -> Iterator[int]:
    """Hold a lock, and yield its file, which its holder touches; one who has not done so for that long is not waited for.

    On NFS a node that is gone may keep a lock for ever, and elsewhere a process that is stopped. Without locks, too, what two
    do at once is done twice, each file whole.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock_within(descriptor, patience_seconds, life=lambda: os.fstat(descriptor).st_mtime_ns)
        with suppress(OSError):
            os.utime(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- how far it has come


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a set has come; what can be seen is not written here.

    Attributes:
        begun: The source could be opened and is being copied or listed, or was; seconds since 1970, 0.0: not yet.
        synced: Its data was copied to where it is read; seconds since 1970, 0.0: not yet.
        listed: What it holds is known; seconds since 1970, 0.0: not yet.
        emptied: A job has left nothing of it; seconds since 1970, 0.0: it has not.
        error: Why the last try ended; empty: it did not, or well.
        sync_job: Id of the job that copies.
        warmup_job: Id of the last job that filled the tiers.
        changed: Seconds since 1970 when this was written.
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
    """Return how far a set has come."""
    try:
        return msgspec.convert(json.loads(read_private(found.directory / PROGRESS) or b"{}"), Progress)
    except (ValueError, msgspec.ValidationError):
        return Progress()


def record_progress(found: SampleSet, **changes: Any) -> Progress:
    """Some of it has changed; return what is noted now. Nothing is noted of a set that was deleted meanwhile."""
    progress = replace(read_progress(found), **changes, changed=time.time())
    if (found.directory / RECORD).exists():
        write_private(found.directory / PROGRESS, json.dumps(asdict(progress), indent=1).encode())
    return progress


@contextmanager
def lock_set(found: SampleSet) -> Iterator[None]:
    """Inside it this process brings the set up; another one that does so is waited for."""
    with (
        _locked(found.directory / "working", _STALE_SECONDS) as lock,
        call_periodically(lambda: os.utime(lock), every_seconds=_HEARTBEAT_SECONDS, name="prefeed-set"),
    ):
        yield


@contextmanager
def lock_recorded(found: SampleSet) -> Iterator[None]:
    """The set that was found is there, and is not deleted, nor worked at by another process, during the block.

    Raises:
        SampleSetNotFoundError: It was deleted since it was found, perhaps while this waited; another of its name is not it.
    """
    with ExitStack() as stack:
        with suppress(FileNotFoundError):
            stack.enter_context(lock_set(found))
        if not _is_recorded(found):
            raise SampleSetNotFoundError(
                f"the sample set {found.name!r} was deleted meanwhile; nothing was done", name=found.name
            )
        yield


def is_being_set_up(found: SampleSet) -> bool:
    """Return True while a process brings the set up; one that was killed, or says nothing of itself, does not."""
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
