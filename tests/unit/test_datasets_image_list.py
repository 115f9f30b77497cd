"""``prefeed.datasets.ImageList``: what the list names, with its labels, in its order; what is wrong with a list is said."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from torchvision import transforms

import prefeed
import servers
from e2e.images import Pixels, make_image_folder
from prefeed.errors import (
    BadListError,
    CannotFingerprintError,
    EmptyListingError,
    ObjectNotFoundError,
    RandomStageError,
)

pytestmark = pytest.mark.usefixtures("sandbox")

LIST = "train/class1/001.png 7\n\n./train/class0/000.png\t-1\r\ntrain/a b.png 3\ntrain/class1/001.png 8\n"
NAMED = [("train/class1/001.png", 7), ("train/class0/000.png", -1), ("train/a b.png", 3), ("train/class1/001.png", 8)]


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_image_folder(tmp_path / "root" / "train", num_images=6)
    (tmp_path / "root" / "train" / "class2" / "002.png").rename(tmp_path / "root" / "train" / "a b.png")
    (tmp_path / "root" / "train_list.txt").write_text(LIST)
    return tmp_path / "root"


def content(file: BinaryIO) -> bytes:
    return file.read()


def test_samples_are_those_of_the_list_in_its_order(root: Path) -> None:
    dataset = prefeed.datasets.ImageList(root, loader=content)

    assert dataset.samples == [(f"{root}/{path}", label) for path, label in NAMED]
    assert dataset.targets == [7, -1, 3, 8]
    assert len(dataset) == 4
    assert [dataset[i] for i in range(4)] == [((root / path).read_bytes(), label) for path, label in NAMED]
    assert dataset[-1] == dataset[3]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"sample {wrong} of 4"):
            dataset[wrong]


def test_images_and_labels_are_transformed(root: Path) -> None:
    dataset = prefeed.datasets.ImageList(root, transform=Pixels(), target_transform=str)
    image, label = dataset[2]
    assert (tuple(image.shape), label) == ((8, 8, 3), "3")


@pytest.mark.parametrize("text", ["train/a b.png,5\n", "\ufefftrain/a b.png , 5"])
def test_list_of_another_name_and_delimiter(root: Path, text: str) -> None:
    (root / "lists").mkdir()
    (root / "lists" / "val.csv").write_text(text, encoding="utf-8")
    dataset = prefeed.datasets.ImageList(root, "lists/val.csv", delimiter=",")
    assert dataset.samples == [(f"{root}/train/a b.png", 5)]


def test_pickles_and_works_without_prefeed(root: Path) -> None:
    plain = prefeed.datasets.ImageList(root, loader=content, config=prefeed.config.resolve({"enabled": False}))
    served = prefeed.datasets.ImageList(root, loader=content)
    copy = pickle.loads(pickle.dumps(served))
    assert [copy[i] for i in range(4)] == [plain[i] for i in range(4)]


def test_a_file_is_fetched_once_ahead_of_the_loop(root: Path) -> None:
    """The loader knows which objects the samples are: two epochs ask the origin for each file of the list once."""
    servers.write_index(root)
    with servers.http_server(root) as server:
        dataset = prefeed.datasets.ImageList(server.url, loader=content)
        loader = prefeed.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=1, collate_fn=list)
        seen = [sorted(label for batch in loader for _, label in batch) for _ in range(2)]
        counts = prefeed.statistics()
        asked = [path for method, path, _ in server.requests if method == "GET" and path != "/index.txt"]
    assert seen == [[-1, 3, 7, 8]] * 2
    assert (counts.hits + counts.late, counts.misses) == (8, 1)  # the list itself was in no plan
    assert sorted(asked) == sorted({f"/{path.replace(' ', '%20')}" for path, _ in NAMED} | {"/train_list.txt"})


def test_missing_list(root: Path) -> None:
    with pytest.raises(
        ObjectNotFoundError, match=rf"there is no val.txt below {root}, which lists 7 objects; name the"
    ):
        prefeed.datasets.ImageList(root, "val.txt")


def test_list_that_names_what_is_not_there(root: Path) -> None:
    (root / "train_list.txt").write_text("train/a b.png 1\ntrain/b.png 1\n/train/a.png 2\n")
    with pytest.raises(ObjectNotFoundError, match=r"train_list.txt names 2 of 3 .* the first of them 'train/b.png'; "):
        prefeed.datasets.ImageList(root)


@pytest.mark.parametrize("line", ["train/a b.png", "train/a b.png cat", "train/a b.png 1.5", "7"])
def test_line_that_is_no_path_and_label(root: Path, line: str) -> None:
    (root / "train_list.txt").write_text(f"train/class1/001.png 1\n\n{line}\n")
    with pytest.raises(BadListError, match=rf"train_list.txt, line 3: '{line}' is not a path and an integer") as raised:
        prefeed.datasets.ImageList(root)
    assert raised.value.details == {"line": 3}


def test_empty_list(root: Path) -> None:
    (root / "train_list.txt").write_text("\n \n")
    with pytest.raises(EmptyListingError, match=r"train_list.txt names no image"):
        prefeed.datasets.ImageList(root)


def test_without_pillow(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
        prefeed.datasets.ImageList(root)[0]


def test_errors_of_stages_name_the_argument_of_the_user(root: Path) -> None:
    flipped = prefeed.datasets.ImageList(root, transform=transforms.Compose([transforms.RandomHorizontalFlip()]))
    with pytest.raises(RandomStageError, match=r"ImageList\(Compose\(RandomHorizontalFlip\)\) draws from torch"):
        prefeed.CachedDataset(flipped)[0]
    with open(root / "log", "w") as log:
        logged = prefeed.datasets.ImageList(root, transform=lambda image, scale=2, file=log: image)
        with pytest.raises(CannotFingerprintError, match=r"ImageList\.file is a _io\.Text"):
            prefeed.CachedDataset(logged)
