"""``prefeed.datasets.Packed``: files and groups of a pack, through the cache, from any place."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import prefeed
import servers
from e2e.images import Pixels, image_files, make_image_folder
from limits import set_limits
from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.errors import ObjectNotFoundError, TruncatedBodyError
from unit.packing.packs import LAYOUTS, make_files, packed

pytestmark = pytest.mark.usefixtures("sandbox")
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return make_files(tmp_path / "src")


def in_order(files: dict[str, bytes]) -> list[str]:
    return sorted(files, key=str.encode)


@layouts
def test_files_by_number(tmp_path: Path, files: dict[str, bytes], layout: str) -> None:
    packed(tmp_path / "src", tmp_path / "out", layout, seed=2)
    dataset = prefeed.datasets.Packed(tmp_path / "out")

    assert len(dataset) == 60
    assert [dataset.path(i) for i in range(60)] == in_order(files)
    assert [dataset[i] for i in range(60)] == [files[path] for path in in_order(files)]
    assert dataset[-1] == dataset[59]
    assert dataset.url == f"pack+file://{tmp_path}/out"
    for wrong in (60, -61):
        with pytest.raises(IndexError, match=f"sample {wrong} of 60"):
            dataset[wrong]


def test_groups(tmp_path: Path, files: dict[str, bytes]) -> None:
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    dataset = prefeed.datasets.Packed(tmp_path / "out", group=True)

    assert len(dataset) == 30
    assert dataset.path(0) == "cat/0000"
    expected = {"__key__": "cat/0000", "jpg": files["cat/0000.jpg"], "seg.png": files["cat/0000.seg.PNG"]}
    assert dataset[0] == expected
    assert prefeed.datasets.Packed(tmp_path / "out", sorted, group=True)[0] == sorted(expected)


def test_without_prefeed(tmp_path: Path, files: dict[str, bytes]) -> None:
    packed(tmp_path / "src", tmp_path / "out", "lmdb")
    dataset = prefeed.datasets.Packed(tmp_path / "out", config=prefeed.config.resolve({"enabled": False}))
    assert dataset[7] == files[in_order(files)[7]]


@pytest.mark.parametrize("group", [False, True])
def test_pickles(tmp_path: Path, files: dict[str, bytes], group: bool) -> None:
    packed(tmp_path / "src", tmp_path / "out", "tfrecord")
    dataset = prefeed.datasets.Packed(tmp_path / "out", len, group=group)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [copy[i] for i in range(len(copy))] == [dataset[i] for i in range(len(dataset))]
    assert copy.prefeed_state() == dataset.prefeed_state()


def test_state_and_keys_tell_packs_apart(tmp_path: Path, files: dict[str, bytes]) -> None:
    packed(tmp_path / "src", tmp_path / "one", "tfrecord")
    (tmp_path / "src" / "cat/0000.jpg").write_bytes(b"other")
    packed(tmp_path / "src", tmp_path / "two", "tfrecord")
    one, two = (prefeed.datasets.Packed(tmp_path / name, group=True) for name in ("one", "two"))
    assert one.prefeed_state() != two.prefeed_state()
    assert one.prefeed_sample(0)[0] == two.prefeed_sample(0)[0] == "cat/0000"
    assert one.prefeed_sample(0)[1] != two.prefeed_sample(0)[1]
    assert one.prefeed_stage() != prefeed.datasets.Packed(tmp_path / "one").prefeed_stage()


# ------------------------------------------------------------ through the cache


def ranged(handler: servers.Handler) -> None:
    """Answer a range, as web servers do."""
    content = (handler.server.directory / handler.path.lstrip("/")).read_bytes()
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"])
    assert match is not None
    first, last = int(match[1]), int(match[2])
    headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}", "ETag": '"1"'}
    handler.reply(206, content[first : last + 1], headers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[servers.FileServer]:
    (tmp_path / "www").mkdir()
    with servers.http_server(tmp_path / "www") as server:
        yield server


def serve(server: servers.FileServer, name: str) -> str:
    for file in (server.directory / name).iterdir():
        server.answers[f"/{name}/{file.name}"] = ranged
    return f"{server.url}/{name}"


def data_requests(server: servers.FileServer) -> list[str]:
    return [headers["range"] for _, path, headers in server.requests if not path.endswith(".index")]


@layouts
@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_range_a_file_and_none_for_the_second_epoch(
    tmp_path: Path, files: dict[str, bytes], server: servers.FileServer, layout: str, num_workers: int
) -> None:
    packed(tmp_path / "src", server.directory / "out", layout)
    dataset = prefeed.datasets.Packed(serve(server, "out"))
    loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers, collate_fn=list)
    expected = sorted(files.values())
    empty = sum(not data for data in expected)  # nothing is asked for what is nothing

    for _ in range(2):
        assert sorted(data for batch in loader for data in batch) == expected
        assert len(data_requests(server)) == len(set(data_requests(server))) == 60 - empty
    assert prefeed.statistics().origin_requests == 60
    assert prefeed.statistics().direct_reads == 0
    assert len(server.requests) - len(data_requests(server)) < 10


def test_groups_are_fetched_ahead(tmp_path: Path, files: dict[str, bytes]) -> None:
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    dataset = prefeed.datasets.Packed(tmp_path / "out", group=True)
    subset = torch.utils.data.Subset(dataset, range(5, 15))
    loader = prefeed.DataLoader(subset, batch_size=2, num_workers=2, collate_fn=list)

    assert [sample for batch in loader for sample in batch] == [dataset[i] for i in range(5, 15)]
    found = prefeed.statistics()
    assert (found.origin_requests, found.misses, found.direct_reads) == (20, 0, 0)


def test_plan_of_groups(tmp_path: Path, files: dict[str, bytes]) -> None:
    packed(tmp_path / "src", tmp_path / "out", "lmdb")
    dataset = prefeed.datasets.Packed(tmp_path / "out", group=True)
    with NodeClient.connect(current()) as node:
        access: AccessMap = dataset.prefeed_access(node, current())
    assert len(access) == 30
    assert access.objects_of(3) == (6, 7)


def test_groups_that_lie_apart_are_planned_too(tmp_path: Path) -> None:
    for name in ("a.a", "a.b/c.jpg", "a.c", "README"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(name.encode())
    packed(tmp_path / "src", tmp_path / "out", "lmdb")
    dataset = prefeed.datasets.Packed(tmp_path / "out", group=True)
    paths = prefeed.datasets.Packed(tmp_path / "out")
    with NodeClient.connect(current()) as node:
        access: AccessMap = dataset.prefeed_access(node, current())
    assert [[paths.path(i) for i in access.objects_of(sample)] for sample in range(2)] == [
        ["a.a", "a.c"],
        ["a.b/c.jpg"],
    ]
    ids, counts = access.object_ids(np.array([1, 0]))
    assert [paths.path(int(i)) for i in ids] == ["a.b/c.jpg", "a.a", "a.c"]
    assert counts is not None
    assert counts.tolist() == [1, 2]
    expected = [{"__key__": "a", "a": b"a.a", "c": b"a.c"}, {"__key__": "a.b/c", "jpg": b"a.b/c.jpg"}]
    assert [dataset[0], dataset[1]] == expected
    assert [sample for batch in prefeed.DataLoader(dataset, collate_fn=list) for sample in batch] == expected


@layouts
def test_image_folder_of_a_pack(tmp_path: Path, layout: str) -> None:
    root = make_image_folder(tmp_path / "images")
    result = packed(root, tmp_path / "out", layout)
    plain = prefeed.datasets.ImageFolder(root, Pixels())
    from_pack = prefeed.datasets.ImageFolder(result.url, Pixels())

    assert from_pack.classes == plain.classes
    assert from_pack.targets == plain.targets
    assert len(from_pack) == len(image_files(root))
    for i in range(len(plain)):
        assert torch.equal(torch.as_tensor(from_pack[i][0]), torch.as_tensor(plain[i][0]))


def test_warm(tmp_path: Path, files: dict[str, bytes]) -> None:
    url = packed(tmp_path / "src", tmp_path / "out", "webdataset").url
    with NodeClient.connect(current()) as node:
        assert node.warm(url).resident == 60
    before = prefeed.statistics()
    dataset = prefeed.datasets.Packed(url)
    assert [dataset[i] for i in range(60)] == [files[path] for path in in_order(files)]
    assert prefeed.statistics().origin_requests == before.origin_requests == 60
    assert prefeed.read(f"{url}/cat/0000.jpg") == files["cat/0000.jpg"]


def test_damage_is_an_error_with_the_path(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, retry_seconds=0.2)
    packed(tmp_path / "src", tmp_path / "out", "tfrecord")
    (shard,) = (tmp_path / "out").glob("*.tfrecord")
    content = shard.read_bytes()
    victim = max(files, key=lambda path: len(files[path]))
    shard.write_bytes(content.replace(files[victim], bytes(len(files[victim]))))
    dataset = prefeed.datasets.Packed(tmp_path / "out")
    with pytest.raises(TruncatedBodyError, match=re.escape(victim)):
        dataset[in_order(files).index(victim)]
    good = min(path for path in files if path != victim)
    assert dataset[in_order(files).index(good)] == files[good]


def test_no_pack(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(ObjectNotFoundError, match="not a finished pack"):
        prefeed.datasets.Packed(tmp_path / "src")
