"""Blocks of large objects are received by a thread of the server: each once, in the version that was listed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import servers
from nodes import Asked, Loop, Rig, rig
from prefeed.config import Config
from prefeed.core.actions import Outcome
from prefeed.core.requests import START, START_OF_BLOCKS
from prefeed.errors import ObjectChangedError
from prefeed.limits import Limits
from prefeed.server.fetch_thread import FetchThread
from prefeed.server.fetchers import Job
from prefeed.sources.blocks import BlockSource
from prefeed.sources.urls import blocks_url, open_source
from sandbox import Sandbox

BLOCK = 64 * 1024
SIZE = 20 * BLOCK + 7
READER = 7

pytestmark = pytest.mark.usefixtures("sandbox")


class Node:
    """A node with such a thread, whose origin is a web server with one object."""

    def __init__(self, made: Rig, server: servers.FileServer) -> None:
        self.made = made
        self.server = server
        self.file = server.directory / "x.bin"
        self.loop = Loop()
        made.node.fetchers.fetch_parts_in(FetchThread[Job](watcher=self.loop, clock=made.clock))
        opened = open_source(blocks_url(server.url), Config(limits=Limits(block_bytes=BLOCK)))
        assert isinstance(opened, BlockSource)
        self.source = opened
        self.dataset = made.open(self.source)
        server.requests.clear()

    def until(self, condition: Callable[[], bool]) -> None:
        def turned() -> bool:
            self.loop.turn()
            return condition()

        self.made.pump_until(turned)
        self.made.node.validate()

    def demand(self, object_id: int) -> Asked:
        asked = self.made.demand(self.dataset, object_id)
        self.until(lambda: asked.times > 0)
        return asked

    def stored(self) -> bytes:
        """Return the object, as its blocks lie in the tier."""
        blocks = [self.made.tier.get(self.dataset.key(index)) for index in range(self.dataset.manifest.num_objects)]
        return b"".join(block for block in blocks if block is not None)


def put(path: Path, seed: int) -> bytes:
    data = np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8).tobytes()
    path.write_bytes(data)
    os.utime(path, (1_700_000_000 + seed, 1_700_000_000 + seed))
    return data


@pytest.fixture
def node(sandbox: Sandbox, tmp_path: Path) -> Iterator[Node]:
    put(tmp_path / "x.bin", 1)
    with rig(sandbox.home, threads=True) as made, servers.http_server(tmp_path, webdav=True) as server:
        server.ranges = True
        node = Node(made, server)
        yield node
        made.node.close()
        node.loop.selector.close()


def ranges(node: Node) -> list[str]:
    """Return the parts that were asked for."""
    gets = [headers for method, _, headers in node.server.requests if method == "GET"]
    return [value for headers in gets for name, value in headers.items() if name.lower() == "range"]


def test_each_block_is_asked_for_once_and_stored(node: Node) -> None:
    num_blocks = node.dataset.manifest.num_objects
    assert num_blocks == 21
    assert node.made.node.scheduler.tables[node.dataset.number].max_in_flight == START_OF_BLOCKS < START
    node.made.plan(READER, node.dataset, range(num_blocks))
    node.until(lambda: node.made.num_residents(node.dataset) == num_blocks)
    assert node.stored() == node.file.read_bytes()
    expected = [f"bytes={start}-{min(start + BLOCK, SIZE) - 1}" for start in range(0, SIZE, BLOCK)]
    assert sorted(ranges(node)) == sorted(expected)
    names = {thread.name for thread in threading.enumerate()}
    assert "prefeed-parts" in names
    assert not any(name.startswith("prefeed-fetch") for name in names)


def test_a_block_of_another_version_is_not_taken(node: Node) -> None:
    assert node.demand(0).outcome is not Outcome.FAILED
    put(node.file, 2)
    asked = node.demand(1)
    assert (asked.outcome, asked.code) == (Outcome.FAILED, ObjectChangedError.code)
    assert node.made.num_residents(node.dataset) == 1


def test_an_object_that_is_shorter_by_now_has_changed(node: Node) -> None:
    node.file.write_bytes(b"x" * BLOCK)
    asked = node.demand(5)
    assert (asked.outcome, asked.code) == (Outcome.FAILED, ObjectChangedError.code)


def test_what_the_thread_does_not_take_is_asked_for_otherwise(node: Node) -> None:
    """The library follows redirects."""
    put(node.file.with_name("y.bin"), 1)
    node.server.answers["/x.bin"] = servers.redirected(302, "/y.bin")
    assert node.demand(3).outcome is not Outcome.FAILED
    assert node.stored() == node.file.read_bytes()[3 * BLOCK : 4 * BLOCK]
    assert len(ranges(node)) == 3
