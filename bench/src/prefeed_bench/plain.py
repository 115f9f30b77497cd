"""The data sets of the variants without prefeed: each object is read when its sample is asked for."""

from __future__ import annotations

import io
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from prefeed_bench.photos import INDEX_NAME

LIST_NAME = "train_list.txt"
"""What names the pictures of a training set, and their labels, in the document's layout."""


class PlainObjects(Protocol):
    """Objects by number, in the order of their paths."""

    paths: list[str]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> bytes: ...


class HttpObjects:
    """Objects of a plain HTTP server, one request each, over connections that stay open.

    **Threads and processes.** Pickled or forked without its connections: each process opens its own.
    """

    def __init__(self, url: str, first_objects: int = 0) -> None:
        self.url = url
        with urllib.request.urlopen(url + INDEX_NAME, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        paths = sorted(line.split("\t")[0] for line in lines)
        # Every n-th path, so that a part of the data has all classes.
        self.paths = paths[:: max(1, len(paths) // first_objects)][:first_objects] if first_objects else paths
        self._store: Any = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        import obstore  # the fastest of the clients that were measured; opened after the fork, like its store

        if self._store is None or self._process != os.getpid():
            self._store = obstore.store.HTTPStore(self.url, client_options={"allow_http": True})
            self._process = os.getpid()
        return bytes(obstore.get(self._store, self.paths[index]).bytes())


class FileObjects:
    """Files below a directory."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self.paths = sorted(str(path.relative_to(root)) for path in self._root.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return (self._root / self.paths[index]).read_bytes()


class ListedPictures:
    """Pictures that ``train_list.txt`` names, with their labels: the document's layout, read as its users read it.

    Args:
        root: Directory that the list lies in, and its paths are relative to.
        transform: Applied to each picture.
    """

    def __init__(self, root: str, transform: Callable[[Any], Any]) -> None:
        self._root = root
        self._transform = transform
        with open(os.path.join(root, LIST_NAME)) as lines:
            self.samples = [(path, int(label)) for path, label in map(str.split, lines)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image  # as below

        path, label = self.samples[index]
        with open(os.path.join(self._root, path), "rb") as file, Image.open(file) as picture:
            return self._transform(picture.convert("RGB")), label


class PicturesOf:
    """Decoded pictures of some objects, with the number of their folder as label: what ``ImageFolder`` gives."""

    def __init__(self, objects: PlainObjects, transform: Callable[[Any], Any]) -> None:
        self._objects = objects
        self._transform = transform
        classes = sorted({path.split("/")[0] for path in objects.paths})
        numbers = {name: number for number, name in enumerate(classes)}
        self.targets = [numbers[path.split("/")[0]] for path in objects.paths]

    def __len__(self) -> int:
        return len(self._objects)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image  # those who read bytes do without

        with Image.open(io.BytesIO(self._objects[index])) as picture:
            return self._transform(picture.convert("RGB")), self.targets[index]
