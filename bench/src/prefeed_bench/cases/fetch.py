"""Origin to memory tier without added latency: how much the server and its fetch processes take, beside their client alone."""

from __future__ import annotations

import math
import os
import time
from functools import partial
from typing import Final
from urllib.parse import quote, urlsplit

from prefeed.client.node import NodeClient
from prefeed.sources.quick_fetches import Arrival, QuickClient, QuickOrigin
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate, cpu_seconds
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.origin import nginx_origin
from prefeed_bench.photos import PhotoFolder

_IN_FLIGHT: Final = 32
"""What a node begins with, and stays at when the origin answers within a millisecond."""

_TIMEOUT_SECONDS: Final = 30.0


def run(options: Options) -> BenchResult:
    """Measure objects per second and processor time per object while everything is fetched once, and the client's own limit."""
    photos = options.photos()
    numbers = options.fetch_processes or ("auto",)

    def fetched(url: str, number: str) -> dict[str, float]:
        home = temporary_home(2 * photos.total_bytes, fetch_processes=number)
        with home as own, NodeClient.connect(own.config) as client:
            return measure_warming(own, client, url, photos)

    with nginx_origin(photos.root) as origin:
        variants = {
            "limit": partial(measure_client, origin.url, photos),
            **{f"prefeed_{number}": partial(fetched, origin.url, number) for number in numbers},
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    main = Samples(runs[f"prefeed_{numbers[0]}"])
    for own, alone in zip(runs[f"prefeed_{numbers[0]}"], runs["limit"], strict=True):
        main.add(**alone, of_limit=own["objects_per_s"] / alone["limit_objects_per_s"])
    others = {
        f"{field}_{number}": Samples(runs[f"prefeed_{number}"]).median(field)
        for number in numbers[1:]
        for field in ("objects_per_s", "cpu_us_per_object")
    }
    notes = (
        "a server just started, listing done before; nginx shares the cores; user and system time of server and fetch processes",
        f"limit: the client of a fetch process alone, {_IN_FLIGHT} requests in flight, objects appended to new memory",
    )
    return main.result("fetch", runs, *notes, **others)


def measure_warming(home: Home, client: NodeClient, url: str, photos: PhotoFolder) -> dict[str, float]:
    """Bring all pictures into the empty memory tier of a node; return what its server and its fetch processes took.

    Raises:
        BenchFailedError: Some were not fetched.
    """
    client.open_dataset(url)
    cpu_before, started = cpu_seconds(home.server_pid), time.perf_counter()
    warmed = client.warm(url, listing_age=math.inf)
    seconds = time.perf_counter() - started
    processes = client.status().fetch_processes
    cpu = cpu_seconds(home.server_pid) - cpu_before + sum(map(cpu_seconds, processes))
    if warmed.fetched < photos.num_photos:
        raise BenchFailedError(f"only {warmed.fetched} of {photos.num_photos} objects were fetched: {warmed}")
    return {
        "objects_per_s": warmed.fetched / seconds,
        "cpu_us_per_object": cpu * 1e6 / warmed.fetched,
        "mb_per_s": warmed.bytes / seconds / 1e6,
        "fetch_processes": len(processes),
    }


def measure_client(url: str, photos: PhotoFolder) -> dict[str, float]:
    """Fetch all pictures as a fetch process does, and append them to new memory.

    Raises:
        BenchFailedError: Some were not fetched.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    headers = f"Host: {parts.netloc}\r\nAccept-Encoding: identity\r\n".encode()
    waiting = iter(photos.sizes.items())
    started, cpu_before = time.perf_counter(), time.process_time()
    memory = os.memfd_create("limit")
    try:

        def keep(_: int, value: memoryview) -> None:
            os.write(memory, value)

        told = QuickOrigin(url, False, parts.hostname, parts.port, headers, _TIMEOUT_SECONDS)
        client = QuickClient(keep, {0: told})

        def begin(number: int) -> None:
            for path, size in waiting:
                client.fetch(number, 0, f"/{quote(path)}".encode(), size)
                return

        for number in range(_IN_FLIGHT):
            begin(number)
        while client.num_under_way:
            for arrival in client.step(_TIMEOUT_SECONDS):
                _require_object(arrival)
                begin(arrival.number)
        client.close()
    finally:
        os.close(memory)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_before
    return {"limit_objects_per_s": photos.num_photos / seconds, "limit_cpu_us": cpu * 1e6 / photos.num_photos}


def _require_object(arrival: Arrival) -> None:
    if arrival.failure:
        raise BenchFailedError(f"the client alone could not fetch a picture: {arrival.failure}")
