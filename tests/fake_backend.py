"""A node server that exists only as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from prefeed.config import Config
from prefeed.errors import ServerAlreadyRunningError, ServerUnavailableError
from prefeed.types import (
    CacheInfo,
    ClearResult,
    ListingProgress,
    PlanInfo,
    ReadCounts,
    ServerEnd,
    ServerStatus,
    SessionInfo,
    SilentServer,
    Statistics,
    WarmResult,
)

STATUS = ServerStatus(
    pid=4321,
    version="0.1.0",
    home="/home/u/.cache/prefeed",
    store="/dev/shm/prefeed-1000/ab12cd34",
    on_tmpfs=True,
    uptime_seconds=7325.0,
    clients=2,
    plans=8,
    in_flight=12,
    max_in_flight=64,
)
STATISTICS = Statistics(
    hits=900,
    late=60,
    misses=30,
    direct_reads=10,
    origin_requests=1500,
    origin_bytes=126_000_000,
    resident_objects=1000,
    resident_bytes=80 * 1024**2,
    transient_objects=1,
    transient_bytes=20 * 1024**2,
    budget_bytes=200 * 1024**2,
    errors={"source-throttled": 3},
    best_hit_ratio=0.95,
)
PLANS = (
    PlanInfo(
        consumer=77,
        dataset="s3://bucket/train",
        position=500,
        length=1000,
        reads=ReadCounts(hits=900, late=60, misses=30, direct_reads=10),
    ),
)
WARM = WarmResult(objects=1000, bytes=84_000_000, resident=1000, fetched=800, failed=0, seconds=4.0)
CACHE = CacheInfo(
    cache=3618046178,
    description="Compose(Resize, ToTensor)",
    memory_entries=1000,
    memory_bytes=1000 * 600 * 1024,
    disk_entries=500,
    disk_bytes=500 * 600 * 1024,
    hits=900,
    misses=100,
    size_bytes=0,
    spilling=True,
    clients=2,
)
SESSIONS = (
    SessionInfo(session=0, numa_node=0),
    SessionInfo(session=1493732251, caches=(CACHE,), numa_node=0),
)


@dataclass
class FakeClient:
    backend: FakeBackend

    def status(self) -> ServerStatus:
        return replace(STATUS, notices=self.backend.notices)

    def statistics(self) -> Statistics:
        return self.backend.counts

    def plans(self) -> tuple[PlanInfo, ...]:
        return PLANS

    def warm(
        self,
        url: str,
        *,
        listing_age: float = 0.0,
        progress: Callable[[WarmResult], None] | None = None,
        listing: ListingProgress | None = None,
    ) -> WarmResult:
        self.backend.calls.append(("warm", url, listing_age, progress is not None))
        if self.backend.error is not None:
            raise self.backend.error
        if listing is not None:
            listing(600, 50_000_000)
        if progress is not None:
            progress(replace(self.backend.warm_result, resident=500, fetched=300, seconds=1.5))
            progress(self.backend.warm_result)
        return self.backend.warm_result

    def clear(self, url: str | None) -> ClearResult:
        self.backend.calls.append(("clear", url))
        return ClearResult(entries=1234, bytes=5 * 1024**2)

    def list_sessions(self) -> tuple[SessionInfo, ...]:
        return self.backend.sessions

    def stop(self) -> None:
        self.backend.calls.append(("stop",))
        self.backend.running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.backend.calls.append(("close",))


@dataclass
class FakeBackend:
    """Follows NodeClient's rules: connecting starts a server unless that is turned off."""

    running: bool = True
    warm_result: WarmResult = WARM
    error: Exception | None = None
    foreground_exit_code: int = 0
    notices: tuple[str, ...] = ()
    counts: Statistics = STATISTICS
    sessions: tuple[SessionInfo, ...] = SESSIONS
    silent: SilentServer | None = None
    calls: list[tuple[object, ...]] = field(default_factory=list)
    configs: list[Config] = field(default_factory=list)

    def connect(
        self, config: Config, *, autostart: bool | None = None, answer_seconds: float | None = None
    ) -> FakeClient:
        self.configs.append(config)
        if not self.running:
            if not (config.autostart if autostart is None else autostart):
                raise ServerUnavailableError(f"no server is running for {config.home}", home=config.home)
            self.running = True
        return FakeClient(self)

    def stop(self, config: Config) -> ServerEnd:
        self.configs.append(config)
        if not self.running:
            raise ServerUnavailableError(f"no server is running for {config.home}", home=config.home)
        self.calls.append(("stop",))
        self.running = False
        return ServerEnd(pid=STATUS.pid)

    def silent_server(self, config: Config) -> SilentServer | None:
        return self.silent

    def start(self, config: Config) -> int:
        self.configs.append(config)
        if self.running:
            raise ServerAlreadyRunningError(f"server 4321 is already running for {config.home}")
        self.running = True
        return 4321

    def run_foreground(self, config: Config) -> int:
        self.configs.append(config)
        return self.foreground_exit_code
