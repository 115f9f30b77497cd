"""What sources of object stores have in common within a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import servers
from prefeed.config import Config
from prefeed.limits import Limits
from prefeed.sources import store_clients
from prefeed.sources.objectstore import ObjectStoreSource
from prefeed.sources.store_access import StoreAccess

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    (tmp_path / "x.bin").write_bytes(b"x" * 1000)
    with servers.http_server(tmp_path) as server:
        yield server


def test_sources_that_are_reached_alike_share_a_client(
    server: servers.FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source(config: Config = Config(), **options: str) -> ObjectStoreSource:  # noqa: B008 - it is frozen
        access = StoreAccess(options=options) if options else None
        return ObjectStoreSource(server.url, config, access=access)

    one, same = source(), source()
    others = [source(Config(limits=Limits(request_seconds=7))), source(username="a"), source(username="b")]
    for each in (one, same, *others):
        assert bytes(each.fetch("x.bin").data) == b"x" * 1000
    assert one._store is same._store
    assert len({id(each._store) for each in (one, *others)}) == 4
    monkeypatch.setenv("AWS_REGION", "elsewhere")  # where a client looks for what it is not told
    moved = source()
    moved.fetch("x.bin")
    assert moved._store is not one._store
    same.close()
    assert bytes(one.fetch("x.bin").data) == b"x" * 1000
    for each in (one, moved, *others):
        each.close()
    assert not store_clients._shared
