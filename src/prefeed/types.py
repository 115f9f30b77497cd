"""Value types that all layers share. They have no behaviour and do no I/O."""

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
"""Maximum number of epochs in the statistics. The oldest are dropped first."""

Buffer = bytes | bytearray | memoryview

ListingProgress = Callable[[int, int], None]
"""Called with (objects listed so far, bytes listed so far)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object of a listing.

    Attributes:
        path: Relative to the source's root, ``/`` between parts, no leading ``/``.
        size_bytes: Size in bytes; -1 if the listing does not include it.
        version: Changes with the bytes: an ETag, or ``mtime_ns-size``; ``""`` if unknown.
        modified_seconds: Time of the last change according to the store, in seconds since 1970; 0 if unknown.
        sends_parts: False if the web server does not support range requests for the object.
    """

    path: str
    size_bytes: int
    version: str
    modified_seconds: int = field(default=0, compare=False)
    sends_parts: bool = field(default=True, compare=False)


@dataclass(slots=True, kw_only=True)
class FetchedObject:
    """An object, or a part of one, as the origin sent it.

    Not frozen, because creating a frozen instance takes three times as long, and one is created per object.

    Attributes:
        data: The bytes; anything with the buffer protocol.
        version: Version observed with these bytes, comparable to ``ObjectInfo.version``; ``""`` if unknown.
        inode: Identity of the file, as returned by ``posix.identity_of``; 0 if the origin has none.
        modified_seconds: Time of the last change according to the origin, in seconds since 1970; 0 if unknown.
        encoding: ``Content-Encoding`` of the response, such as ``gzip``; ``""`` for none.
        is_end_known: False if only the end of the connection marked the end of the object, which may therefore be truncated.
        object_bytes: For a part of an object, the size of the whole object according to the response; -1 if unknown.
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
    """Counts of the disk tier.

    Attributes:
        objects: Objects held.
        bytes: Their size in bytes.
        budget_bytes: Maximum size of the tier's files, in bytes; 0 without a disk tier.
        reads: Fetches that the tier served instead of the origin, since the server started.
        corrupt: Objects that failed their checksum and were fetched again.
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
    """Counts of the pool since this node's server started.

    Attributes:
        servers: Configured memcached servers; 0 without a pool.
        left_out: Servers that currently do not respond.
        hits: Fetches that the pool served instead of the origin.
        misses: Fetches that the pool did not serve.
        read_bytes: Bytes that the pool served.
        stored: Objects that this node stored in the pool.
        written_bytes: Their size in bytes.
        corrupt: Values that failed their checksum and were fetched from the origin.
        dropped: Objects that were not stored because the pool was slower than the origin.
        refused: Objects that were not stored because a server was full.
        failures: Number of times that a server was excluded because of a timeout or an invalid reply.
        waits: Fetches that waited for another node that had announced the same fetch.
        expired_waits: Waits that ended with a read from the origin.
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
    expired_waits: int = 0

    @property
    def answering(self) -> int:
        """Number of servers that currently respond."""
        return self.servers - self.left_out

    @property
    def hit_ratio(self) -> float | None:
        """Share of the requests to the pool that were hits; None before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCounts:
    """Counts of the node's sessions and stage caches.

    Attributes:
        audits: Cached samples that were recomputed and compared since the server started.
        audits_failed: Audits that found a difference.
        not_stored: Samples that were computed and not stored because another process held the write lock.
    """

    sessions: int = 0
    caches: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    audits: int = 0
    audits_failed: int = 0
    not_stored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginReads:
    """How the samples of one origin are read, and the measurements behind that decision, for one epoch or for all that ended.

    Attributes:
        origin: Canonical URL without credentials, or the common directory of the files.
        in_place: True if an epoch used direct reads, without the cache.
        why: Reason in a few words; empty if no decision was needed.
        open_seconds: Mean time that a measured read waited for storage, in the last epoch with measurements; None before that.
        round_trip_seconds: Shortest round trip of a request to the server without an object, measured by the process that reported last;
            None before that.
        samples: Samples that used direct reads.
        files: Estimated number of files that these samples opened.
        bytes: Estimated size of these files.
    """

    origin: str
    in_place: bool
    why: str = ""
    open_seconds: float | None = None
    round_trip_seconds: float | None = None
    samples: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWait:
    """Time that a training loop waited for one loader in one epoch.

    Attributes:
        loader: Name of the loader: the class of its dataset and a number, such as ``ImageFolder-1``.
        rank: Rank of the process in distributed training; None without it.
        epoch: Number of the loader's complete pass, starting at 1.
        batches: Batches that the loop received.
        seconds: From ``iter(loader)`` to the last batch.
        waited_seconds: Part of ``seconds`` in which the loop waited for an iterator or a batch.
        reads: How the samples were read; None if unknown.
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
    """Counts of reads, of one loader since it connected or of all since the server started.

    Attributes:
        hits: Reads that found their object in a tier.
        late: Reads of an object whose prefetch was in progress.
        misses: Reads of an object that was not prefetched.
        direct_reads: Reads that bypassed the server: no server, no space, or an epoch with direct reads (estimated).
        best_hit_ratio: Upper bound of the hit ratio for any policy with this budget; 1.0 if all objects fit; None before the
            first plan.
    """

    hits: int = 0
    late: int = 0
    misses: int = 0
    direct_reads: int = 0
    best_hit_ratio: float | None = None

    @property
    def reads(self) -> int:
        """All reads."""
        return self.hits + self.late + self.misses + self.direct_reads

    @property
    def hit_ratio(self) -> float | None:
        """Share of the reads that were hits; None before the first read."""
        return self.hits / self.reads if self.reads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(ReadCounts):
    """Snapshot of the counts since the server started.

    Attributes:
        hits, late, misses, direct_reads, best_hit_ratio: As in ``ReadCounts``, summed over all loaders. Direct reads are counted at the
            end of their epoch.
        hit_bytes: Bytes of the hits: whole objects, or the parts of large objects that were read.
        origin_requests: Requests of the server to origins, including retries.
        origin_bytes: Bytes received from origins.
        origin_seconds: Sum of the durations of these requests.
        resident_objects: Objects kept for the next epoch.
        resident_bytes: Their size as stored, in bytes.
        transient_objects: Objects that are freed once consumed.
        transient_bytes: Their size as stored, in bytes.
        budget_bytes: Maximum size of the memory tier, in bytes.
        errors: Failed fetches by error code.
        sessions: Stage caches.
        disk: Disk tier.
        pool: Pool that nodes share.
        epochs: The last epochs that loaders reported, in the order in which they ended.
        origins: How samples are read, per origin, summed over the reported epochs.
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
    """Status of the node server, as shown by ``prefeed server status``.

    Attributes:
        pid: Process id of the server.
        version: Version of the prefeed package that the server runs.
        home: Home directory of the server.
        store: Directory of stage caches in memory.
        on_tmpfs: False if that directory is on disk because no tmpfs had room.
        uptime_seconds: Time since the start, in seconds.
        clients: Open connections.
        plans: Registered plans.
        in_flight: Requests to origins that are in progress.
        max_in_flight: Current limit of such requests, tuned from observed rates.
        notices: Deviations from the settings: a smaller memory tier, or one on disk.
        sessions: Stage caches.
        metrics: URL of the metrics; empty without an endpoint.
        fetch_processes: Process ids of the current fetch processes.
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
    """Outcome of stopping a node server.

    Attributes:
        pid: Process id.
        killed: True if the server did not end by itself and was killed. Its memory tier stays for the next server.
    """

    pid: int
    killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentServer:
    """A node server that owns its home and does not respond.

    Attributes:
        pid: Process id.
        suspended: True if a signal stopped the process; otherwise the server is busy or its control group is frozen.
    """

    pid: int
    suspended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInfo:
    """Progress of one plan.

    Attributes:
        consumer: Number of the consumer; negative for a warm-up.
        dataset: Root of the dataset: a canonical URL without credentials.
        position: Objects of the plan that the loop has received.
        length: Known length of the plan, in objects.
        ahead_objects: Objects that are fetched or stored for this plan alone.
        ahead_bytes: Their size as stored, in bytes.
        reads: Counts of the consumer's reads since it connected.
        warm: True for a warm-up, which has no reader.
        has_next: True if the order after this plan is known.
        memory_bytes: Estimated memory of the plan in the server, in bytes.
        last_epoch: The last epoch that the loader reported; None before the first has ended.
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
        objects: Objects below the URL, or in the given order.
        bytes: Their size in bytes.
        resident: Objects that are now in the memory tier.
        fetched: Resident objects that this warm-up fetched.
        failed: Objects that could not be fetched.
        seconds: Duration.
        on_disk: Objects that are on disk and not in memory.
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
    """Outcome of clearing the cache: freed entries and their stored size in bytes."""

    entries: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """A stage cache: the samples of one stage of one pipeline.

    Attributes:
        cache: 32-bit id, derived from the fingerprint of all steps below the cache.
        description: Readable description of the stage.
        memory_entries: Samples in memory.
        memory_bytes: Their size in bytes, as encoded.
        disk_entries: Samples on disk.
        disk_bytes: Their size in bytes, as encoded.
        hits: Reads that found their sample, in all processes, including those that waited for another process to compute it.
        misses: Samples that were computed.
        size_bytes: Requested maximum size in memory, in bytes; 0 for no request.
        spilling: True if samples that do not fit into memory are written to disk.
        clients: Connections that currently use the cache.
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
        """Mean size of an encoded sample, in bytes; 0 without samples."""
        entries = self.memory_entries + self.disk_entries
        return (self.memory_bytes + self.disk_bytes) / entries if entries else 0.0

    @property
    def hit_ratio(self) -> float | None:
        """Share of the reads that were hits; None before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session.

    Attributes:
        session: 32-bit id; 0 is the default session.
        caches: Caches of the session, ordered by id.
        numa_node: NUMA node of the caches' memory; None if it is not bound to one.
    """

    session: int
    caches: tuple[CacheInfo, ...] = ()
    numa_node: int | None = None
