"""Objects on disk: they outlive the server, the origin is not asked for them again, and a bad disk is no error."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner
from torchvision import datasets as torchvision_datasets

import prefeed
import servers
from limits import set_limits
from prefeed.cli.main import cli
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ServerError
from prefeed.limits import LIMITS_VARIABLE
from prefeed.store.files import stored_keys
from prefeed.types import DiskCounts, Statistics
from process.conditions import NUM_OBJECTS, OBJECT_BYTES, kill, make_objects, server_pid, status, wait_for
from sandbox import Sandbox
from small_files import small_file_system

MIB = 1024**2
TOO_SMALL = "5MiB"
"""Of memory: a good half of the objects."""


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> Iterator[None]:
    monkeypatch.setenv("PREFEED_MEMORY", TOO_SMALL)
    monkeypatch.setenv("PREFEED_DISK", f"64MiB:{sandbox.root / 'disk'}")
    set_limits(monkeypatch, disk_free_bytes=0)
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_objects(tmp_path / "data")


@pytest.fixture
def origin(root: Path) -> Iterator[servers.FileServer]:
    with servers.http_server(root, webdav=True) as server:
        yield server


def fetched(origin: servers.FileServer) -> Counter[str]:
    return Counter(path for _, path, _ in origin.requests if path.endswith(".bin"))


def contents(root: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(root.rglob("*.bin"))]


def loader_of(dataset: Any, **kwargs: Any) -> Any:
    return prefeed.DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=list, **kwargs)


def read_epoch(dataset: Any, root: Path, **kwargs: Any) -> None:
    """Read all in a random order; every byte is right."""
    assert sorted(data for batch in loader_of(dataset, **kwargs) for data in batch) == contents(root)


def on_disk(least: int = NUM_OBJECTS) -> DiskCounts:
    """Wait until so many are."""
    wait_for(lambda: prefeed.statistics().disk.objects >= least, f"{least} objects on disk")
    return prefeed.statistics().disk


def failures() -> dict[str, int]:
    """Return what failed, but for values that a memory tier as small as this had no room for."""
    return {code: count for code, count in prefeed.statistics().errors.items() if code != "tier-full"}


def store() -> Path:
    return resolve().disk_path / "objects" / "segment-0"


def num_stored() -> int:
    """Return how many objects a server has left on disk."""
    return len(stored_keys(store().parent)) // 16


def held_keys() -> set[bytes]:
    keys = stored_keys(store().parent)
    return {keys[at : at + 16] for at in range(0, len(keys), 16)}


def stop() -> None:
    """End the server in order, and wait until it is gone."""
    kill(server_pid(), signal.SIGTERM)
    prefeed.datasets._readers.close()


def kill_and_lose_memory() -> None:
    """As when the machine goes down."""
    kill(server_pid())
    prefeed.datasets._readers.close()
    for entry in Path(resolve().memory_dir).iterdir():
        shutil.rmtree(entry)


ENDS: list[Callable[[], None]] = [stop, kill_and_lose_memory]


@pytest.fixture(params=ENDS, ids=["stopped", "killed"])
def end(request: pytest.FixtureRequest) -> Callable[[], None]:
    found: Callable[[], None] = request.param
    return found


# ---------------------------------------------------------------- what is on disk is not asked for again


@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_than_memory_holds_is_asked_for_once(root: Path, origin: servers.FileServer, num_workers: int) -> None:
    """Nobody waits between the epochs: what is yet to be written is known too."""
    objects = prefeed.datasets.Objects(origin.url)
    for _ in range(3):
        read_epoch(objects, root, num_workers=num_workers)
    assert fetched(origin) == dict.fromkeys((f"/{index:04}.bin" for index in range(NUM_OBJECTS)), 1)
    statistics = prefeed.statistics()
    assert statistics.origin_requests == NUM_OBJECTS
    assert statistics.origin_bytes == NUM_OBJECTS * OBJECT_BYTES
    assert statistics.disk.reads > NUM_OBJECTS // 2
    assert failures() == {}
    assert statistics.direct_reads == 0
    on_disk()


def test_a_restart_keeps_the_objects(root: Path, origin: servers.FileServer, end: Callable[[], None]) -> None:
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    before = fetched(origin)
    for _ in range(2):
        end()
        read_epoch(prefeed.datasets.Objects(origin.url), root)
    assert fetched(origin) == before
    statistics = prefeed.statistics()
    assert statistics.origin_requests == statistics.origin_bytes == 0
    assert statistics.disk.objects == NUM_OBJECTS
    assert statistics.disk.reads >= NUM_OBJECTS
    assert failures() == {}


def test_what_an_earlier_boot_left_is_taken_over(root: Path, origin: servers.FileServer) -> None:
    """On a disk of this machine nobody else can have it in use: see ``unit/store/test_node_directory.py``."""
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    before = fetched(origin)
    kill_and_lose_memory()
    own = resolve().disk_path
    left = own.rename(own.with_name("0123456789ab-0"))
    for path in (left / "lock", left):
        os.utime(path, (0, 0))
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    assert fetched(origin) == before
    assert [path.name for path in own.parent.iterdir()] == [own.name]


def test_a_server_that_stops_writes_what_waits(root: Path, origin: servers.FileServer) -> None:
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    stop()
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    assert prefeed.statistics().origin_requests == 0


@pytest.mark.parametrize("look", [0, *(pytest.param(look, marks=pytest.mark.whole) for look in (1, 2)), 3])
def test_killed_while_it_writes(root: Path, origin: servers.FileServer, look: int) -> None:
    """What was committed is there, and whole; the rest is asked for again."""
    loader = loader_of(prefeed.datasets.Objects(origin.url))
    for step, _ in enumerate(loader):
        if step == 6 * look:
            kill(server_pid())
    wait_for(lambda: status() is not None, "the loader to have started another")
    kill_and_lose_memory()
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    assert prefeed.statistics().disk.corrupt == 0
    before = fetched(origin)
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    assert fetched(origin) == before


def test_s3(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.moto_server() as endpoint:
        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="objects-on-disk")
        for file in root.iterdir():
            client.put_object(Bucket="objects-on-disk", Key=f"data/{file.name}", Body=file.read_bytes())
        client.close()
        read_epoch(prefeed.datasets.Objects("s3://objects-on-disk/data"), root)
        stop()
        for _ in range(2):
            read_epoch(prefeed.datasets.Objects("s3://objects-on-disk/data"), root)
        assert prefeed.statistics().origin_requests == 0
        assert prefeed.statistics().disk.objects == NUM_OBJECTS


def test_an_origin_without_versions_is_not_kept_on_disk(root: Path) -> None:
    """Nothing would tell old bytes from new ones."""
    servers.write_index(root)
    with servers.http_server(root) as origin:
        objects = prefeed.datasets.Objects(origin.url, pattern="*.bin")
        for _ in range(2):
            read_epoch(objects, root)
        assert fetched(origin).total() > NUM_OBJECTS
        assert prefeed.statistics().disk.objects == 0


# ---------------------------------------------------------------- files opened by path


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def folder_of(root: Path) -> Any:
    """Return torchvision's dataset of the files: it declares them, and opens them by path."""
    if not (root / "all").is_dir():
        (root / "all").mkdir()
        for file in root.glob("*.bin"):
            file.rename(root / "all" / file.name)
    return torchvision_datasets.DatasetFolder(str(root), read, (".bin",), target_transform=int)


