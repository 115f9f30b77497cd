"""Datasets that read any origin through the node's cache. They need no torch, and work in every loader.

In ``prefeed.DataLoader`` their objects are in memory before they are asked for; elsewhere each is fetched when it
is first asked for, and kept.
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from prefeed.client.access import AccessMap
from prefeed.client.active import active_reader
from prefeed.client.dataset import NodeDataset, open_node_dataset
from prefeed.client.direct import read_origin
from prefeed.client.node import NodeClient
from prefeed.client.readers import Readers
from prefeed.config import Config, current
from prefeed.errors import ConfigError, EmptyListingError, ObjectNotFoundError, PrefeedError, SourceError
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import Buffer, ListingProgress

__all__ = ["IMAGE_EXTENSIONS", "ImageFolder", "Objects"]

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""File names that ``ImageFolder`` takes for images: torchvision's list."""

_readers = Readers()


class Objects:
    """The bytes of each object below a URL or directory, in order of their paths.

    Args:
        url_or_path: A directory, ``s3://``, ``gs://``, ``az://`` or ``http(s)://``.
        decode: Applied to the bytes of each object; its result is the sample. None: the bytes are.
        pattern: Which objects; ``*`` stops at ``/``, ``**`` does not: ``train/**/*.jpg``.
        config: Settings; defaults to those in force in the process.

    Raises:
        SourceError: The origin cannot be listed, or nothing in it matches; the message says what to change.

    **Threads and processes**: may be used in many threads, before and after a fork, and pickled to a spawned worker.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        decode: Callable[[bytes], Any] | None = None,
        pattern: str = "**",
        *,
        config: Config | None = None,
    ) -> None:
        self.decode = decode
        self.pattern = pattern
        self._origin = _Origin(url_or_path, config or current())
        self._ids = _matching(self._origin.manifest, pattern, self._origin.url)

    @property
    def url(self) -> str:
        """Canonical URL of the root."""
        return self._origin.url

    def __len__(self) -> int:
        return self._origin.manifest.num_objects if self._ids is None else len(self._ids)

    def __getitem__(self, index: int) -> Any:
        data = self._origin.read(self._object_id(index))
        return data if self.decode is None else self.decode(data)

    def path(self, index: int) -> str:
        """Return the path of a sample's object, relative to the root."""
        return self._origin.manifest.path(self._object_id(index))

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return which object each sample needs."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_stage(self) -> Any:
        """Return what samples are made with, for the caches of stages."""
        return self.url, self.decode

    def prefeed_state(self) -> Any:
        """Return what tells this dataset from others: what samples are made with, and which listing."""
        return self.prefeed_stage(), self.pattern, self._origin.manifest.directory.name

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's object, and its entry key."""
        object_id = self._object_id(index)
        return self._origin.manifest.path(object_id), self._origin.manifest.key(object_id)

    def _object_id(self, index: int) -> int:
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"sample {index} of {length}")
        index = int(index) % length
        return index if self._ids is None else int(self._ids[index])


