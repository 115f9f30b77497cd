"""Which files the samples of torchvision's datasets are made of: one table, class name to columns of paths.

torchvision is never imported: who has one of its datasets has imported it, and the names of the classes that a
dataset descends from are enough. Subclasses count; the class nearest to the dataset's own decides.

Not in the table, because no Python code opens their files: Kinetics, HMDB51 and UCF101 (decoded by a video
library that is handed the path), LSUN (LMDB) and PCAM (HDF5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

Columns = Sequence[Iterable[Any]]
"""Columns of paths: sample i is made of entry i of each column, in the order of the columns; None is no file."""


def columns_of(dataset: Any) -> Columns | None:
    """Return the columns of paths of a dataset of torchvision's; None when it is none, or one without such a list.

    The columns are lazy: another version of torchvision, which keeps its list under another name, may raise
    ``AttributeError``, ``KeyError``, ``IndexError``, ``TypeError`` or ``ValueError`` here or when they are read.
    """
    for name in _names_in_torchvision(type(dataset)):
        if name in _COLUMNS:
            return _COLUMNS[name](dataset)
    return None


def is_in_memory(dataset: Any) -> bool:
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