def read_files(dataset: Any, root: Path, **kwargs: Any) -> None:
    seen = sorted(data for batch in loader_of(dataset, **kwargs) for data, _ in batch)
    assert seen == sorted(contents(root))


def change(file: Path) -> None:
    """Give the file other bytes of the same number, and a later time."""
    status = file.stat()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def test_opened_files_are_read_once(root: Path, end: Callable[[], None]) -> None:
    dataset = folder_of(root)
    for _ in range(2):
        read_files(dataset, root)
    assert prefeed.statistics().origin_requests == NUM_OBJECTS
    on_disk()
    end()
    for _ in range(2):
        read_files(dataset, root)
    statistics = prefeed.statistics()
    assert statistics.origin_requests == statistics.direct_reads == 0
    assert statistics.disk.reads >= NUM_OBJECTS


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_changed_file_is_never_served_as_it_was(root: Path, end: Callable[[], None], num_workers: int) -> None:
    """Whether the server saw it change or not; a changed time alone counts too."""
    dataset = folder_of(root)
    read_files(dataset, root, num_workers=num_workers)
    files = sorted((root / "all").iterdir())
    for file in files[:20]:
        change(file)
    read_files(dataset, root, num_workers=num_workers)
    assert prefeed.statistics().origin_requests == NUM_OBJECTS + 20
    on_disk(NUM_OBJECTS + 20)
    end()
    for file in files[10:30]:
        change(file)
    for _ in range(2):
        read_files(dataset, root, num_workers=num_workers)
    assert prefeed.statistics().origin_requests == 20
    assert prefeed.statistics().disk.corrupt == 0


