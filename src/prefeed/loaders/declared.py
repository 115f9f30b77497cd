"""Which files the samples of a dataset are made of, as the dataset itself says; nothing is opened to learn it.

In order of precedence: its method ``train_data_list``, its method ``prefeed_paths`` (``Accessor``), and the list
that every torchvision dataset keeps. ``Subset``, ``ConcatDataset`` and ``StackDataset`` of such datasets follow.
"""

from __future__ import annotations

import inspect
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import DeclarationError
from prefeed.loaders.kinds import class_of, is_a, is_just_a

PathLike = str | os.PathLike[str]
_PATH_TYPES = (str, os.PathLike)
_AT_ONCE = 1 << 16


@runtime_checkable
class Accessor(Protocol):
    """A dataset that says itself which files a sample is made of.

    ``prefeed_paths`` is called once for every index, 0 to ``len(dataset) - 1``, when the first epoch begins: it
    should look the answer up and open nothing. ``train_data_list`` gives all paths at once, and is faster.
    """

    def prefeed_paths(self, index: int) -> PathLike | Sequence[PathLike]:
        """Return the file, or files, that sample ``index`` opens, in the order in which it opens them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Which files each sample is made of.

    Attributes:
        paths: Absolute paths; object id i is ``paths[i]``. May hold a path more than once, and paths of no sample.
        starts: Sample i is made of ``paths[starts[i]:starts[i + 1]]``, shape (num_samples + 1,);
            None: sample i is ``paths[i]`` alone.
        indices: Sample i is sample ``indices[i]`` of the above, shape (num_samples,); None: all, in order.
    """

    paths: list[str]
    starts: NDArray[np.int64] | None
    indices: NDArray[np.int64] | None = None

    @property
    def num_samples(self) -> int:
        """Length of the dataset."""
        return self._num_listed if self.indices is None else len(self.indices)

    @property
    def _num_listed(self) -> int:
        return len(self.paths) if self.starts is None else len(self.starts) - 1

    def paths_of(self, sample: int) -> list[str]:
        """Return the files of a sample, in the order in which it opens them."""
        at = sample if self.indices is None else int(self.indices[sample])
        if self.starts is None:
            return [self.paths[at]]
        return self.paths[self.starts[at] : self.starts[at + 1]]


def declared_paths(dataset: Any) -> Declared | None:
    """Return which files the samples of a dataset are made of; None when nothing is known, or there is no file.

    A subclass of a torchvision dataset is taken to open what its parent opens. Reading ten million samples takes
    seconds and keeps, where the dataset's own strings are absolute paths already, 8 bytes a file.

    Raises:
        DeclarationError: ``train_data_list`` or ``prefeed_paths`` returned what is not understood.
    """
    declared = _declared(dataset, {})
    return declared if declared is not None and declared.paths else None


def is_in_memory(dataset: Any) -> bool:
    """Return True when the dataset is known to open no file for a sample."""
    if is_a(dataset, "Subset"):
        return is_in_memory(dataset.dataset)
    if is_a(dataset, "ConcatDataset", "StackDataset"):
        return all(map(is_in_memory, _parts(dataset)))
    if type(dataset) is range or is_just_a(dataset, "Tensor"):  # a list may hold paths, which collate_fn opens
        return True
    held: Any = class_of(dataset, "TensorDataset")
    if held is not None:
        return bool(type(dataset).__getitem__ is held.__getitem__)
    return _holds_its_samples(dataset)


# ---------------------------------------------------------------- one dataset


def _declared(dataset: Any, seen: dict[int, Declared | None]) -> Declared | None:
    """Return what a dataset declares; one that stands in several places is read once (``seen``, by identity)."""
    if id(dataset) not in seen:
        seen[id(dataset)] = _read(dataset, seen)
    return seen[id(dataset)]


