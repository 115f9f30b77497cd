"""The comparison over an object store: the layout, what would spoil its figures, and that its variants see the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed_bench.cases import remote
from prefeed_bench.loading import EpochOutcome, LoadingOutcome, check_same_batches
from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos
from prefeed_bench.plain import ListedPictures
from prefeed_bench.s3_origin import environment

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> PhotoFolder:
    return make_photos(PhotoRecipe(num_photos=40), cache_dir=tmp_path_factory.mktemp("photos"), num_processes=1)


def epoch(digest: str = "a", *, seconds: float = 1.0, requests: int = 100) -> EpochOutcome:
    return EpochOutcome(samples=100, seconds=seconds, first_batch_seconds=0, origin_requests=requests, digest=digest)


def outcome(*epochs: EpochOutcome) -> LoadingOutcome:
    return LoadingOutcome(open_seconds=0, epochs=list(epochs), digest="", statistics={})


def test_the_documents_layout(photos: PhotoFolder, tmp_path: Path) -> None:
    remote.lay_out(photos, tmp_path / "imagenet")
    assert sorted(path.name for path in (tmp_path / "imagenet").iterdir()) == ["demo", "train", "train_list.txt"]
    lines = (tmp_path / "imagenet" / "train_list.txt").read_text().splitlines()
    assert lines[1] == "train/camera/000001.jpg 1"
    assert len(set(lines)) == photos.num_photos
    assert all((tmp_path / "imagenet" / line.split()[0]).is_file() for line in lines)
    assert len(list((tmp_path / "imagenet" / "demo").iterdir())) == 20


def test_pictures_are_those_of_the_list(photos: PhotoFolder, tmp_path: Path) -> None:
    remote.lay_out(photos, tmp_path / "imagenet")
    pictures = ListedPictures(str(tmp_path / "imagenet"), lambda picture: picture.size)
    assert len(pictures) == photos.num_photos
    assert pictures[1] in {((500, 375), 1), ((375, 500), 1)}


def test_mount_and_prefeed_read_the_same_from_the_same_endpoint(photos: PhotoFolder) -> None:
    with remote._laid_out(photos) as place:
        mounted = remote._fuse(place, "off", epochs=1)
        prefeed = remote._prefeed(place)
    check_same_batches([mounted, prefeed])
    (fuse,), (cold, warm) = mounted.epochs, prefeed.epochs
    assert (cold.samples, warm.samples) == (40, 40)
    assert fuse.origin_requests >= 40
    assert (cold.origin_requests, warm.origin_requests) == (40, 0)


def test_cold_and_fuse_are_first_epochs_warm_and_local_second_ones() -> None:
    runs = {
        "fuse": outcome(epoch(seconds=10)),
        "prefeed": outcome(epoch(seconds=2), epoch(seconds=1, requests=0)),
        "local": outcome(epoch(seconds=7), epoch(seconds=0.5)),
        "fuse_full": outcome(epoch(seconds=20, requests=200), epoch(seconds=5, requests=0)),
        "zero_code": outcome(epoch(seconds=10), epoch(seconds=4, requests=10)),
    }
    found = remote._result({name: [run] for name, run in runs.items()}).to_json()
    assert (found["fuse_img_s"], found["prefeed_cold_img_s"]) == (10, 50)
    assert (found["prefeed_warm_img_s"], found["local_img_s"]) == (100, 200)
    assert (found["cold_over_fuse"], found["warm_of_local"]) == (5, 0.5)
    assert (found["fuse_requests_per_image"], found["prefeed_warm_requests_per_image"]) == (1, 0)
    assert (found["fuse_full_first_img_s"], found["fuse_full_second_img_s"]) == (5, 20)
    assert (found["zero_code_second_img_s"], found["zero_code_requests_per_image"]) == (25, 1.1)


def test_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "mine")
    with environment({"AWS_REGION": "other", "AWS_ENDPOINT_URL": "http://x"}):
        assert os.environ["AWS_ENDPOINT_URL"] == "http://x"
    assert os.environ["AWS_REGION"] == "mine"
    assert "AWS_ENDPOINT_URL" not in os.environ
