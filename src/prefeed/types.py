"""Values that every layer shares. No behaviour, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NewType

ObjectId = NewType("ObjectId", int)
"""Dense index of an object in its manifest, 0 <= id < num_objects."""

EntryKey = NewType("EntryKey", bytes)
"""16 bytes: xxh3-128 of (source url, path, version). Equal keys mean equal bytes."""

ENTRY_KEY_BYTES = 16

EPOCHS_KEPT = 256
"""Reports of loaders' epochs that statistics show; the oldest go."""

Buffer = bytes | bytearray | memoryview

ListingProgress = Callable[[int, int], None]
"""Called with (objects listed so far, bytes listed so far)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One line of a listing.

    Attributes:
        path: Relative to the source's root, ``/`` between parts, no leading ``/``.
        size_bytes: Size in bytes; -1 when the listing does not say.
        version: Changes whenever the bytes do: an etag, or ``mtime_ns-size``; ``""`` if unknown.
        modified_seconds: When a store says that it was last changed, in seconds since 1970; 0 when nothing says so.
        sends_parts: False if its web server sends the object only as a whole.
    """

    path: str
    size_bytes: int
    version: str
    modified_seconds: int = field(default=0, compare=False)
    sends_parts: bool = field(default=True, compare=False)


@dataclass(slots=True, kw_only=True)
class FetchedObject:
    """One whole object as the origin gave it; not frozen, which would take three times as long to make for each object.

    Attributes:
        data: The bytes; anything with the buffer protocol.
        version: Version observed with these bytes, comparable to ``ObjectInfo.version``; ``""`` if unknown.
        inode: Which file they were read from, as ``posix.identity_of`` says; 0 where that means nothing.
        modified_seconds: When the object was last changed, as a store or web server says, since 1970; 0 when it does not.
        encoding: What a web server says that it did to the bytes, such as ``gzip``; ``""`` for nothing.
        is_end_known: False when the connection's end was all that told where the object ends: it may have broken off.
        object_bytes: Of a part of an object: size of the whole object, as the answer states it; -1 if it does not.
    """

    data: Buffer
    version: str
    inode: int = 0
    modified_seconds: int = 0
    encoding: str = ""
    is_end_known: bool = True
    object_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCounts:
    """The disk tier of objects.

    Attributes:
        objects: Objects held.
        bytes: Their size in bytes.
        budget_bytes: Most bytes that its files may take; 0 when there is no disk tier.
        reads: Fetches that it served instead of the origin, since the server started.
        corrupt: Objects that were found damaged, and fetched again.
        dropped: Objects that were not stored because the disk was too slow, since the server started.
    """

    objects: int = 0
    bytes: int = 0
    budget_bytes: int = 0
    reads: int = 0
    corrupt: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """The pool tier, as this node's server uses it; since it started.

    Attributes:
        servers: Servers that the node is to use; 0 when there is no pool.
        left_out: How many of them do not answer now.
        hits: Fetches that the pool served instead of the origin.
        misses: Fetches that it did not serve.
        read_bytes: Size in bytes of what it served.
        stored: Objects that this node put into it.
        written_bytes: Their size in bytes.
        corrupt: Values that were there and wrong, and were fetched elsewhere.
        dropped: Objects that were not stored because the pool was slower than the origin.
        refused: Objects that were not stored because a server had no room.
        failures: How often a server was left out: it did not answer in time, or answered something else.
        waits: Fetches that waited because another node had said that it makes them.
        waits_in_vain: Those of them that the origin had to serve in the end.
    """

    servers: int = 0
    left_out: int = 0
    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    stored: int = 0
    written_bytes: int = 0
    corrupt: int = 0
    dropped: int = 0
    refused: int = 0
    failures: int = 0
    waits: int = 0
    waits_in_vain: int = 0

    @property
    def answering(self) -> int:
        """How many of the servers answer now."""
        return self.servers - self.left_out

    @property
    def hit_ratio(self) -> float | None:
        """Share of the fetches that asked the pool which it served; None before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCounts:
    """Sessions of the node, their caches, and what these take in memory and on disk, in bytes.

    Attributes:
        audits: Samples that were found, recomputed and compared, since the server started.
        audits_failed: Those that were not as they had been kept.
        not_kept: Samples that were made and not kept because another process, which may be suspended, kept the turn to write.
    """

    sessions: int = 0
    caches: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    audits: int = 0
    audits_failed: int = 0
    not_kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginReads:
    """How samples over one origin are read, and what that is decided by; of one epoch, or of all that ended.

    Attributes:
        origin: A canonical URL without credentials, or the directory above its files.
        in_place: True when an epoch that ended was read in place, past the cache.
        why: In a few words; empty where nothing was to be decided.
        open_seconds: How long storage let a read wait, the mean of those that were measured in the last epoch that measured some; None
            before that.
        question_seconds: How long the server let a question wait that asks for no object, the shortest that was measured by who
            reported last; None before that.
        samples: Made in place.
        files: About how many files these opened, as measured samples did.
        bytes: About their size.
    """

    origin: str
    in_place: bool
    why: str = ""
    open_seconds: float | None = None
    question_seconds: float | None = None
    samples: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWait:
    """How long a training loop waited for one loader in one epoch.

    Attributes:
        loader: What the log calls it: its name in the program, and the class of its dataset.
        rank: Of the process among those that train together; None when it trains alone.
        epoch: Number of the loader's whole pass, from 1.
        batches: Batches that the loop got.
        seconds: From ``iter(loader)`` to the last batch.
        waited_seconds: Part of it in which the loop waited for an iterator or a batch.
        reads: How its samples were read; None where that is not known.
    """

    loader: str
    rank: int | None
    epoch: int
    batches: int
    seconds: float
    waited_seconds: float
    reads: OriginReads | None = None

    @property
    def waited_share(self) -> float:
        """Share of the epoch in which the loop waited for data, 0 to 1."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCounts:
    """How reads went: those of one loader since it was attached to the node, or of all since the server started.

    Attributes:
        hits: Reads that found their object in a tier.
        late: Reads that came while the object was being fetched ahead.
        misses: Reads of an object that was not requested ahead of time.
        direct_reads: Reads that bypassed the server: no server, no room, or in place (of these, about so many).
        best_hit_ratio: The most that any policy could reach with this budget, for what is read now or was last; 1.0 when all
            fits; None before the first plan.
    """

    hits: int = 0
    late: int = 0
    misses: int = 0
    direct_reads: int = 0
    best_hit_ratio: float | None = None

    @property
    def reads(self) -> int:
        """All reads, however served."""
        return self.hits + self.late + self.misses + self.direct_reads

    @property
    def hit_ratio(self) -> float | None:
        """Share of reads that needed no origin request of this epoch's own; None before the first read."""
        return self.hits / self.reads if self.reads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(ReadCounts):
    """Counts since the server started; a snapshot.

    Attributes:
        hits, late, misses, direct_reads, best_hit_ratio: As in ``ReadCounts``, of all loaders. Reads in place are counted when their
            epoch has ended.
        hit_bytes: Bytes of the hits: of whole objects, and of the parts that were read of large ones.
        origin_requests: Requests that the server made to origins, retries included.
        origin_bytes: Bytes that came back.
        origin_seconds: How long the requests took, added up.
        resident_objects: Objects kept for the next epoch.
        resident_bytes: Their size as stored, in bytes.
        transient_objects: Objects that are freed once consumed.
        transient_bytes: Their size as stored, in bytes.
        budget_bytes: Most bytes the memory tier may hold.
        errors: Failed fetches by error code.
        sessions: Stage caches beside the objects.
        disk: Objects on disk, behind those in memory.
        pool: Objects in the pool that nodes share, behind those on disk.
        epochs: The last epochs of the loaders that the server knows, in the order in which they ended.
        origins: How samples are read, by origin, summed over the epochs that loaders reported.
    """

    hit_bytes: int = 0
    origin_requests: int = 0
    origin_bytes: int = 0
    origin_seconds: float = 0.0
    resident_objects: int = 0
    resident_bytes: int = 0
    transient_objects: int = 0
    transient_bytes: int = 0
    budget_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    sessions: SessionCounts = SessionCounts()
    disk: DiskCounts = DiskCounts()
    pool: PoolCounts = PoolCounts()
    epochs: tuple[EpochWait, ...] = ()
    origins: tuple[OriginReads, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """What ``prefeed server status`` shows.

    Attributes:
        pid: Process id of the server.
        version: Version of the prefeed package it runs.
        home: Directory whose cache it serves.
        store: Directory of the memory tier.
        on_tmpfs: False when the memory tier fell back to a directory on disk.
        uptime_seconds: Since start.
        clients: Open connections.
        plans: Registered plans.
        in_flight: Requests under way to origins.
        max_in_flight: Limit in force, as tuned from what was observed.
        notices: What differs from what was asked for: a smaller memory tier, or one on disk.
        sessions: Stage caches beside the objects.
        metrics: URL of the metrics; empty when none are served.
        fetch_processes: Process ids of those that fetch for it now.
    """

    pid: int
    version: str
    home: str
    store: str
    on_tmpfs: bool
    uptime_seconds: float
    clients: int
    plans: int
    in_flight: int
    max_in_flight: int
    notices: tuple[str, ...] = ()
    sessions: SessionCounts = SessionCounts()
    metrics: str = ""
    fetch_processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnd:
    """How a node server ended.

    Attributes:
        pid: Its process.
        killed: True when it neither answered nor ended by itself: what it had in memory stays for the next one.
    """

    pid: int
    killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentServer:
    """A node server that owns its home and does not answer.

    Attributes:
        pid: Its process.
        suspended: True when a signal has stopped it; else it is busy, or its control group is frozen.
    """

    pid: int
    suspended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInfo:
    """How far one consumer has come.

    Attributes:
        consumer: Its number; negative for a warm-up.
        dataset: Root of what it reads: a canonical URL, without credentials.
        position: Objects of its plan that its loop has.
        length: Objects of its plan, as far as it is known.
        ahead_objects: Objects that are being fetched, or wait, for it alone.
        ahead_bytes: Their size as stored, in bytes.
        reads: How its reads went, since it was attached to the node.
        warm: True when it fills the cache, and no reader reads along.
        has_next: True when the order after this plan is known too.
        memory_bytes: About what the server keeps for the plan: ids, and who expects what.
        last_epoch: The last epoch that its loader reported; None before the first has ended.
    """

    consumer: int
    dataset: str
    position: int
    length: int
    ahead_objects: int = 0
    ahead_bytes: int = 0
    reads: ReadCounts = ReadCounts()
    warm: bool = False
    has_next: bool = False
    memory_bytes: int = 0
    last_epoch: EpochWait | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmResult:
    """Outcome of filling the cache from a URL.

    Attributes:
        objects: Objects below the URL, or of the order that was given.
        bytes: Their size in bytes.
        resident: How many of them are in the cache now, in memory.
        fetched: How many of these were fetched just now.
        failed: How many could not be fetched.
        seconds: How long it took.
        on_disk: How many of those that are not in memory are on disk.
    """

    objects: int
    bytes: int
    resident: int
    fetched: int
    failed: int
    seconds: float
    on_disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearResult:
    """Outcome of emptying the cache: entries freed, and their size as stored in bytes."""

    entries: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """One stage cache: what ``dataset[i]`` returned, at one stage of one pipeline.

    Attributes:
        cache: 32-bit id, made from the fingerprint of everything below the cache.
        description: The stage, for people.
        memory_entries: Samples in memory.
        memory_bytes: Their size in bytes, as encoded.
        disk_entries: Samples on disk.
        disk_bytes: Their size in bytes, as encoded.
        hits: Reads that found their sample, in all processes, since the cache was made in memory; also those that waited
            until another process had made it.
        misses: Samples that were made.
        size_bytes: Most bytes of memory that it was asked to take; 0 = what the server can give.
        spilling: True when what does not fit into memory goes to disk.
        clients: Connections that use it now.
    """

    cache: int
    description: str
    memory_entries: int
    memory_bytes: int
    disk_entries: int
    disk_bytes: int
    hits: int
    misses: int
    size_bytes: int
    spilling: bool
    clients: int

    @property
    def average_bytes(self) -> float:
        """Mean size of a sample as encoded, in bytes; 0 when there is none."""
        entries = self.memory_entries + self.disk_entries
        return (self.memory_bytes + self.disk_bytes) / entries if entries else 0.0

    @property
    def hit_ratio(self) -> float | None:
        """Share of reads that found their sample; None before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One session.

    Attributes:
        session: 32-bit id; 0 is the default session.
        caches: Its caches, by id.
        numa_node: NUMA node that their memory lies on; None when it may be several.
    """

    session: int
    caches: tuple[CacheInfo, ...] = ()
    numa_node: int | None = None
