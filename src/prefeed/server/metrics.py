"""What Prometheus is told: each metric with its help and where its numbers come from, and the answers to its requests.

docs/reference/metrics.md is checked against ``METRICS`` by a test, and the dashboard's expressions are too. Imported with the
first request: prometheus_client and ``http.server`` take some 80 ms.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import Metric as Family
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from prefeed.server.status import EpochTotals, Observation
from prefeed.types import PlanInfo, ServerStatus, Statistics

PATH: Final = "/metrics"

MOST_CLIENTS: Final = 16
"""Connections at a time; one more and the oldest is closed."""

MOST_PLANS: Final = 64
"""Plans with series of their own: a node with more shows the first."""

MOST_CODES: Final = 64
"""Error codes with a series of their own; the rest is counted as ``others``."""

_MOST_LABEL: Final = 200
"""Characters of a label's value."""

_PLAIN: Final = "text/plain; charset=utf-8"
_log = logging.getLogger("prefeed")

Numbers = dict[tuple[str, ...], float]
"""Numbers of one metric, by the values of its labels."""

Observe = Callable[[], Observation | None]
"""Asks the server's loop; None when it has no time to answer."""


class Seen(NamedTuple):
    """An observation, its plans by their numbers."""

    status: ServerStatus
    statistics: Statistics
    plans: list[tuple[int, PlanInfo]]
    epochs: tuple[EpochTotals, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is shown; counters end in ``_total``.
        kind: Of Prometheus.
        labels: Names of its labels.
        help: What it counts, and how to read it.
        numbers: Returns them; none, and the metric is not shown.
    """

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str
    numbers: Callable[[Seen], Numbers]


def label(text: str) -> str:
    """Return a text that can be the value of a label: short, and valid UTF-8 whatever bytes a path has."""
    shown = text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def _errors(errors: dict[str, int]) -> Numbers:
    by_code = list(errors.items())
    found: Numbers = {(label(code),): count for code, count in by_code[:MOST_CODES]}
    rest = sum(count for _, count in by_code[MOST_CODES:])
    return found | {("others",): rest} if rest else found


def _disk(seen: Seen, name: str, *kind: str) -> Numbers:
    disk = seen.statistics.disk
    return {("disk", *kind): getattr(disk, name)} if disk.budget_bytes else {}


def _pool(seen: Seen, name: str, *labels: str) -> Numbers:
    pool = seen.statistics.pool
    return {labels: getattr(pool, name)} if pool.servers else {}


def _plans(seen: Seen, name: str) -> Numbers:
    return {(str(number), label(plan.dataset)): getattr(plan, name) for number, plan in seen.plans}


def _origins(seen: Seen, name: str) -> Numbers:
    found = {(label(of.origin),): getattr(of, name) for of in seen.statistics.origins}
    return {labels: float(number) for labels, number in found.items() if number is not None}


def _epochs(seen: Seen, number: Callable[[EpochTotals], float]) -> Numbers:
    return {(label(of.loader), "" if of.rank is None else str(of.rank)): number(of) for of in seen.epochs}


METRICS: Final = (
    Metric("prefeed_build_info", "gauge", ("version",), "Always 1; the version of the server is in the label.",
        lambda s: {(s.status.version,): 1}),
    Metric("prefeed_uptime_seconds", "gauge", (), "Time since the server started.",
        lambda s: {(): s.status.uptime_seconds}),
    Metric("prefeed_clients", "gauge", (), "Open connections: loaders, workers, commands.",
        lambda s: {(): s.status.clients}),
    Metric("prefeed_reads_total", "counter", ("outcome",), "Reads by result: hit = in a tier when requested, late = in flight, miss = not prefetched, direct = bypassed the server. hit ÷ all is the hit ratio.",
        lambda s: {("hit",): s.statistics.hits, ("late",): s.statistics.late, ("miss",): s.statistics.misses, ("direct",): s.statistics.direct_reads}),
    Metric("prefeed_hit_bytes_total", "counter", (), "Bytes of the hits: of whole objects, and of the parts that were read of large ones.",
        lambda s: {(): s.statistics.hit_bytes}),
    Metric("prefeed_best_hit_ratio", "gauge", (), "Best hit ratio without read-ahead: budget ÷ data, 0 to 1; absent before the first plan. A hit ratio above it is the gain of read-ahead.",
        lambda s: {} if s.statistics.best_hit_ratio is None else {(): s.statistics.best_hit_ratio}),
    Metric("prefeed_origin_requests_total", "counter", (), "Requests that the server made to origins, retries included.",
        lambda s: {(): s.statistics.origin_requests}),
    Metric("prefeed_origin_bytes_total", "counter", (), "Bytes received from origins.",
        lambda s: {(): s.statistics.origin_bytes}),
    Metric("prefeed_origin_request_seconds_total", "counter", (), "Total time of these requests; divided by their number it is the mean latency.",
        lambda s: {(): s.statistics.origin_seconds}),
    Metric("prefeed_origin_requests_in_flight", "gauge", (), "Fetches in flight now, including fetches from disk and pool.",
        lambda s: {(): s.status.in_flight}),
    Metric("prefeed_origin_requests_limit", "gauge", (), "Limit of requests in flight, tuned by measurement; absent without a plan. A limit far below 256 means that the origin is slow under load or throttles.",
        lambda s: {(): s.status.max_in_flight} if s.status.max_in_flight else {}),
    Metric("prefeed_errors_total", "counter", ("code",), "Failures by error code; each was followed by a retry or a read from the origin.",
        lambda s: _errors(s.statistics.errors)),
    Metric("prefeed_tier_objects", "gauge", ("tier", "kind"), "Objects held: resident = kept for the next epoch, transient = freed once consumed.",
        lambda s: {("memory", "resident"): s.statistics.resident_objects, ("memory", "transient"): s.statistics.transient_objects} | _disk(s, "objects", "resident")),
    Metric("prefeed_tier_bytes", "gauge", ("tier", "kind"), "Size of these objects as stored.",
        lambda s: {("memory", "resident"): s.statistics.resident_bytes, ("memory", "transient"): s.statistics.transient_bytes} | _disk(s, "bytes", "resident")),
    Metric("prefeed_tier_budget_bytes", "gauge", ("tier",), "Maximum bytes that the tier may hold.",
        lambda s: {("memory",): s.statistics.budget_bytes} | _disk(s, "budget_bytes")),
    Metric("prefeed_tier_reads_total", "counter", ("tier",), "Fetches that the tier served instead of the origin.",
        lambda s: _disk(s, "reads") | _pool(s, "hits", "pool")),
    Metric("prefeed_tier_corrupt_total", "counter", ("tier",), "Values found damaged, and fetched again: check the disk or the network.",
        lambda s: _disk(s, "corrupt") | _pool(s, "corrupt", "pool")),
    Metric("prefeed_tier_dropped_total", "counter", ("tier",), "Values not stored because the tier was too slow.",
        lambda s: _disk(s, "dropped") | _pool(s, "dropped", "pool")),
    Metric("prefeed_pool_servers", "gauge", ("state",), "Servers of the pool by state: up, or down = not used until a retry succeeds.",
        lambda s: _pool(s, "answering", "up") | _pool(s, "left_out", "down")),
    Metric("prefeed_pool_misses_total", "counter", (), "Fetches that requested an object from the pool and did not find it there.",
        lambda s: _pool(s, "misses")),
    Metric("prefeed_pool_failures_total", "counter", (), "Times that a server of the pool was taken out of use, because its reply was late or invalid.",
        lambda s: _pool(s, "failures")),
    Metric("prefeed_pool_refused_total", "counter", (), "Objects not stored because a server of the pool was full.",
        lambda s: _pool(s, "refused")),
    Metric("prefeed_pool_read_bytes_total", "counter", (), "Bytes that the pool served.",
        lambda s: _pool(s, "read_bytes")),
    Metric("prefeed_pool_written_bytes_total", "counter", (), "Bytes that this node put into the pool.",
        lambda s: _pool(s, "written_bytes")),
    Metric("prefeed_pool_waits_total", "counter", (), "Fetches that waited for the same fetch of another node.",
        lambda s: _pool(s, "waits")),
    Metric("prefeed_pool_waits_expired_total", "counter", (), "Waits after which this node fetched the object from the origin itself.",
        lambda s: _pool(s, "expired_waits")),
    Metric("prefeed_sessions", "gauge", (), "Sessions of stage caches.",
        lambda s: {(): s.statistics.sessions.sessions}),
    Metric("prefeed_stage_caches", "gauge", (), "Stage caches.",
        lambda s: {(): s.statistics.sessions.caches}),
    Metric("prefeed_stage_cache_bytes", "gauge", ("tier",), "Size of all stage caches.",
        lambda s: {("memory",): s.statistics.sessions.memory_bytes, ("disk",): s.statistics.sessions.disk_bytes}),
    Metric("prefeed_stage_audits_total", "counter", ("result",), "Samples that were found in a stage cache, recomputed and compared: same, or different.",
        lambda s: {("same",): s.statistics.sessions.audits - s.statistics.sessions.audits_failed, ("different",): s.statistics.sessions.audits_failed}),
    Metric("prefeed_stage_not_stored_total", "counter", (), "Computed samples that were not stored, because another process held the write lock for a second. Growth means that a process is suspended.",
        lambda s: {(): s.statistics.sessions.not_stored}),
    Metric("prefeed_plans", "gauge", (), "Consumers with a plan: loaders in an epoch, and warm-ups.",
        lambda s: {(): s.status.plans}),
    Metric("prefeed_plan_position_objects", "gauge", ("plan", "dataset"), "Objects of the plan that its loop has received. Numbers of plans that have ended are reused; at most 64 are shown.",
        lambda s: _plans(s, "position")),
    Metric("prefeed_plan_length_objects", "gauge", ("plan", "dataset"), "Objects of the plan.",
        lambda s: _plans(s, "length")),
    Metric("prefeed_plan_ahead_bytes", "gauge", ("plan", "dataset"), "Bytes in flight or prefetched for this plan alone. A value near 0 in the middle of a plan that does not fit in memory means that the origin is slower than the loop.",
        lambda s: _plans(s, "ahead_bytes")),
    Metric("prefeed_plan_memory_bytes", "gauge", ("plan", "dataset"), "Memory that the server uses for the plan: the known part of its order that was not read yet, and the expected objects. At most 64 MiB.",
        lambda s: _plans(s, "memory_bytes")),
    Metric("prefeed_epochs_total", "counter", ("loader", "rank"), "Epochs that loaders have reported.",
        lambda s: _epochs(s, lambda of: of.epochs)),
    Metric("prefeed_epoch_seconds_total", "counter", ("loader", "rank"), "Time of these epochs; grows when an epoch ends.",
        lambda s: _epochs(s, lambda of: of.seconds)),
    Metric("prefeed_epoch_waited_seconds_total", "counter", ("loader", "rank"), "Part of that time in which the training loop waited for data.",
        lambda s: _epochs(s, lambda of: of.waited_seconds)),
    Metric("prefeed_origin_direct_reads", "gauge", ("origin",), "1 if the last epoch over this origin used direct reads, without the cache; 0 if it used the cache.",
        lambda s: _origins(s, "in_place")),
    Metric("prefeed_origin_open_wait_seconds", "gauge", ("origin",), "Mean time that an open waited for storage, over the reads that a loader measured in its last epoch. Direct reads are used while most opens wait at most 0.00025.",
        lambda s: _origins(s, "open_seconds")),
    Metric("prefeed_server_round_trip_seconds", "gauge", ("origin",), "Shortest time in which the server replied to a request that needs no object.",
        lambda s: _origins(s, "round_trip_seconds")),
    Metric("prefeed_direct_samples_total", "counter", ("origin",), "Samples that used direct reads, in epochs that have ended.",
        lambda s: _origins(s, "samples")),
    Metric("prefeed_direct_files_total", "counter", ("origin",), "Number of files that these samples opened, estimated from some of them.",
        lambda s: _origins(s, "files")),
    Metric("prefeed_direct_bytes_total", "counter", ("origin",), "Size of these files, estimated from some of them.",
        lambda s: _origins(s, "bytes")),
    Metric("prefeed_last_epoch_number", "gauge", ("loader", "rank"), "Number of the last epoch, from 1.",
        lambda s: _epochs(s, lambda of: of.last.epoch)),
    Metric("prefeed_last_epoch_seconds", "gauge", ("loader", "rank"), "Duration of the last epoch.",
        lambda s: _epochs(s, lambda of: of.last.seconds)),
    Metric("prefeed_last_epoch_waited_seconds", "gauge", ("loader", "rank"), "Time in the last epoch that the training loop waited for data. If it is 0.05 or more of the length of the epoch, run `prefeed doctor`.",
        lambda s: _epochs(s, lambda of: of.last.waited_seconds)),
)  # fmt: skip
"""All metrics of prefeed's own, in the order in which they are shown."""


class PlanNumbers:
    """Gives each plan a small number that stays its own: series are bounded, however many loaders come and go."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, plans: Sequence[PlanInfo]) -> list[tuple[int, PlanInfo]]:
        """Return the plans with their numbers, ``MOST_PLANS`` of them at most; numbers of others are free again."""
        present = {plan.consumer for plan in plans}
        self._numbers = {consumer: number for consumer, number in self._numbers.items() if consumer in present}
        free = iter(sorted(set(range(MOST_PLANS)) - set(self._numbers.values())))
        for plan in plans:
            if plan.consumer not in self._numbers and (number := next(free, None)) is not None:
                self._numbers[plan.consumer] = number
        return [(self._numbers[plan.consumer], plan) for plan in plans if plan.consumer in self._numbers]


def seen_of(observation: Observation, numbers: PlanNumbers) -> Seen:
    """Return what the metrics are read from."""
    plans = numbers.of(observation.plans)
    return Seen(observation.status, observation.statistics, plans, observation.epochs)


def families(seen: Seen) -> Iterator[Family]:
    """Yield each metric that has numbers, in the order of ``METRICS``."""
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    for metric in METRICS:
        family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
        for labels, number in metric.numbers(seen).items():
            family.add_metric(labels, number)
        if family.samples:
            yield family


class Pages:
    """Makes pages of what the server's loop says.

    **Threads**: any.
    """

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._numbers = PlanNumbers()
        self._numbering = threading.Lock()
        self._process = ProcessCollector(registry=None)

    def page(self, accept: str) -> tuple[str, bytes] | None:
        """Return the type of the page that a scraper accepts, and the page; None when the loop has no time."""
        observation = self._observe()
        if observation is None:
            return None
        with self._numbering:
            seen = seen_of(observation, self._numbers)
        encode, content_type = choose_encoder(accept)
        return content_type, encode(_Collected([*families(seen), *self._process.collect()]))


class _Collected(Collector):
    def __init__(self, found: list[Family]) -> None:
        self._found = found

    def collect(self) -> list[Family]:
        return self._found


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # not 0.9, whose answers have no head
    server_version = "prefeed"
    sys_version = ""
    wbufsize = 1024**2  # a whole answer, or none of it, when the server ends meanwhile
    server: Any

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.path.partition("?")[0] != PATH:
            self._say(HTTPStatus.NOT_FOUND, _PLAIN, f"the metrics are at {PATH}\n".encode())
            return
        try:
            page = self.server.pages.page(self.headers.get("Accept", ""))
        except Exception:  # noqa: BLE001 - a defect here costs one answer
            _log.exception("prefeed: the metrics cannot be shown")
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, b"")
        else:
            if page is None:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"the server is too busy to answer; ask again\n")
            else:
                self._say(HTTPStatus.OK, *page)

    def do_HEAD(self) -> None:
        """Answer with the head alone."""
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: each scrape would be a line in the server's log."""

    def _say(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if status == HTTPStatus.OK and gzip_accepted(self.headers.get("Accept-Encoding", "")):
            self.send_header("Content-Encoding", "gzip")
            body = gzip.compress(body)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Scrapes(ThreadingHTTPServer):
    """Answers those who connect to a socket, each in a thread, ``MOST_CLIENTS`` at a time and each for a limited time.

    **Ownership**: the socket is the caller's. **Threads**: one accepts; ``close`` once it does no more.
    """

    daemon_threads = False  # ``close`` waits for them, and ends what they wait for

    def __init__(self, listener: socket.socket, observe: Observe, *, client_seconds: float) -> None:
        super().__init__(listener.getsockname(), Exchange, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.pages: Pages = Pages(observe)
        self._client_seconds = client_seconds
        self._deadlines: dict[socket.socket, float] = {}

    @property
    def seconds_left(self) -> float | None:
        """How long ``leave_slow`` has nothing to do; None without a client."""
        deadlines = list(self._deadlines.values())
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def try_accept(self) -> bool:
        """Take the next client; False when that cannot be: it is gone already, or there are no descriptors left."""
        try:
            request, address = self.get_request()
        except OSError:
            return False
        try:
            self.process_request(request, address)
        except RuntimeError:  # no thread can be had
            self.shutdown_request(request)
            vars(self)["_threads"].reap()  # ``close`` would wait for the one that never began
        return True

    def leave_slow(self) -> None:
        """Break off with clients that have not asked, or not taken their answer, in time."""
        now = time.monotonic()
        for request, deadline in list(self._deadlines.items()):
            if deadline <= now:
                self._break_off(request)

    def close(self) -> None:
        """Break off with all clients, and wait for their threads."""
        for request in list(self._deadlines):
            self._break_off(request)
        self.server_close()

    # ------------------------------------------------------------ what socketserver calls

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; of too many clients the oldest is left."""
        if len(self._deadlines) >= MOST_CLIENTS:
            self._break_off(next(iter(self._deadlines)))
        self._deadlines[request] = time.monotonic() + self._client_seconds
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, from the thread that has answered."""
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client hung up, or was left."""

    def _break_off(self, request: socket.socket) -> None:
        self._deadlines.pop(request, None)
        with contextlib.suppress(OSError):  # it is closed already
            request.shutdown(socket.SHUT_RDWR)
