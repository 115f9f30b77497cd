"""Every message of the protocol. Ids travel as raw little-endian int64, shape (n,).

A client says ``Hello`` first and is answered ``Welcome`` or ``Refused``. Requests are answered in order, except
``Demand``, ``DemandFile``, ``OpenDataset``, ``AskObject`` and ``Warm``, whose answers carry the token of the question.
"""

from __future__ import annotations

import msgspec
from msgspec import field

from prefeed.types import (
    ClearResult,
    EpochWait,
    PlanInfo,
    ReadCounts,
    ServerStatus,
    SessionInfo,
    Statistics,
    WarmResult,
)

PROTOCOL = 11
"""Changes with every incompatible message; both sides must agree."""


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Root of all messages; some hold credentials, so the text of none shows what is in it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Hello(Message, frozen=True):
    """Greet the server. A descriptor of the client's root directory is attached, because the server reads files as the client sees them.

    ``network`` is the namespace of the client's addresses, empty if it is not known. ``devices`` are type, source and mount point of
    file systems that the client sees and that their device number does not identify.
    """

    protocol: int
    version: str
    pid: int
    devices: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    network: str = ""


class Welcome(Message, frozen=True):
    """The server speaks the client's protocol; ``settings`` are those that it was started with, as text, with the options of ``cache_admin``.

    ``home`` is device and inode of the home: the client may find another directory at its path. The descriptors of the memory tier
    come with this message.
    """

    version: str
    pid: int
    instance: str
    notices: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    home: tuple[int, int] = (0, 0)


class Refused(Message, frozen=True):
    """The request failed; the server continues."""

    code: str
    text: str
    token: int = 0


class OpenDataset(Message, frozen=True):
    """Open, and build if need be, the manifest of a URL, a catalogue of files, or what lies in a directory.

    A catalogue has a name. It begins with the paths in ``paths_file``, separated by NUL, or empty, for files that
    become known as samples open them; then it learns which sample opens what, if there are any samples. A client that
    has a manifest already names its directory. ``listing_age`` to ``settle``: see ``NodeClient.open_dataset``.

    ``options`` say how the client reaches the object store, and may hold secrets; None: as the home's own file says.
    """

    token: int
    url: str
    listing_age: float = 0.0
    ranks: int = 1
    by_names: bool = False
    settle: bool = False
    catalogue: str = ""
    paths_file: str = ""
    num_samples: int = 0
    manifest_dir: str = ""
    options: dict[str, str] | None = None
    proxies: dict[str, str] = field(default_factory=dict)


class RenewAccess(Message, frozen=True):
    """The server was refused an object of this dataset, and the client was not: reach the store as it does."""

    dataset: int
    url: str
    options: dict[str, str] | None
    proxies: dict[str, str] = field(default_factory=dict)


class AskObject(Message, frozen=True):
    """Ask an object's origin for its size and version, in the place of a client that cannot do so quickly.

    ``path`` is as bytes of a file system name; ``options`` and ``proxies`` as in ``OpenDataset``.
    """

    token: int
    url: str
    path: bytes
    options: dict[str, str] | None = None
    proxies: dict[str, str] = field(default_factory=dict)


class ObjectAsked(Message, frozen=True):
    """The object, as its origin has it now."""

    token: int
    size_bytes: int
    version: str
    modified_seconds: int
    sends_parts: bool


class Listing(Message, frozen=True):
    """How far a listing has come."""

    token: int
    objects: int
    bytes: int


class DatasetOpened(Message, frozen=True):
    """The manifest, or catalogue, lies in this directory; the number names it on this server. The rest: see ``OpenedDataset``.

    The number is 0 where only names were listed: nothing can be read by them.

    ``uid`` is its own: what a client finds at that path may be another one's, where it sees another home there.
    """

    token: int
    dataset: int
    manifest_dir: str
    uid: str = ""
    listed_at: float = 0.0
    is_settled: bool = True


class RegisterPlan(Message, frozen=True):
    """A consumer's order: raw int64 ids in a file that the server removes.

    ``resident`` is False for a consumer that reads once; ``recheck`` asks whether files of a catalogue have changed.
    ``is_partial`` says that the epoch may read other objects: more come by ``ExtendPlan``, or of samples that a stage cache held.
    """

    consumer: int
    dataset: int
    ids_file: str
    upcoming: bool
    resident: bool = True
    recheck: bool = False
    is_partial: bool = False


