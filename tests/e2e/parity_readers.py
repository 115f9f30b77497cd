"""Small files in the formats that MindSpore's cases name, and map-style readers of them.

Each function writes the files below a directory and returns the dataset. torchvision's own readers where it has one.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torchvision import datasets
from torchvision.transforms import functional

# ---------------------------------------------------------------- pictures


def pixels(seed: int, height: int = 24, width: int = 32) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def write_jpeg(path: Path, seed: int, height: int = 24, width: int = 32) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, height, width)).save(path)
    return str(path)


def write_text(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


def write_folder(root: Path, count: int = 8) -> Path:
    """Write JPEGs of different sizes into two class folders."""
    for index in range(count):
        write_jpeg(root / f"class{index % 2}" / f"{index:05}.jpg", index, 20 + index % 7, 30 - index % 5)
    return root


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def folder(root: Path) -> Any:
    """MindSpore's ImageFolderDataset: the bytes of a file, and its class."""
    return datasets.DatasetFolder(str(root), read_bytes, (".jpg",))


Sample = tuple[Any, ...]


def decode(sample: Sample) -> Sample:
    """Give the pixels of a JPEG."""
    return np.array(Image.open(io.BytesIO(sample[0])).convert("RGB")), *sample[1:]


def decode_and_resize(sample: Sample) -> Sample:
    image = functional.resize(Image.open(io.BytesIO(sample[0])).convert("RGB"), [16, 16])
    return functional.to_tensor(image), *sample[1:]


def rescale(sample: Sample) -> Sample:
    return np.asarray(sample[0], np.float32) / 255 - 1, *sample[1:]


# ---------------------------------------------------------------- torchvision's readers


def coco(root: Path, count: int = 6) -> Any:
    names = {count - index: f"{index}.jpg" for index in range(count)}
    for key, name in names.items():
        write_jpeg(root / "images" / name, key)
    content = {
        "images": [{"id": key, "file_name": name} for key, name in names.items()],
        "annotations": [{"id": 7 * key, "image_id": key, "bbox": [0, 0, key, 1]} for key in names],
    }
    return datasets.CocoDetection(str(root / "images"), write_text(root / "annotations.json", json.dumps(content)))


def mnist(root: Path, count: int = 10) -> Any:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 255, (count, 28, 28), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">iiii", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels.tobytes())
    return datasets.MNIST(str(root))


class _Celeba(datasets.CelebA):
    def _check_integrity(self) -> bool:
        return True  # the real one has 200,000 pictures, of known checksums


def celeba(root: Path, count: int = 4) -> Any:
    base = root / "celeba"
    names = [f"{index:06}.jpg" for index in range(count)]
    for index, name in enumerate(names):
        write_jpeg(base / "img_align_celeba" / name, index)
    lines = {
        "list_eval_partition.txt": [f"{name} 0" for name in names],
        "identity_CelebA.txt": [f"{name} {index}" for index, name in enumerate(names)],
        "list_bbox_celeba.txt": [str(count), "image_id x y w h", *(f"{name} 1 2 3 4" for name in names)],
        "list_landmarks_align_celeba.txt": [str(count), "x y", *(f"{name} 5 {i}" for i, name in enumerate(names))],
        "list_attr_celeba.txt": [str(count), "Bald Young", *(f"{name} 1 -1" for name in names)],
    }
    for name, content in lines.items():
        write_text(base / name, "\n".join(content) + "\n")
    return _Celeba(str(root), "train", ["attr", "identity", "landmarks"], transform=as_rgb)


def as_rgb(image: Image.Image) -> Image.Image:
    with image:  # torchvision leaves the file of CelebA's pictures open
        return image.convert("RGB")


def voc(root: Path, count: int = 9) -> Any:
    base = root / "VOCdevkit" / "VOC2012"
    for index in range(count):
        write_jpeg(base / "JPEGImages" / f"{index}.jpg", index)
        thing = f"<object><name>cat{index}</name></object>"
        write_text(base / "Annotations" / f"{index}.xml", f"<annotation>{thing}</annotation>")
    write_text(base / "ImageSets" / "Main" / "train.txt", "".join(f"{index}\n" for index in reversed(range(count))))
    return datasets.VOCDetection(str(root), image_set="train")


class _Cifar10(datasets.CIFAR10):
    train_list: ClassVar[Any] = [["data_batch_1", None]]
    test_list: ClassVar[Any] = [["test_batch", None]]
    meta: ClassVar[Any] = {"filename": "batches.meta", "key": "label_names", "md5": None}


class _Cifar100(datasets.CIFAR100):
    train_list: ClassVar[Any] = [["train", None]]
    test_list: ClassVar[Any] = [["test", None]]
    meta: ClassVar[Any] = {"filename": "meta", "key": "fine_label_names", "md5": None}


def cifar10(root: Path, count: int = 10) -> Any:
    return _cifar(_Cifar10, root, count, "labels")


def cifar100(root: Path, count: int = 10) -> Any:
    return _cifar(_Cifar100, root, count, "fine_labels")