def _read(dataset: Any, seen: dict[int, Declared | None]) -> Declared | None:
    if is_a(dataset, "IterableDataset"):
        return None
    if _has_method(dataset, "train_data_list"):
        return _from_list(dataset)
    if _has_method(dataset, "prefeed_paths"):
        return _from_accessor(dataset)
    if is_a(dataset, "Subset"):
        base = _declared(dataset.dataset, seen)
        return None if base is None else _subset(base, dataset.indices)
    if is_a(dataset, "ConcatDataset", "StackDataset"):
        parts = [_part(part, seen) for part in _parts(dataset)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return _concatenated(known) if is_a(dataset, "ConcatDataset") else _stacked(known)
    return _from_torchvision(dataset)


def _has_method(dataset: Any, name: str) -> bool:
    """Return True when the dataset itself has the method; a wrapper's ``__getattr__`` is not asked."""
    return callable(inspect.getattr_static(dataset, name, None))


def _from_torchvision(dataset: Any) -> Declared | None:
    try:
        columns = columns_of(dataset)
        declared = None if columns is None else _interleaved(columns)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None  # another version of torchvision keeps its list otherwise, or a subclass does
    if declared is None or declared.num_samples != len(dataset):
        return None
    return declared


def _from_accessor(dataset: Any) -> Declared:
    paths: list[str] = []
    ends = array("q", [0])
    for index in range(len(dataset)):
        try:
            files = dataset.prefeed_paths(index)
        except Exception as err:
            err.add_note(f"raised by {type(dataset).__qualname__}.prefeed_paths({index}), which prefeed called")
            raise
        try:
            paths.extend(map(absolute, [files] if isinstance(files, _PATH_TYPES) else files))
        except TypeError:
            raise DeclarationError(
                f"{type(dataset).__qualname__}.prefeed_paths({index}) must return a path or a sequence of paths, "
                f"not {files!r:.200}"
            ) from None
        ends.append(len(paths))
    return _with_starts(paths, np.frombuffer(ends, dtype=np.int64))


# ---------------------------------------------------------------- train_data_list


def _from_list(dataset: Any) -> Declared:
    try:
        value = dataset.train_data_list()
    except Exception as err:
        err.add_note(f"raised by {type(dataset).__qualname__}.train_data_list(), which prefeed called")
        raise
    rows = _rows(value)
    if rows is None:
        raise DeclarationError(_wrong_list(dataset, value))
    try:
        declared = _interleaved(rows)
    except TypeError as err:
        raise DeclarationError(_wrong_list(dataset, value, f", with an entry that is no path ({err})")) from None
    expected = len(dataset) if hasattr(dataset, "__len__") else declared.num_samples
    if declared.num_samples != expected:
        hint = ", which is the other way round: transpose it" if len(rows) == expected else ""
        wrong = f": {declared.num_samples} samples, but len(dataset) is {expected}{hint}"
        raise DeclarationError(_wrong_list(dataset, value, wrong))
    return declared


def _rows(value: Any) -> list[list[Any]] | None:
    """Return the parallel lists of paths; None when the value has another form."""
    if isinstance(value, list | tuple):
        if all(issubclass(kind, _PATH_TYPES) for kind in set(map(type, value))):
            return [list(value)]  # no array: one of strings takes four bytes a character, as wide as the longest
        if not all(isinstance(row, list | tuple | np.ndarray) for row in value):
            return None
        rows = [row.tolist() if isinstance(row, np.ndarray) else list(row) for row in value]
        return rows if len({len(row) for row in rows}) == 1 else None
    array = np.asarray(value)
    if array.ndim not in (1, 2) or array.dtype.kind not in "USTO" or (array.ndim == 2 and len(array) == 0):
        return None
    listed: list[Any] = array.tolist()
    return [listed] if array.ndim == 1 else listed


def _wrong_list(dataset: Any, value: Any, wrong: str = "") -> str:
    name = type(dataset).__qualname__
    return (
        f"{name}.train_data_list() must return the paths of all samples as a numpy array of strings: "
        f"shape (num_samples,), or (num_lists, num_samples) when a sample is made of several files; "
        f"it returned {_describe(value)}{wrong}. "
        f"For example: return np.array(self.images), or return np.array([self.images, self.titles])"
    )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if not isinstance(value, list | tuple):
        return f"{value!r:.80} of type {type(value).__name__}"
    kinds = ", ".join(sorted({type(entry).__name__ for entry in value})) or "nothing"
    lengths = sorted({len(entry) for entry in value if isinstance(entry, list | tuple | np.ndarray)})
    of_lengths = f" of lengths {', '.join(map(str, lengths[:4]))}" if lengths else ""
    return f"a {type(value).__name__} of length {len(value)} that holds {kinds}{of_lengths}"


# ---------------------------------------------------------------- datasets made of datasets


def _parts(dataset: Any) -> list[Any]:
    parts = dataset.datasets
    return list(parts.values()) if isinstance(parts, dict) else list(parts)


def _part(dataset: Any, seen: dict[int, Declared | None]) -> Declared | None:
    """Return what a part declares; one in memory has its samples, made of no file."""
    declared = _declared(dataset, seen)
    if declared is None and is_in_memory(dataset):
        return Declared(paths=[], starts=np.zeros(len(dataset) + 1, dtype=np.int64))
    return declared


def _subset(base: Declared, indices: Any) -> Declared | None:
    """Return the part of ``base`` that a ``Subset`` names; the list of paths is the same object."""
    chosen = np.asarray(indices if len(indices) else np.zeros(0, dtype=np.int64))
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        return None
    chosen = chosen.astype(np.int64)
    chosen[chosen < 0] += base.num_samples
    if ((chosen < 0) | (chosen >= base.num_samples)).any():
        return None  # the dataset's own IndexError comes when that sample is read
    return replace(base, indices=chosen if base.indices is None else base.indices[chosen])


def _concatenated(parts: list[Declared]) -> Declared:
    """Return the samples of all parts, one after the other; lists of paths that parts share are kept once."""
    pools = {id(part.paths): part for part in parts}
    samples, files = 0, 0
    offsets: dict[int, int] = {}
    starts: list[NDArray[np.int64]] = []
    for key, pool in pools.items():
        offsets[key] = samples
        starts.append(_listed_starts(pool)[:-1] + files)
        samples += pool._num_listed
        files += len(pool.paths)
    whole = len(pools) == len(parts) and all(part.indices is None for part in parts)
    single = all(pool.starts is None for pool in pools.values())
    return Declared(
        paths=parts[0].paths if len(pools) == 1 else list(chain.from_iterable(pool.paths for pool in pools.values())),
        starts=None if single else np.concatenate([*starts, [files]]),
        indices=None if whole else np.concatenate([offsets[id(part.paths)] + _listed(part) for part in parts]),
    )


def _stacked(parts: list[Declared]) -> Declared:
    """Return the samples that are made of the files of sample i of each part, in the order of the parts."""
    counts = sum(np.diff(_listed_starts(part))[_listed(part)] for part in parts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    paths: list[str] = []
    for files in zip(*map(_files_by_sample, parts), strict=True):
        for some in files:
            paths += some
    return _with_starts(paths, starts)


def _listed(part: Declared) -> NDArray[np.int64]:
    return np.arange(part._num_listed, dtype=np.int64) if part.indices is None else part.indices


def _listed_starts(part: Declared) -> NDArray[np.int64]:
    return np.arange(part._num_listed + 1, dtype=np.int64) if part.starts is None else part.starts


def _files_by_sample(part: Declared) -> Iterator[list[str]]:
    return map(part.paths_of, range(part.num_samples))


# ---------------------------------------------------------------- lists of paths


def _interleaved(columns: Columns) -> Declared:
    """Return sample i as entry i of each column, without those that are None or empty.

    Raises:
        TypeError: An entry is no path.
        ValueError: The columns differ in length.
    """
    if len(columns) == 1:
        (column,) = columns
        paths = _all_absolute(list(column))
        if all(paths):
            return Declared(paths=paths, starts=None)
        columns = [paths]
    paths = []
    ends = array("q", [0])
    for row in zip(*columns, strict=True):
        paths += [absolute(entry) for entry in row if entry]
        ends.append(len(paths))
    return _with_starts(paths, np.frombuffer(ends, dtype=np.int64))


def _with_starts(paths: list[str], starts: NDArray[np.int64]) -> Declared:
    """Return samples made of the paths between their starts; the starts are dropped when each has one file."""
    single = len(starts) == len(paths) + 1 and bool((np.diff(starts) == 1).all())
    return Declared(paths=paths, starts=None if single else starts)


def _all_absolute(entries: list[Any]) -> list[str]:
    """Return each as ``absolute`` does; "" for None and what is empty.

    Raises:
        TypeError: One is no path.
    """
    paths: list[str] = []
    for start in range(0, len(entries), _AT_ONCE):
        part = entries[start : start + _AT_ONCE]
        paths += part if _are_absolute(part) else [absolute(entry) if entry else "" for entry in part]
    return paths


def _are_absolute(entries: list[Any]) -> bool:
    """Return True when ``absolute`` would return all of them as they are; they are looked at as one text, which is much quicker."""
    if set(map(type, entries)) != {str}:
        return False
    text = "\0".join(entries)
    num_marks = len(entries) - 1
    are_rooted = text.startswith("/") and text.count("\0") == text.count("\0/") == num_marks
    return are_rooted and "//" not in text and "/." not in text and "/\0" not in text and not text.endswith("/")


def absolute(path: PathLike | bytes) -> str:
    """Return an absolute path without ``.`` and ``..``: the same string where it is one already.

    Raises:
        TypeError: Not a path.
    """
    text = os.fsdecode(path)
    if type(text) is not str:  # numpy.str_
        text = str(text)
    whole = os.path.normpath(text) if text.startswith("/") else os.path.abspath(text)
    return text if whole == text else whole


Columns = Sequence[Iterable[Any]]
"""Columns of paths: sample i is made of entry i of each column, in the order of the columns; None is no file."""


def columns_of(dataset: Any) -> Columns | None:
    """Return the columns of paths of a dataset of torchvision's; None when it is none, or one without such a list.

    torchvision is never imported: a program that has one of its datasets has imported it, and the names of the classes
    that a dataset descends from are enough. Subclasses count; the class nearest to the dataset's own decides.

    Not in the table, because no Python code opens their files: Kinetics, HMDB51 and UCF101 (decoded by a video
    library that is handed the path), LSUN (LMDB) and PCAM (HDF5).

    The columns are lazy: another version of torchvision, which keeps its list under another name, may raise
    ``AttributeError``, ``KeyError``, ``IndexError``, ``TypeError`` or ``ValueError`` here or when they are read.
    """
    for name in _names_in_torchvision(type(dataset)):
        if name in _COLUMNS:
            return _COLUMNS[name](dataset)
    return None


def _holds_its_samples(dataset: Any) -> bool:
    """Return True for a dataset of torchvision's that holds all of its samples and opens no file for one."""
    kind = type(dataset)
    getter = next((cls for cls in kind.__mro__ if "__getitem__" in vars(cls)), object)
    if not getter.__module__.startswith("torchvision."):
        return False  # the user's own __getitem__ may open anything
    return any(name in _IN_MEMORY for name in _names_in_torchvision(kind))


def _names_in_torchvision(kind: type) -> Iterator[str]:
    """Yield the names of the torchvision classes that a class descends from, the nearest first."""
    for cls in kind.__mro__:
        if cls.__module__.startswith("torchvision.datasets."):
            yield cls.__name__


# ---------------------------------------------------------------- columns


def _entries(rows: Iterable[Any], at: int) -> Iterator[Any]:
    return map(itemgetter(at), rows)


def _attribute(name: str) -> Callable[[Any], Columns]:
    """Return a reader of datasets whose attribute is the list of paths."""
    return lambda d: [getattr(d, name)]


def _labelled(name: str) -> Callable[[Any], Columns]:
    """Return a reader of datasets whose attribute is a list of (path, label)."""
    return lambda d: [_entries(getattr(d, name), 0)]


def _caltech101(d: Any) -> Columns:
    def below(*parts: str, names: Sequence[str], form: str) -> Iterator[str]:
        folders = [os.path.join(d.root, *parts, name) for name in names]
        return (f"{folders[y]}/{form.format(number)}" for y, number in zip(d.y, d.index, strict=True))

    images = below("101_ObjectCategories", names=d.categories, form="image_{:04d}.jpg")
    annotations = (
        below("Annotations", names=d.annotation_categories, form="annotation_{:04d}.mat")
        for target_type in d.target_type
        if target_type == "annotation"
    )
    return [images, *annotations]


def _caltech256(d: Any) -> Columns:
    folders = [os.path.join(d.root, "256_ObjectCategories", name) for name in d.categories]
    return [(f"{folders[y]}/{y + 1:03d}_{number:04d}.jpg" for y, number in zip(d.y, d.index, strict=True))]


def _celeba(d: Any) -> Columns:
    folder = os.path.join(d.root, d.base_folder, "img_align_celeba")
    return [(os.path.join(folder, name) for name in d.filename)]


def _cityscapes(d: Any) -> Columns:
    return [d.images, *(_entries(d.targets, at) for at in range(len(d.target_type)))]


def _coco(d: Any) -> Columns:
    images = d.coco.imgs
    return [(os.path.join(d.root, images[key]["file_name"]) for key in d.ids)]


def _flickr30k(d: Any) -> Columns:
    return [(os.path.join(d.root, name) for name in d.ids)]


def _inaturalist(d: Any) -> Columns:
    folders = [os.path.join(d.root, name) for name in d.all_categories]
    return [(os.path.join(folders[category], name) for category, name in d.index)]


def _kitti(d: Any) -> Columns:
    return [d.images, d.targets] if d.train else [d.images]


def _omniglot(d: Any) -> Columns:
    folders = [os.path.join(d.target_folder, name) for name in d._characters]
    return [(os.path.join(folders[character], name) for name, character in d._flat_character_images)]


def _oxford_pets(d: Any) -> Columns:
    return [d._images, *(d._segs for target_type in d._target_types if target_type == "segmentation")]


def _sbu(d: Any) -> Columns:
    return [(os.path.join(d.root, "dataset", name) for name in d.photos)]


def _wider_face(d: Any) -> Columns:
    return [(info["img_path"] for info in d.img_info)]


def _optical_flow(d: Any) -> Columns:
    images = [_entries(d._image_list, 0), _entries(d._image_list, 1)]
    return [*images, d._flow_list] if d._flow_list else images


def _stereo(d: Any) -> Columns:
    return [_entries(d._images, 0), _entries(d._images, 1), _entries(d._disparities, 0), _entries(d._disparities, 1)]


def _falling_things(d: Any) -> Columns:
    def settings(disparities: Iterable[str]) -> Iterator[str]:
        return (os.path.join(os.path.dirname(path), "_camera_settings.json") for path in disparities)

    left, right, left_disparities, right_disparities = _stereo(d)
    return [
        left, right,
        left_disparities, settings(_entries(d._disparities, 0)),
        right_disparities, settings(_entries(d._disparities, 1)),
    ]  # fmt: skip


def _middlebury(d: Any) -> Columns:
    if d.use_ambient_views:
        raise ValueError("the right view is drawn at random when the sample is read")
    return _stereo(d)


def _sintel_stereo(d: Any) -> Columns:
    def masks(kind: str) -> Iterator[str]:
        for path, _ in d._disparities:
            scene, name = os.path.split(path)
            disparities, scene = os.path.split(scene)
            yield os.path.join(os.path.dirname(disparities), kind, scene, name)

    return [*_stereo(d)[:3], masks("occlusions"), masks("outofframe")]


def _eth3d(d: Any) -> Columns:
    def masks() -> Iterator[str | None]:
        for path, _ in d._disparities:
            yield path and os.path.join(os.path.dirname(path), "mask0nocc.png")

    return [*_stereo(d)[:3], masks()]


_COLUMNS: dict[str, Callable[[Any], Columns]] = {
    # classification
    "Caltech101": _caltech101,
    "Caltech256": _caltech256,
    "CelebA": _celeba,
    "CLEVRClassification": _attribute("_image_files"),
    "DatasetFolder": _labelled("samples"),  # and ImageFolder, ImageNet, EuroSAT, Country211
    "DTD": _attribute("_image_files"),
    "FGVCAircraft": _attribute("_image_files"),
    "Flowers102": _attribute("_image_files"),
    "Food101": _attribute("_image_files"),
    "GTSRB": _labelled("_samples"),
    "Imagenette": _labelled("_samples"),
    "INaturalist": _inaturalist,
    "LFWPeople": _attribute("data"),
    "LFWPairs": lambda d: [_entries(d.data, 0), _entries(d.data, 1)],
    "Omniglot": _omniglot,
    "OxfordIIITPet": _oxford_pets,
    "Places365": _labelled("imgs"),
    "RenderedSST2": _labelled("_samples"),
    "StanfordCars": _labelled("_samples"),
    "SUN397": _attribute("_image_files"),
    # detection and segmentation
    "Cityscapes": _cityscapes,
    "CocoDetection": _coco,  # and CocoCaptions
    "Kitti": _kitti,
    "SBDataset": lambda d: [d.images, d.masks],
    "_VOCBase": lambda d: [d.images, d.targets],  # VOCDetection and VOCSegmentation
    "WIDERFace": _wider_face,
    # captions
    "Flickr8k": _attribute("ids"),
    "Flickr30k": _flickr30k,
    "SBU": _sbu,
    # optical flow and stereo
    "FlowDataset": _optical_flow,  # FlyingChairs, FlyingThings3D, HD1K, KittiFlow, Sintel
    "StereoMatchingDataset": _stereo,  # CarlaStereo, CREStereo, InStereo2k, Kitti2012Stereo, Kitti2015Stereo, SceneFlow
    "ETH3DStereo": _eth3d,
    "FallingThingsStereo": _falling_things,
    "Middlebury2014Stereo": _middlebury,
    "SintelStereo": _sintel_stereo,
}

_IN_MEMORY = frozenset(
    ("CIFAR10", "FakeData", "FER2013", "MNIST", "MovingMNIST", "PhotoTour", "SEMEION", "STL10", "SVHN", "USPS")
)
