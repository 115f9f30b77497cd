"""What a stage depends on is looked at in every process that makes samples, and with every pass."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import prefeed
from cover import crossed
from e2e.images import make_image_folder
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.files_seen import Standing

NUM_SAMPLES = 12

STAGE = """
    import numpy as np
    import torch
    import torch.nn.functional
    from torchvision.transforms import Resize
    from torchvision.transforms import functional as F
    import stage_conf as conf
    from stage_conf import TABLE, settings

    def helper(index):
        return index

    class Base:
        SCALE = 1

    class Data(Base):
        def __init__(self, how):
            self.how = how

        def __len__(self):
            return 12

        def __getitem__(self, index):
            return getattr(self, self.how)(index)

        def of_module(self, index):
            return index * conf.SIZE

        def of_whole_module(self, index):
            return index * getattr(conf, "SI" + "ZE")

        def of_dict(self, index):
            return index * TABLE["inner"]["size"]

        def of_instance(self, index):
            return index * settings.size

        def of_class(self, index):
            return index * self.SCALE

        def of_helper(self, index):
            return helper(index)

        def of_dtype(self, index):
            return str(torch.tensor(float(index)).dtype)

        def of_library(self, index):
            return float(F.invert(torch.tensor([[[float(index)]]]))[0, 0, 0])

        def of_numpy(self, index):
            return int(np.flip(np.array([index, 0]))[1])

        def of_custom(self, index):
            return int(torch.ops.prefeed_test.tripled(torch.tensor(index)))

        def of_resize(self, index):
            return float(Resize(4, antialias=True)(torch.full((3, 8, 8), float(index))).sum())

    @torch.library.custom_op("prefeed_test::tripled", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3
"""

CONF = """
    SIZE = 1
    TABLE = {"inner": {"size": 1}}

    class Settings:
        size = 1

    settings = Settings()
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's."""
    monkeypatch.setattr("prefeed.stage_cache.making.standing", Standing())
    (tmp_path / "stage_code.py").write_text(textwrap.dedent(STAGE))
    (tmp_path / "stage_conf.py").write_text(textwrap.dedent(CONF))
    monkeypatch.syspath_prepend(str(tmp_path))
    library = torch.library.Library("prefeed_test", "FRAGMENT")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 1, "CPU")
    yield importlib.import_module("stage_code")
    library._destroy()
    for name in ("stage_code", "stage_conf"):
        sys.modules.pop(name, None)


def conf() -> Any:
    return sys.modules["stage_conf"]


def other_helper(index: int) -> int:
    return 2 * index


def in_place(stage: Any) -> None:
    stage.helper.__code__ = other_helper.__code__  # as %autoreload does


def of_method(stage: Any) -> None:
    stage.Data.of_helper = lambda self, index: 2 * index


def functional() -> Any:
    return importlib.import_module("torchvision.transforms.functional")


def of_ones(image: Any, *_: Any, **__: Any) -> Any:
    return image * 0 + 2


def of_custom(stage: Any) -> None:
    stage.tripled.register_kernel("cpu")(lambda x: x * 2)


CHANGES: list[tuple[str, Callable[[Any], None]]] = [
    ("of_module", lambda stage: setattr(conf(), "SIZE", 2)),
    ("of_whole_module", lambda stage: setattr(conf(), "SIZE", 2)),
    ("of_dict", lambda stage: conf().TABLE["inner"].update(size=2)),
    ("of_instance", lambda stage: setattr(conf().settings, "size", 2)),
    ("of_instance", lambda stage: setattr(conf().Settings, "size", 2)),
    ("of_class", lambda stage: setattr(stage.Data, "SCALE", 2)),
    ("of_class", lambda stage: setattr(stage.Base, "SCALE", 2)),
    ("of_helper", lambda stage: setattr(stage, "helper", other_helper)),
    ("of_helper", in_place),
    ("of_helper", of_method),
    ("of_library", lambda stage: setattr(stage.F, "invert", lambda image: 2 * image)),
    ("of_numpy", lambda stage: setattr(np, "flip", lambda array: 2 * array[::-1])),
    ("of_dtype", lambda stage: torch.set_default_dtype(torch.float64)),
    ("of_resize", lambda stage: setattr(functional(), "resize", of_ones)),
    ("of_custom", of_custom),
]