def _cifar(kind: Any, root: Path, count: int, labels: str) -> Any:
    base = root / kind.base_folder
    base.mkdir(parents=True)
    data = np.random.default_rng(1).integers(0, 255, (count, 3072), dtype=np.uint8)
    content = {"data": data, labels: [index % 10 for index in range(count)]}
    for name, _ in (*kind.train_list, *kind.test_list):
        (base / name).write_bytes(pickle.dumps(content))
    (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: list("abcdefghij")}))
    return kind(str(root))


# ---------------------------------------------------------------- lists of pictures


class Listed:
    """A JSON object a sample, with the path of its picture and what belongs to it."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> tuple[bytes, Any]:
        entry = self.entries[index]
        return read_bytes(entry["source"]), entry["label"]


def manifest(root: Path, count: int = 4) -> Any:
    """A line of JSON a sample, as ManifestDataset reads it."""
    lines = [
        json.dumps({"source": write_jpeg(root / f"{i}.jpg", i), "usage": "train", "annotation": [{"name": f"cat{i}"}]})
        for i in range(count)
    ]
    entries = [json.loads(line) for line in Path(write_text(root / "list", "\n".join(lines))).read_text().splitlines()]
    return Listed([{"source": one["source"], "label": one["annotation"][0]["name"]} for one in entries])


def album(root: Path, count: int = 7) -> Any:
    """A file of JSON a sample, as AlbumDataset reads it."""
    for index in range(count):
        image = write_jpeg(root / "images" / f"{index}.jpg", index)
        write_text(root / f"{index}.json", json.dumps({"image": image, "label": [index, index + 1], "id": str(index)}))
    found = [json.loads(path.read_text()) for path in sorted(root.glob("*.json"))]
    return Listed([{"source": one["image"], "label": (*one["label"], one["id"])} for one in found])


# ---------------------------------------------------------------- many samples a file


class Records:
    """Sample i is a stretch of a file, parsed.

    Args:
        path: The file.
        stretches: Offset and length of each sample.
        parse: Makes the sample of its bytes.
    """

    def __init__(self, path: Path, stretches: list[tuple[int, int]], parse: Callable[[bytes], Any]) -> None:
        self.path = str(path)
        self.stretches = stretches
        self.parse = parse

    def __len__(self) -> int:
        return len(self.stretches)

    def __getitem__(self, index: int) -> Any:
        offset, size = self.stretches[index]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return self.parse(file.read(size))


def as_bytes(data: bytes) -> bytes:
    return data


def as_text(data: bytes) -> str:
    return data.decode().rstrip("\n")


def as_fields(data: bytes) -> list[str]:
    return next(csv.reader([as_text(data)]))


def as_numbered_jpeg(data: bytes) -> tuple[bytes, int]:
    return data[4:], int.from_bytes(data[:4], "big")


def textfile(root: Path, count: int = 3) -> Any:
    return _lines(root / "text.txt", [f"Good luck {index} to everyone." for index in range(count)], as_text)


def csv_file(root: Path, count: int = 3) -> Any:
    return _lines(root / "table.csv", [f'{index},"a, b",{index + 1}' for index in range(count)], as_fields)


def clue(root: Path, count: int = 3) -> Any:
    """CLUE's files have a JSON object a line."""
    lines = [json.dumps({"sentence1": f"a{index}", "label": str(index)}) for index in range(count)]
    return _lines(root / "train.json", lines, json.loads)


def _lines(path: Path, lines: list[str], parse: Callable[[bytes], Any]) -> Records:
    return Records(path, _written(path, [f"{line}\n".encode() for line in lines], head=0, tail=0), parse)


def tfrecord(root: Path, count: int = 12) -> Any:
    """TensorFlow's framing: length, its checksum, data, its checksum."""
    framed = []
    for index in range(count):
        data = pixels(index, 8, 8).tobytes()
        head = struct.pack("<Q", len(data))
        framed.append(head + _masked_crc(head) + data + _masked_crc(data))
    path = root / "train.tfrecord"
    return Records(path, _written(path, framed, head=12, tail=4), as_bytes)


def mindrecord(root: Path, count: int = 5) -> Any:
    """Pictures and labels in one file with an index, as in a MindRecord; the layout is the test's own."""
    pictures = []
    for index in range(count):
        data = io.BytesIO()
        Image.fromarray(pixels(index)).save(data, "JPEG")
        pictures.append(index.to_bytes(4, "big") + data.getvalue())
    path = root / "train.records"
    return Records(path, _written(path, pictures, head=0, tail=0), as_numbered_jpeg)


def _written(path: Path, parts: list[bytes], *, head: int, tail: int) -> list[tuple[int, int]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [(end - len(part) + head, len(part) - head - tail) for end, part in zip(ends, parts, strict=True)]


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


# ---------------------------------------------------------------- no files


class RandomData:
    """MindSpore's RandomDataset: noise; the same for an index each time, so that it may be cached."""

    def __init__(self, count: int, shape: tuple[int, ...] = (40, 50, 3)) -> None:
        self.count = count
        self.shape = shape

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        values = np.random.default_rng(index).integers(0, 255, self.shape, dtype=np.uint8)
        return torch.from_numpy(values), index


class Texts:
    """Sample i is the text of a file."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        with open(self.paths[index], encoding="utf-8") as file:
            return file.read()


def folder_of_texts(root: Path) -> Texts:
    return Texts([str(path) for path in sorted(root.iterdir())])
