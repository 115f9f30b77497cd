"""Small datasets of every type that a training script brings along, each sample with other bytes.

``TYPES`` holds a function a type, which writes the files below a directory and returns what the loaders are given.
Every sample draws from the global generators of torch, numpy and random, in whichever process makes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, random_split
from torchvision import datasets, io

import prefeed
from e2e.images import Augment, make_image_folder

NUM_SAMPLES = 22
"""Not a multiple of any batch size used, nor of batch size times workers."""


class AugmentAny(Augment):
    """Takes tensors as well."""

    def __call__(self, image: Any) -> torch.Tensor:
        return super().__call__(image.numpy() if isinstance(image, torch.Tensor) else image)


augment = AugmentAny()


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a test gives to its two loaders.

    Attributes:
        dataset: For prefeed.
        plain: For torch; the same object, but for prefeed's own datasets.
        num_files: Files that one pass over the dataset opens.
    """

    dataset: Any
    plain: Any
    num_files: int


def _given(dataset: Any, *, num_files: int | None = None) -> Given:
    return Given(dataset=dataset, plain=dataset, num_files=len(dataset) if num_files is None else num_files)


def _pixels(seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)


def _save_image(path: Path, seed: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_pixels(seed)).save(path)
    return str(path)


def _save_text(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def _save_tensor(path: Path, seed: int, size: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(np.random.default_rng(seed).integers(0, 1000, size)), path)
    return str(path)


# ---------------------------------------------------------------- datasets that list their files for prefeed


class OneList(Dataset[Any]):
    """Lists one file a sample."""

    def __init__(self, root: Path) -> None:
        self.images = [_save_tensor(root / f"image_{i}.pt", i, 64) for i in range(NUM_SAMPLES)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return augment(torch.load(self.images[index]))

    def train_data_list(self) -> Any:
        return np.array(self.images)


class TwoLists(OneList):
    """Lists an image and a title a sample."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "images")
        self.titles = [_save_tensor(root / "titles" / f"{i}.pt", 1000 + i, 7) for i in range(NUM_SAMPLES)]

    def __getitem__(self, index: int) -> Any:
        return {"image": super().__getitem__(index), "title": torch.load(self.titles[index]), "index": index}

    def train_data_list(self) -> Any:
        return np.array([self.images, self.titles])


class Clips(Dataset[Any]):
    """An accessor: sample i is made of one to three files."""

    def __init__(self, root: Path) -> None:
        self.frames = [
            [Path(_save_image(root / f"clip{i}" / f"{k}.png", 10 * i + k)) for k in range(1 + i % 3)]
            for i in range(NUM_SAMPLES)
        ]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Any:
        frames = [augment(Image.open(frame)) for frame in self.frames[index]]
        return torch.stack(frames).sum(0), len(frames)

    def prefeed_paths(self, index: int) -> list[Path]:
        return self.frames[index]


# ---------------------------------------------------------------- a dataset that nobody knows the files of


def _with_pillow(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image))


def _with_pathlib(path: Path) -> torch.Tensor:
    return torch.from_numpy(cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR))


def _with_fromfile(path: Path) -> torch.Tensor:
    return torch.from_numpy(cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR))


def _with_cv2(path: Path) -> torch.Tensor:
    return torch.from_numpy(cv2.imread(str(path)))


def _with_torchvision(path: Path) -> torch.Tensor:
    return io.read_image(str(path)).permute(1, 2, 0)


WAYS: list[Callable[[Path], torch.Tensor]] = [_with_pillow, _with_pathlib, _with_fromfile, _with_cv2, _with_torchvision]


class Hashed(Dataset[Any]):
    """Finds its files by a hash of the index, and opens each in another way; a sample has one or two."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for index in range(NUM_SAMPLES + 1):
            _save_image(self._path(index), index)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index >= NUM_SAMPLES:
            raise IndexError(index)
        image = WAYS[index % len(WAYS)](self._path(index))
        if index % 4 == 0:
            image = image.int() - WAYS[(index + 1) % len(WAYS)](self._path(index + 1)).int()
        return augment(image), index

    @property
    def num_files(self) -> int:
        """Files that one pass over all samples opens."""
        return NUM_SAMPLES + len(range(0, NUM_SAMPLES, 4))

    def _path(self, index: int) -> Path:
        name = hashlib.sha256(str(index).encode()).hexdigest()
        return self.root / name[:1] / f"{name[1:20]}.png"


# ---------------------------------------------------------------- one function a type


def train_data_list(root: Path) -> Given:
    return _given(OneList(root))


def train_data_list_of_two(root: Path) -> Given:
    return _given(TwoLists(root), num_files=2 * NUM_SAMPLES)


def image_folder(root: Path) -> Given:
    return _given(datasets.ImageFolder(str(make_image_folder(root, num_images=NUM_SAMPLES)), augment))


def load_array(path: str) -> torch.Tensor:
    return torch.from_numpy(np.load(path))


def dataset_folder(root: Path) -> Given:
    for index in range(NUM_SAMPLES):
        path = root / f"class{index % 2}" / f"{index}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, _pixels(index).astype(np.float32))
    return _given(datasets.DatasetFolder(str(root), load_array, (".npy",), transform=augment))


def voc_detection(root: Path) -> Given:
    base = root / "VOCdevkit" / "VOC2012"
    for index in range(NUM_SAMPLES):
        _save_image(base / "JPEGImages" / f"{index}.jpg", index)
        thing = f"<object><name>cat{index}</name></object>"
        _save_text(base / "Annotations" / f"{index}.xml", f"<annotation>{thing}</annotation>")
    names = "".join(f"{index}\n" for index in reversed(range(NUM_SAMPLES)))
    _save_text(base / "ImageSets" / "Main" / "train.txt", names)
    return _given(datasets.VOCDetection(str(root), image_set="train", transform=augment), num_files=2 * NUM_SAMPLES)


def captions_as_tensor(target: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([thing["id"] for thing in target])


def coco_detection(root: Path) -> Given:
    names = {100 - index: f"part{index % 2}/{index}.jpg" for index in range(NUM_SAMPLES)}
    for key, name in names.items():
        _save_image(root / "images" / name, key)
    content = {
        "images": [{"id": key, "file_name": name} for key, name in names.items()],
        "annotations": [{"id": 7 * key, "image_id": key, "bbox": [0, 0, 1, 1]} for key in names],
    }
    listing = _save_text(root / "annotations.json", json.dumps(content))
    return _given(datasets.CocoDetection(str(root / "images"), listing, augment, captions_as_tensor))


def fgvc_aircraft(root: Path) -> Given:
    data = root / "fgvc-aircraft-2013b" / "data"
    for index in range(NUM_SAMPLES):
        _save_image(data / "images" / f"{index}.jpg", index)
    _save_text(data / "variants.txt", "707\n747 SP\n")
    labels = "".join(f"{index} {'707' if index % 3 else '747 SP'}\n" for index in reversed(range(NUM_SAMPLES)))
    _save_text(data / "images_variant_trainval.txt", labels)
    return _given(datasets.FGVCAircraft(str(root), transform=augment))


def subset(root: Path) -> Given:
    """Every second sample, from the end, counted from the end."""
    return _given(Subset(image_folder(root).dataset, list(range(-1, -NUM_SAMPLES, -2))))


def split_at_random(root: Path) -> Given:
    generator = torch.Generator().manual_seed(3)
    return _given(random_split(image_folder(root).dataset, [NUM_SAMPLES - 5, 5], generator)[0])


def concatenated(root: Path) -> Given:
    parts = [image_folder(root / "one").dataset, subset(root / "two").dataset, fgvc_aircraft(root / "three").dataset]
    return _given(ConcatDataset(parts))


def stacked(root: Path) -> Given:
    parts = {"image": image_folder(root / "image").dataset, "both": TwoLists(root / "both")}
    return _given(StackDataset(**parts), num_files=3 * NUM_SAMPLES)


def accessor(root: Path) -> Given:
    dataset = Clips(root)
    return _given(dataset, num_files=sum(map(len, dataset.frames)))


def learned(root: Path) -> Given:
    dataset = Hashed(root)
    return _given(dataset, num_files=dataset.num_files)


def learned_subset(root: Path) -> Given:
    """Only the samples that open one file."""
    return _given(Subset(Hashed(root), [index for index in range(NUM_SAMPLES) if index % 4]))


def learned_stack(root: Path) -> Given:
    """What one part says does not help while the other says nothing."""
    dataset = Hashed(root / "hashed")
    parts = (dataset, image_folder(root / "images").dataset)
    return _given(StackDataset(*parts), num_files=dataset.num_files + NUM_SAMPLES)


def prefeeds_image_folder(root: Path) -> Given:
    plain = image_folder(root)
    return Given(dataset=prefeed.datasets.ImageFolder(root, augment), plain=plain.dataset, num_files=plain.num_files)


Build = Callable[[Path], Given]


def _together(root: Path, builds: list[Build]) -> Given:
    parts = [build(root / build.__name__) for build in builds]
    return Given(
        dataset=ConcatDataset([part.dataset for part in parts]),
        plain=ConcatDataset([part.plain for part in parts]),
        num_files=sum(part.num_files for part in parts),
    )


def declared_together(root: Path) -> Given:
    """Every type whose files are known, one after the other; batches are lists."""
    return _together(root, [build for build in TYPES if build not in LEARNED])


def learned_together(root: Path) -> Given:
    """Every type whose files are learned."""
    return _together(root, LEARNED)


TYPES: list[Build] = [
    train_data_list, train_data_list_of_two, image_folder, dataset_folder, voc_detection, coco_detection,
    fgvc_aircraft, subset, split_at_random, concatenated, stacked, accessor, learned, learned_subset,
    learned_stack, prefeeds_image_folder,
]  # fmt: skip

LEARNED: list[Build] = [learned, learned_subset, learned_stack]