class KeepPlans(Message, frozen=True):
    """What is fetched for the consumer's plans from now on is kept (``resident``), or freed once it was read."""

    consumer: int
    resident: bool


class Foresee(Message, frozen=True):
    """What the consumer will probably read after its plans, of the same dataset: ids in a file, as in ``RegisterPlan``."""

    consumer: int
    ids_file: str


class AdoptUpcoming(Message, frozen=True):
    """The plan registered as upcoming has begun."""

    consumer: int
    recheck: bool = False


class ExtendPlan(Message, frozen=True):
    """The sampler drew more: ``ids`` that are read very soon, or, in a file as in ``RegisterPlan``, what is read later."""

    consumer: int
    ids: bytes = b""
    ids_file: str = ""


class Consumed(Message, frozen=True):
    """Objects that a reader is done with, and how it got them; of the direct reads, how many threads of a dataset's own made."""

    consumer: int
    dataset: int
    ids: bytes
    hits: int
    direct_reads: int
    hit_bytes: int = 0
    in_own_threads: int = 0


class Position(Message, frozen=True):
    """The training loop has every sample before this index of the plan."""

    consumer: int
    index: int


class EpochEnded(Message, frozen=True):
    """A loader's epoch is over."""

    epoch: EpochWait


class EndConsumer(Message, frozen=True):
    """The loader is gone."""

    consumer: int


class Demand(Message, frozen=True):
    """A reader of this consumer misses this object and waits; ``once``: it has no use for it after this read."""

    token: int
    consumer: int
    dataset: int
    object_id: int
    once: bool = False


class DemandFile(Message, frozen=True):
    """A reader of this consumer opens a file that it has no object id for, and waits; ``path`` as the system has it.

    ``in_doubt``: it has asked the file for its version, and the tier has no such bytes: what is held may be out of date.
    ``once``: as in ``Demand``.
    """

    token: int
    consumer: int
    dataset: int
    path: bytes
    in_doubt: bool = False
    once: bool = False


class SamplesOpened(Message, frozen=True):
    """Which objects samples opened: int64 sample, number of objects, their ids; one sample after the other."""

    dataset: int
    records: bytes


class Suppose(Message, frozen=True):
    """Which files samples probably open, in a file that the server removes.

    int64: number of samples; sample and number of its files, in turns; then all paths, separated by NUL. The files become
    objects of the catalogue, and a record of each unknown sample.
    """

    dataset: int
    samples_file: str


class Lost(Message, frozen=True):
    """A reader was told that the object is stored, and did not find it."""

    token: int
    dataset: int
    object_id: int


class Answered(Message, frozen=True):
    """How a ``Demand`` ended: an ``Outcome``, with the bytes and their key, the error, or the key that they are stored under.

    The key of a catalogue's object may be withdrawn again before the reader looks: it says what was answered. The
    reader counts a hit when it gets an object that ``was_held`` before it asked.
    """

    token: int
    outcome: int
    code: str = ""
    text: str = ""
    data: bytes = b""
    object_id: int = -1
    key: bytes = b""
    was_held: bool = False


class Locate(Message, frozen=True):
    """Ask which open dataset holds the object of this URL; ``mark`` tells its store from others of that name."""

    url: str
    mark: str = ""


class Located(Message, frozen=True):
    """The dataset and id of an object; dataset -1 when none holds it."""

    dataset: int
    object_id: int
    manifest_dir: str


class GetStatus(Message, frozen=True):
    """Ask for ``StatusReport``."""


class StatusReport(Message, frozen=True):
    """Answer to ``GetStatus``."""

    status: ServerStatus


class GetStatistics(Message, frozen=True):
    """Ask for ``StatisticsReport``."""


class StatisticsReport(Message, frozen=True):
    """Answer to ``GetStatistics``."""

    statistics: Statistics


class GetReadCounts(Message, frozen=True):
    """Ask how the reads of one consumer went."""

    consumer: int
    token: int = 0


class ReadCountsReport(Message, frozen=True):
    """Answer to ``GetReadCounts``."""

    counts: ReadCounts
    token: int = 0


class GetPlans(Message, frozen=True):
    """Ask for ``PlansReport``."""


class PlansReport(Message, frozen=True):
    """Answer to ``GetPlans``: the plans that are followed now, in the order in which their consumers came."""

    plans: tuple[PlanInfo, ...]