class ImageFolder:
    """Images in one folder a class, as torchvision's ``ImageFolder``, from any origin.

    Samples and their order, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are torchvision's.

    Args:
        url_or_path: Root; ``<root>/<class>/.../<image>``.
        transform: Applied to the image.
        target_transform: Applied to the class index.
        loader: Given a binary file, returns the image; default: Pillow, converted to RGB, as torchvision does.
        config: Settings; defaults to those in force in the process.

    Raises:
        SourceError: The origin cannot be listed, or holds no class folder with an image.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[BinaryIO], Any] | None = None,
        *,
        config: Config | None = None,
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader or _load_rgb_image
        self._origin = _Origin(url_or_path, config or current())
        self.root = self._origin.url
        images = _images_by_class(self._origin.manifest)
        if not images:
            raise EmptyListingError(
                f"no class folder with an image below {self.root}; wanted <class>/<name> with one of the endings "
                f"{', '.join(IMAGE_EXTENSIONS)}, found {self._origin.manifest.num_objects} objects without"
            )
        self.classes = sorted(images)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        ordered = [(object_id, self.class_to_idx[name]) for name in self.classes for object_id in images[name]]
        table = np.array(ordered, dtype=np.int64)  # table: (num_samples, 2)
        self._ids, self._targets = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    @property
    def targets(self) -> list[int]:
        """Class index of each sample."""
        return [int(target) for target in self._targets]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(full path or URL, class index) of each sample."""
        manifest, root = self._origin.manifest, self.root.rstrip("/")
        pairs = zip(self._ids.tolist(), self._targets.tolist(), strict=True)
        return [(f"{root}/{manifest.path(object_id)}", target) for object_id, target in pairs]

    imgs = samples

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        image = self.loader(io.BytesIO(self._origin.read(int(self._ids[index]))))
        target = int(self._targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return which object each sample needs."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_stage(self) -> Any:
        """Return what samples are made with, for the caches of stages."""
        return self.root, self.loader, self.transform, self.target_transform

    def prefeed_state(self) -> Any:
        """Return what tells this dataset from others: what samples are made with, and which listing."""
        return self.prefeed_stage(), self._origin.manifest.directory.name

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's image, and its entry key and class."""
        object_id = int(self._ids[index])
        return self._origin.manifest.path(object_id), self._origin.manifest.key(object_id) + b"%d" % self._targets[
            index
        ]


def _load_rgb_image(file: BinaryIO) -> Any:
    """Return the image as Pillow's RGB, as torchvision's default loader does."""
    # Imported here: Pillow is torchvision's dependency, not prefeed's.
    from PIL import Image

    with Image.open(file) as image:
        return image.convert("RGB")


class _Origin:
    """A root and its manifest, read through the node's cache where there is one."""

    def __init__(self, url_or_path: str | os.PathLike[str], config: Config) -> None:
        self.url = canonical_url(url_or_path)
        self._given = (
            self.url if self.url.startswith("/") else os.fspath(url_or_path)
        )  # may hold credentials: for sources, never for messages
        self.config = config
        self._local = _PerProcess()
        self._dataset: NodeDataset | None = None
        if config.enabled:
            try:
                with NodeClient.connect(config) as node, _listing(self.url, config) as listing:
                    self._dataset = open_node_dataset(node, os.fspath(url_or_path), config, listing=listing)
            except (SourceError, ConfigError):
                raise
            except (PrefeedError, OSError) as err:
                print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)
        listed = self._list_here(url_or_path) if self._dataset is None else self._dataset.manifest
        assert isinstance(listed, Manifest)
        self.manifest = listed

    def read(self, object_id: int) -> bytes:
        """Return the object's bytes: from the loader's reader, the process's own, or the origin."""
        reader = active_reader(self.manifest.directory)
        data: Buffer
        if reader is not None:
            data = reader.read(object_id)
        elif self._dataset is not None:
            data = _readers.read(self._dataset, object_id)
        else:
            data = read_origin(self._local.source(self._given, self.config), self.manifest.path(object_id), self.config)
        return data if isinstance(data, bytes) else bytes(data)

    def on_node(self, node: NodeClient, config: Config) -> NodeDataset:
        """Return the dataset as the node knows it now."""
        return open_node_dataset(node, self._given, config)

    def _list_here(self, url_or_path: str | os.PathLike[str]) -> Manifest:
        try:
            return self._list_below(self.config.home, url_or_path)
        except OSError as err:
            if isinstance(err, PrefeedError):
                raise
            return self._list_below(_temporary_home(), url_or_path)  # the home cannot be written

    def _list_below(self, home: Path, url_or_path: str | os.PathLike[str]) -> Manifest:
        with _listing(self.url, self.config) as listing:
            return ManifestLibrary(home).open(
                os.fspath(url_or_path), source_factory=lambda root: open_source(root, self.config), progress=listing
            )


@functools.cache
def _temporary_home() -> Path:
    """Return a directory for manifests that lasts as long as this process and those that it starts."""
    directory = tempfile.mkdtemp(prefix="prefeed-manifests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


class _PerProcess:
    """The source of this process; a forked child and an unpickled copy open their own."""

    def __init__(self) -> None:
        self._pid = 0
        self._source: Source | None = None
        self._lock = threading.Lock()

    def source(self, url: str, config: Config) -> Source:
        with self._lock:
            if self._source is None or self._pid != os.getpid():
                self._pid, self._source = os.getpid(), open_source(url, config)
            return self._source

    def __reduce__(self) -> tuple[Any, ...]:
        return (_PerProcess, ())


class _listing:  # noqa: N801 - used as a function
    """Shows on a terminal how far a listing has come; silent elsewhere."""

    def __init__(self, url: str, config: Config) -> None:
        console = Console(stderr=True)
        shown = config.progress and console.is_terminal
        columns = (TextColumn("listing {task.description}: {task.completed:,.0f} objects"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True) if shown else None
        self._url = url

    def __enter__(self) -> ListingProgress:
        if self._progress is None:
            return lambda objects, size: None
        progress = self._progress
        progress.start()
        task = progress.add_task(self._url, total=None)
        return lambda objects, size: progress.update(task, completed=objects)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def _matching(manifest: Manifest, pattern: str, url: str) -> npt.NDArray[np.int64] | None:
    if pattern == "**":
        return None
    matches = _glob_regex(pattern).fullmatch
    ids = [i for i in range(manifest.num_objects) if matches(manifest.path(i))]
    if not ids:
        raise ObjectNotFoundError(f"none of the {manifest.num_objects} objects below {url} matches {pattern!r}")
    return np.array(ids, dtype=np.int64)


def _glob_regex(pattern: str) -> re.Pattern[str]:
    """Return the expression of a glob in which ``*`` and ``?`` stop at ``/`` and ``**`` does not."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(special.get(part) or re.escape(part) for part in parts), re.DOTALL)


def _images_by_class(manifest: Manifest) -> dict[str, list[int]]:
    """Return object ids by class folder, each list in torchvision's order: by directory, then by name."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for object_id in range(manifest.num_objects):
        path = manifest.path(object_id)
        directory, _, name = path.rpartition("/")
        if directory and name.lower().endswith(IMAGE_EXTENSIONS):
            found.setdefault(directory.partition("/")[0], []).append((directory, name, object_id))
    return {name: [object_id for *_, object_id in sorted(images)] for name, images in found.items()}
