"""An object of a web server that is replaced by one of the same size while it is read: its bytes are of one version, however it is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

import prefeed
import servers
from prefeed.client.blocks import close_blocks
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import ObjectChangedError
from prefeed.mount import objects as mount_objects
from prefeed.mount.versions import FirstVersions
from prefeed.sources.library import ManifestLibrary

pytestmark = pytest.mark.usefixtures("sandbox")

SIZE = 5 * 1024**2
STEP = 200_000
VERSIONS = {"etag": "", "time": "etag off;", "none": 'etag off; add_header Last-Modified "";'}


class Web:
    """An nginx whose object ``x`` can be replaced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.num_replaced = 0
        self.replace()
        servers.write_index(root)

    def replace(self) -> None:
        """Put another version in the place of the object, as large as it was, of one byte throughout."""
        new = self.root.parent / "new"
        new.write_bytes(bytes([65 + self.num_replaced]) * SIZE)
        os.utime(new, (1_600_000_000 + self.num_replaced,) * 2)
        new.rename(self.root / "x")
        self.num_replaced += 1


@pytest.fixture(params=["etag", "none"])
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "www").mkdir()
    found = Web(tmp_path / "www")
    with servers.nginx_server(found.root, tmp_path / "nginx", options=VERSIONS[request.param]) as found.url:
        yield found


@pytest.fixture(params=["room"])
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    monkeypatch.setenv("PREFEED_ENABLED", str(int(request.param != "no server")))
    if request.param == "no room":
        monkeypatch.setenv("PREFEED_MEMORY", "4MiB")
    yield resolve()
    close_blocks()
    prefeed.datasets._readers.close()


def require_one_version(read: Callable[[int, int], bytes], web: Web, config: Config) -> None:
    """Read the object in parts, while it is replaced again and again, and the cache is emptied."""
    found = b""
    try:
        for start in range(0, SIZE, STEP):
            found += read(start, min(STEP, SIZE - start))
            if start in (0, SIZE // 2 // STEP * STEP):
                web.replace()
                if config.enabled:
                    with NodeClient.connect(config) as node:
                        node.clear(None)
    except ObjectChangedError:
        assert web.num_replaced > 1
    assert len(set(found)) == 1


def test_parts_of_an_open_file(web: Web, config: Config) -> None:
    with prefeed.open(f"{web.url}/x") as file:

        def read(start: int, size: int) -> bytes:
            file.seek(start)
            return file.read(size)

        require_one_version(read, web, config)


@pytest.mark.parametrize("web", VERSIONS, indirect=True)
@pytest.mark.parametrize("config", ["no server", "room", "no room"], indirect=True)
def test_parts_of_an_object_of_a_mount(web: Web, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_objects, "_RECENT_BYTES", 0)  # other objects are read in between
    manifest = ManifestLibrary(config.home).open(web.url, config)
    number = manifest.index_of("x")
    assert number is not None
    with tempfile.TemporaryFile() as record:
        objects = mount_objects.MountedObjects(web.url, manifest, config, FirstVersions(record.fileno()))
        try:
            require_one_version(lambda start, size: bytes(objects.read(number, start, size)), web, config)
        finally:
            objects.close()


def test_ranges_of_fsspec(web: Web, config: Config) -> None:
    fs = fsspec.filesystem("prefeed")
    path = f"{web.url}/x"
    starts = [*range(0, SIZE, STEP)]
    web.replace()
    found = fs.cat_ranges([path] * len(starts), starts, [min(SIZE, start + STEP) for start in starts])
    assert len(set(b"".join(part for part in found if isinstance(part, bytes)))) == 1
    assert len(set(fs.cat_file(path))) == 1
    with fs.open(path) as file:
        buffer = bytearray(STEP)

        def read(start: int, size: int) -> bytes:
            file.seek(start)
            return bytes(buffer[: file.readinto(memoryview(buffer)[:size])])

        require_one_version(read, web, config)


def test_whole_objects(web: Web, config: Config) -> None:
    """A dataset and a plan read each object with one request."""
    dataset = prefeed.datasets.Objects(web.url)
    number = dataset.index_of("x")
    with prefeed.Plan(dataset) as plan:
        for _ in range(3):
            plan.extend([number])
            web.replace()
            assert len(set(plan.reader.read(number))) == 1
    assert len(set(dataset[number])) == 1
