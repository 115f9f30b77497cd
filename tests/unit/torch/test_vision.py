"""What a torchvision dataset declares is what its samples open, in the same order."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset
from torchvision import datasets

from prefeed.loaders.declared import declared_paths, is_in_memory
from unit.torch import vision_files
from unit.torch.opened import Recorder, all_files
from unit.torch.tiny_files import folder
from unit.torch.vision_files import BUILDERS
from unit.torch.vision_labels import image_folder

NOT_DECLARED = {
    "VisionDataset": "abstract",
    "HMDB51": "video, opened in C",
    "Kinetics": "video, opened in C",
    "UCF101": "video, opened in C",
    "LSUN": "LMDB",
    "LSUNClass": "LMDB",
    "PCAM": "HDF5",
}
IN_MEMORY = [
    "CIFAR10", "CIFAR100", "EMNIST", "FER2013", "FakeData", "FashionMNIST", "KMNIST", "MNIST", "MovingMNIST", "PhotoTour",
    "QMNIST", "SEMEION", "STL10", "SVHN", "USPS",
]  # fmt: skip


@pytest.fixture
def _no_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vision_files.CHECKED:
        monkeypatch.setattr(f"torchvision.datasets.{name}.check_integrity", lambda *_, **__: True)


@pytest.mark.usefixtures("_no_checksums")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # torchvision leaves files to the garbage collector
@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
@pytest.mark.parametrize("name", list(BUILDERS))
def test_declared_is_what_a_torchvision_sample_opens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = BUILDERS[name](tmp_path)
    declared = declared_paths(dataset)
    recorder = Recorder(monkeypatch, tmp_path)
    assert len(dataset) > 0
    assert all_files(declared) == [recorder.opened_by(dataset, index) for index in range(len(dataset))]
    assert {type(path) for files in all_files(declared) for path in files} == {str}
    assert not is_in_memory(dataset)


def test_every_torchvision_class_is_declared_or_known_not_to_be() -> None:
    built = {re.sub(r"^.*datasets\.(\w+)\(.*$", r"\1", _last_return(builder)) for builder in BUILDERS.values()}
    classes = {name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))}
    assert classes == {name for name in built if name in classes} | (classes & NOT_DECLARED.keys()) | set(IN_MEMORY)


def _last_return(builder: Any) -> str:
    return [line for line in inspect.getsource(builder).splitlines() if line.strip().startswith("return ")][-1]


def test_relative_roots_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    declared = declared_paths(datasets.ImageFolder("./folder"))
    assert all_files(declared)[0] == [str(tmp_path / "folder" / "cat" / "0.png")]


def test_absolute_paths_are_the_datasets_own_strings(tmp_path: Path) -> None:
    dataset = image_folder(tmp_path)
    declared = declared_paths(dataset)
    assert declared is not None
    assert declared.starts is None
    assert declared.paths[1] is dataset.samples[1][0]


def test_a_random_view_is_not_declared(tmp_path: Path) -> None:
    assert declared_paths(vision_files.middlebury(tmp_path, use_ambient_views=True)) is None


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("samples", None), ("samples", [1, 2, 3, 4]), ("samples", [(1, 2)] * 4), ("samples", [("/a", 0)])],
)
def test_a_list_of_another_form_is_not_known(tmp_path: Path, attribute: str, value: Any) -> None:
    class Other(datasets.ImageFolder):
        def __len__(self) -> int:
            return 4

    dataset = Other(folder(tmp_path))
    assert declared_paths(dataset) is not None
    setattr(dataset, attribute, value)
    assert declared_paths(dataset) is None
    delattr(dataset, attribute)
    assert declared_paths(dataset) is None


@pytest.mark.parametrize("name", IN_MEMORY)
def test_torchvisions_arrays_are_in_memory(name: str) -> None:
    cls = getattr(datasets, name)
    dataset = cls.__new__(cls)  # their archives are checked by checksum
    assert is_in_memory(dataset)
    assert is_in_memory(Subset(dataset, [0]))
    assert declared_paths(dataset) is None