@pytest.fixture
def _put_back() -> Iterator[None]:
    flip, invert, resize = np.flip, functional().invert, functional().resize
    yield
    np.flip = flip
    functional().invert, functional().resize = invert, resize
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_put_back")
@pytest.mark.parametrize(
    ("change", "workers"), crossed({f"{at}-{change[0]}": change for at, change in enumerate(CHANGES)}, [0, 2])
)
def test_what_changes_between_two_epochs_is_noticed(
    stage: Any, change: tuple[str, Callable[[Any], None]], workers: int
) -> None:
    how, make_change = change
    plain = stage.Data(how)
    cached = prefeed.CachedDataset(plain)
    loader = DataLoader(cached, batch_size=None, num_workers=workers)
    before = list(loader)
    assert before == [plain[index] for index in range(NUM_SAMPLES)]
    entries = cached.get_stat().num_mem_cached
    assert entries == NUM_SAMPLES
    make_change(stage)
    assert list(loader) == [plain[index] for index in range(NUM_SAMPLES)] != before
    with NodeClient.connect(current()) as node:
        assert node.statistics().sessions.audits_failed == 0  # it was known beforehand
    later = prefeed.CachedDataset(stage.Data(how))
    assert [later[index] for index in range(NUM_SAMPLES)] == [plain[index] for index in range(NUM_SAMPLES)]


def test_nothing_that_stays_is_made_again(stage: Any) -> None:
    for how in ("of_module", "of_whole_module", "of_dict", "of_library", "of_numpy"):
        cached = prefeed.CachedDataset(stage.Data(how))
        for _ in range(3):
            cached.samples(range(NUM_SAMPLES))
        assert (cached.get_stat().hits, cached.get_stat().misses) == (2 * NUM_SAMPLES, NUM_SAMPLES)


def test_a_spawned_worker_that_imports_other_code(stage: Any, tmp_path: Path) -> None:
    """The parent goes on with what it has imported; entries of workers are found by those alone who run the new code."""
    cached = prefeed.CachedDataset(stage.Data("of_module"))
    assert [cached[index] for index in range(NUM_SAMPLES)] == list(range(NUM_SAMPLES))
    path = tmp_path / "stage_conf.py"
    path.write_text(textwrap.dedent(CONF).replace("SIZE = 1", "SIZE = 5"))
    os.utime(path, (0, 0))  # of another second than before, or its bytecode would count as compiled from it
    loader = DataLoader(cached, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert list(loader) == [5 * index for index in range(NUM_SAMPLES)]
    assert [cached[index] for index in range(NUM_SAMPLES)] == list(range(NUM_SAMPLES))
    importlib.reload(conf())
    assert [cached[index] for index in range(NUM_SAMPLES)] == [5 * index for index in range(NUM_SAMPLES)]


def test_an_operator_whose_code_cannot_be_seen(stage: Any) -> None:
    with pytest.raises(CannotFingerprintError, match="custom_op"):
        prefeed.CachedDataset(OfOperator())
    assert prefeed.CachedDataset(OfOperator(), version="1")[2] == 2


class OfOperator:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return int(torch.ops.prefeed_test.scaled(torch.tensor(index)))


# ---------------------------------------------------------------- labels of folders

LABELS: list[Any] = [
    ("cat", "dog"),
    (0.25, 0.75),
    ([0.1, 0.9], [0.9, 0.1]),
    (np.array([0.1, 0.9], np.float32), np.array([0.9, 0.1], np.float32)),
    (torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1])),
    ({"soft": torch.tensor(1.0)}, {"soft": torch.tensor(2.0)}),
    (np.int64(1), np.int64(2)),
    (None, True),
]


@pytest.mark.parametrize(("first", "second"), LABELS)
def test_labels_of_any_type(tmp_path: Path, first: Any, second: Any) -> None:
    folder = datasets.ImageFolder(str(make_image_folder(tmp_path / "images", num_images=2)), transforms.ToTensor())
    for label in (first, second, first):
        folder.samples[0] = (folder.samples[0][0], label)
        cached = prefeed.CachedDataset(folder)
        for _ in range(2):
            found = cached[0][1]
            assert type(found) is type(label)
            assert str(found) == str(label)
    assert cached.get_stat().num_mem_cached == 1


def test_a_label_that_cannot_be_told_is_not_kept(tmp_path: Path) -> None:
    folder = datasets.ImageFolder(str(make_image_folder(tmp_path / "images", num_images=2)), transforms.ToTensor())
    folder.samples[0] = (folder.samples[0][0], threading.Lock())
    cached = prefeed.CachedDataset(folder)
    assert [type(label) for _, label in cached.samples([0, 1])] == [type(threading.Lock()), int]
    assert cached.get_stat().num_mem_cached == 1


# ---------------------------------------------------------------- installed packages


def test_a_package_without_a_version_is_known_by_what_it_says(tmp_path: Path) -> None:
    for word in ("one", "two"):
        folder = tmp_path / word / "site-packages" / "unversioned"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("from unversioned.inner import f")
        (folder / "inner.py").write_text(f"def f(): return {word!r}")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import unversioned; from prefeed.stage_cache.fingerprint import fingerprint\n"
    code += "def f(): return unversioned.f()\nprint(fingerprint(f).hex())"
    found = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / word / "site-packages")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for word in ("one", "two", "one")
    ]
    assert found[0] == found[2] != found[1]