def test_a_file_that_is_removed_is_an_error_though_its_bytes_are_on_disk(root: Path) -> None:
    dataset = folder_of(root)
    read_files(dataset, root)
    on_disk()
    stop()
    (root / "all" / "0007.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"0007\.bin"):
        read_files(dataset, root)


def test_a_refreshed_listing_has_the_new_bytes(root: Path) -> None:
    read_epoch(prefeed.datasets.Objects(root), root)
    on_disk()
    stop()
    change(root / "0007.bin")
    read_epoch(prefeed.datasets.Objects(root), root)
    assert prefeed.statistics().origin_requests == 1


# ---------------------------------------------------------------- bad disks


def spoil(directory: Path, damage: str) -> None:
    path = directory / ("index" if damage == "index" else "segment-0")
    size = path.stat().st_size
    with path.open("r+b") as file:
        if damage == "cut":
            file.truncate(2 * MIB)
        elif damage == "values":
            data = path.read_bytes()
            for number in range(20):
                file.seek(data.index(number.to_bytes(4, "little") + bytes([number]) * 10_000) + 5000)
                file.write(b"\xffspoilt\xff")
        else:
            file.write(os.urandom(size))


@pytest.mark.parametrize("damage", ["values", "cut", "garbage", "index"])
def test_what_is_damaged_is_fetched_again(root: Path, origin: servers.FileServer, damage: str) -> None:
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    stop()
    spoil(store().parent, damage)
    for _ in range(2):
        read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    statistics = prefeed.statistics()
    assert failures() == ({"store-damaged": 1} if damage == "index" else {})
    lost = {
        "values": 20,
        "cut": NUM_OBJECTS - 2 * MIB // (OBJECT_BYTES + 24),
        "garbage": NUM_OBJECTS,
        "index": NUM_OBJECTS,
    }
    assert statistics.origin_requests == lost[damage]
    assert statistics.disk.corrupt == (0 if damage == "index" else lost[damage])


def taken_bytes() -> int:
    return sum(file.stat().st_blocks * 512 for file in store().parent.iterdir())


def test_the_budget_holds(root: Path, origin: servers.FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_DISK", f"4MiB:{resolve().disk.directory}")
    objects = prefeed.datasets.Objects(origin.url)
    for _ in range(3):
        read_epoch(objects, root)
        disk = on_disk(40)
        assert disk.objects < 105
        assert disk.budget_bytes == 4 * MIB
        assert taken_bytes() <= 4 * MIB
    assert failures() == {}


def test_other_data_take_the_room_of_unused_data(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_DISK", f"4MiB:{resolve().disk.directory}")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    for file in sorted(root.iterdir()):
        file.rename(tmp_path / ("one" if int(file.stem) % 2 else "two") / file.name)
    read_epoch(prefeed.datasets.Objects(tmp_path / "one"), tmp_path / "one")
    on_disk(40)
    stop()
    before = held_keys()
    read_epoch(prefeed.datasets.Objects(tmp_path / "two"), tmp_path / "two")
    wait_for(lambda: len(held_keys() - before) > 30, "objects of the other data on disk")
    assert taken_bytes() <= 4 * MIB
    stop()
    read_epoch(prefeed.datasets.Objects(tmp_path / "two"), tmp_path / "two")
    assert prefeed.statistics().origin_requests < 70


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):  # a buffer would be written again by close()
        while True:
            file.write(bytes(64 * 1024))


def test_a_disk_that_others_fill(root: Path, origin: servers.FileServer, sandbox: Sandbox) -> None:
    """In the middle of it: what was stored is read, the rest is fetched, and nothing fails."""
    with small_file_system(sandbox.root / "disk", "16m") as small:
        objects = prefeed.datasets.Objects(origin.url)
        for step, _ in enumerate(loader_of(objects)):
            if step == 12:
                wait_for(lambda: prefeed.statistics().disk.objects >= 40, "some to be on disk")
                fill_up(small / "others")
        for _ in range(2):
            read_epoch(objects, root)
        statistics = prefeed.statistics()
        assert 40 <= statistics.disk.objects < NUM_OBJECTS
        assert statistics.disk.reads > 0
        assert failures() == {}
        (small / "others").unlink()
        before = prefeed.statistics().disk.objects  # it is tried again after 2,000 refusals at the latest
        wait_for(
            lambda: read_epoch(objects, root) or prefeed.statistics().disk.objects > before, "more", timeout_seconds=60
        )
        stop()


@pytest.mark.parametrize("disk", ["1GiB", "auto"])
def test_the_floor_holds_and_costs_nothing(
    root: Path, origin: servers.FileServer, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    """A tenth stays free; when others take it, what is on disk outlives the server all the same."""
    monkeypatch.setenv("PREFEED_DISK", f"{disk}:{sandbox.root / 'disk'}")
    monkeypatch.delenv(LIMITS_VARIABLE)
    set_limits(monkeypatch, start_ahead=False, read_in_place=False)
    with small_file_system(sandbox.root / "disk", "8m") as small:
        objects = prefeed.datasets.Objects(origin.url)
        for _ in range(2):
            read_epoch(objects, root)
        on_disk(60)
        stop()
        found = os.statvfs(small)
        assert found.f_bavail >= found.f_blocks // 10
        before = num_stored()
        assert before < NUM_OBJECTS
        fill_up(small / "others")
        read_epoch(prefeed.datasets.Objects(origin.url), root)
        after = prefeed.statistics().disk
        assert after.objects == before
        assert after.reads >= before // 2
        with NodeClient.connect(resolve()) as node:
            assert any("that stay free" in notice for notice in node.status().notices)
        stop()


def test_less_is_asked_for_than_is_there(
    root: Path, origin: servers.FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    stop()
    monkeypatch.setenv("PREFEED_DISK", f"4MiB:{resolve().disk.directory}")
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    assert on_disk(40).objects < 105
    assert taken_bytes() <= 4 * MIB


@pytest.mark.parametrize("name", ["objects", ""])
def test_a_directory_that_somebody_removes(root: Path, origin: servers.FileServer, name: str) -> None:
    objects = prefeed.datasets.Objects(origin.url)
    read_epoch(objects, root)
    shutil.rmtree(resolve().disk_path / name)
    for _ in range(2):
        read_epoch(objects, root)
    assert failures() == {}


def test_a_directory_that_cannot_be_used_is_said(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The server does not start, and says why; training goes on without."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREFEED_DISK", f"64MiB:{tmp_path / 'file' / 'disk'}")
    with pytest.raises(ServerError, match="PREFEED_DISK=500GB:/nvme"):
        start_server(resolve())


def test_two_homes_cannot_have_one_disk_tier(
    root: Path, origin: servers.FileServer, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    """They would cut each other's file short."""
    read_epoch(prefeed.datasets.Objects(origin.url), root)
    with monkeypatch.context() as other:
        other.setenv("PREFEED_HOME", str(sandbox.root / "other"))
        with pytest.raises(ServerError, match="its own directory in PREFEED_DISK"):
            start_server(resolve())
    wait_for(lambda: prefeed.statistics().disk.objects > 0, "the disk tier to be written")
    kill(server_pid())
    with NodeClient.connect(resolve()) as node:
        assert node.statistics().disk.objects > 0


# ---------------------------------------------------------------- commands


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_clear(tmp_path: Path, root: Path) -> None:
    """By URL only what is below it, as far as somebody has it open; all of it also of earlier servers."""
    other = make_objects(tmp_path / "other")
    for directory in (root, other):
        read_epoch(prefeed.datasets.Objects(directory), directory)
    on_disk(2 * NUM_OBJECTS)
    assert command("clear", str(other))["entries"] >= NUM_OBJECTS
    assert prefeed.statistics().disk.objects == NUM_OBJECTS
    asked = prefeed.statistics().origin_requests
    read_epoch(prefeed.datasets.Objects(root), root)
    assert prefeed.statistics().origin_requests == asked
    read_epoch(prefeed.datasets.Objects(other), other)
    assert prefeed.statistics().origin_requests == asked + NUM_OBJECTS
    stop()
    with NodeClient.connect(resolve()) as node:
        assert node.statistics().disk.objects == 2 * NUM_OBJECTS
        assert node.clear(str(other)).entries == 0
        assert command("clear", "--all") == {"entries": 2 * NUM_OBJECTS, "bytes": 2 * NUM_OBJECTS * OBJECT_BYTES}
        assert node.statistics().disk.objects == 0
    assert taken_bytes() < MIB
    read_epoch(prefeed.datasets.Objects(root), root)
    on_disk()


def test_stats(root: Path, origin: servers.FileServer) -> None:
    for _ in range(2):
        read_epoch(prefeed.datasets.Objects(origin.url), root)
    on_disk()
    disk = prefeed.statistics().disk
    assert disk == DiskCounts(
        objects=NUM_OBJECTS, bytes=NUM_OBJECTS * OBJECT_BYTES, budget_bytes=64 * MIB, reads=disk.reads
    )
    assert disk.reads > 0
    assert command("stats")["disk"] == {
        "objects": NUM_OBJECTS, "bytes": NUM_OBJECTS * OBJECT_BYTES, "budget_bytes": 64 * MIB, "reads": disk.reads,
        "corrupt": 0, "dropped": 0,
    }  # fmt: skip
    lines = CliRunner().invoke(cli, ["stats"]).stdout
    assert "disk tier" in lines
    assert "instead of origin requests" in lines


def test_without_one_nothing_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_DISK", "0")
    read_epoch(prefeed.datasets.Objects(root), root)
    assert prefeed.statistics().disk == Statistics().disk == DiskCounts()
    assert "disk tier" not in CliRunner().invoke(cli, ["stats"]).stdout
    assert not resolve().disk_path.exists()