class Warm(Message, frozen=True):
    """Fill the tiers with everything below a URL, or with these objects of a dataset that is open, in this order.

    ``ids_file`` as in ``RegisterPlan``; ``max_in_flight`` 0: as many as the origin takes.
    """

    token: int
    url: str
    listing_age: float
    dataset: int = -1
    ids_file: str = ""
    max_in_flight: int = 0
    options: dict[str, str] | None = None
    proxies: dict[str, str] = field(default_factory=dict)


class WarmReport(Message, frozen=True):
    """How far ``Warm`` has come."""

    token: int
    result: WarmResult
    done: bool


class Clear(Message, frozen=True):
    """Free the entries of a URL, or all of them."""

    url: str | None


class Cleared(Message, frozen=True):
    """Answer to ``Clear``."""

    result: ClearResult


class OpenCache(Message, frozen=True):
    """Use a stage cache of a session from now on; it is made if there is none. Answered by ``CacheOpened``.

    ``size_bytes`` is the most that its memory store may take; 0 = as much as the server can give.
    """

    session: int
    cache: int
    description: str
    size_bytes: int
    spilling: bool


class CacheOpened(Message, frozen=True):
    """Where the two stores of the cache lie, and the most that each may take now. ``place`` is device and inode of ``memory_dir``.

    ``disk_dir`` is empty without spilling; ``disk_free_bytes`` is what its file system must keep free. ``instance``
    changes when the cache was dropped and made again. ``memory_most_bytes`` is what its memory store could be given at most.
    """

    memory_dir: str
    memory_limit_bytes: int
    disk_dir: str
    disk_limit_bytes: int
    instance: str
    disk_free_bytes: int = 0
    memory_most_bytes: int = 0
    place: tuple[int, int] = (0, 0)


class GrowCache(Message, frozen=True):
    """Ask that a store of the cache may take that many bytes in all. Answered by ``CacheGrown``."""

    session: int
    cache: int
    wanted_bytes: int
    on_disk: bool = False


class CacheGrown(Message, frozen=True):
    """The most that each store of the cache may take now: as before when there is no more."""

    memory_limit_bytes: int
    disk_limit_bytes: int


class CacheReads(Message, frozen=True):
    """How reads of a cache went since the last report, audits (samples recomputed and compared), and samples not kept."""

    session: int
    cache: int
    hits: int = 0
    misses: int = 0
    audits: int = 0
    audits_failed: int = 0
    not_stored: int = 0


class NewSession(Message, frozen=True):
    """Ask for a session; answered by ``SessionCreated``."""


class SessionCreated(Message, frozen=True):
    """Answer to ``NewSession``."""

    session: int


class ListSessions(Message, frozen=True):
    """Ask for ``SessionsReport``."""


class SessionsReport(Message, frozen=True):
    """Answer to ``ListSessions``."""

    sessions: tuple[SessionInfo, ...]


class DropSessions(Message, frozen=True):
    """Remove these sessions with all that is in them; none, if one of them does not exist."""

    sessions: tuple[int, ...]


class SessionsDropped(Message, frozen=True):
    """Answer to ``DropSessions``."""


class Stop(Message, frozen=True):
    """Ask the server to end."""


class Stopping(Message, frozen=True):
    """The server ends; the connection closes when it is gone."""


UNANSWERED = (
    RegisterPlan, KeepPlans, Foresee, AdoptUpcoming, ExtendPlan, Consumed, SamplesOpened, Suppose, Position, EpochEnded, EndConsumer,
    CacheReads, RenewAccess,
)  # fmt: skip
"""Reports: no client waits for an answer."""

AnyMessage = (
    Hello | Welcome | Refused | OpenDataset | RenewAccess | AskObject | ObjectAsked | Listing | DatasetOpened | RegisterPlan | KeepPlans | Foresee | AdoptUpcoming
    | ExtendPlan | Consumed | SamplesOpened | Suppose | Position | EpochEnded | EndConsumer | Demand | DemandFile | Lost | Answered | Locate | Located
    | GetStatus | StatusReport | GetStatistics | StatisticsReport | GetReadCounts | ReadCountsReport | GetPlans | PlansReport | Warm | WarmReport | Clear | Cleared
    | OpenCache | CacheOpened | GrowCache | CacheGrown | CacheReads | NewSession | SessionCreated | ListSessions
    | SessionsReport | DropSessions | SessionsDropped | Stop | Stopping
)  # fmt: skip
