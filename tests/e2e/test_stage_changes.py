"""What changes the key of a stage, what computing its samples twice finds, and what audits find: the table of SEMANTICS."""

from __future__ import annotations

import importlib
import os
import random
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
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchvision import datasets, transforms

import prefeed
from cover import crossed
from e2e.images import make_image_folder
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.errors import RandomStageError
from prefeed.stage_cache.dataset import MappedDataset, _confirm_all
from prefeed.stage_cache.files_seen import Standing

NUM_SAMPLES = 12

STAGE = """
    import os
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

        def of_late(self, index):
            import stage_late
            return index * stage_late.SIZE

        def of_name(self, index):
            return index * globals().get("HID" + "DEN", 1)

        def of_environment(self, index):
            return index * int(os.environ["PREFEED_TEST_SCALE"])

        def of_directory(self, index):
            return index * (1 + (os.path.basename(os.getcwd()) == "other"))

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
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stage_late.py").write_text("SIZE = 1")
    yield importlib.import_module("stage_code")
    for name in ("stage_code", "stage_conf", "stage_late"):
        sys.modules.pop(name, None)


def conf() -> Any:
    return sys.modules["stage_conf"]


def other_helper(index: int) -> int:
    return 2 * index


def in_place(stage: Any) -> None:
    stage.helper.__code__ = other_helper.__code__  # as %autoreload does


def of_method(stage: Any) -> None:
    stage.Data.of_helper = lambda self, index: 2 * index


def edited(path: str, old: str, new: str) -> None:
    source = Path(path)
    source.write_text(source.read_text().replace(old, new))
    os.utime(source, (0, 0))  # of another second than before, or its bytecode would count as compiled from it


def of_source(stage: Any) -> None:
    edited(stage.__file__, "def helper(index):\n    return index", "def helper(index):\n    return 2 * index")
    importlib.reload(stage)


def of_late_source(stage: Any) -> None:
    late = importlib.import_module("stage_late")
    edited(str(late.__file__), "SIZE = 1", "SIZE = 2")
    importlib.reload(late)


def inverted(image: Any) -> Any:
    return 2 * image


def functional() -> Any:
    return importlib.import_module("torchvision.transforms.functional")


def of_ones(image: Any, *_: Any, **__: Any) -> Any:
    return image * 0 + 2


def of_custom(stage: Any) -> None:
    stage.tripled.register_kernel("cpu")(lambda x: x * 2)


BY_KEY: dict[str, tuple[str, Callable[[Any], None]]] = {
    "constant in another module": ("of_module", lambda stage: setattr(conf(), "SIZE", 2)),
    "value in a dict of another module": ("of_dict", lambda stage: conf().TABLE["inner"].update(size=2)),
    "attribute of an object in another module": ("of_instance", lambda stage: setattr(conf().settings, "size", 2)),
    "attribute of the class of such an object": ("of_instance", lambda stage: setattr(conf().Settings, "size", 2)),
    "class attribute": ("of_class", lambda stage: setattr(stage.Data, "SCALE", 2)),
    "class attribute of a base": ("of_class", lambda stage: setattr(stage.Base, "SCALE", 2)),
    "monkeypatched function": ("of_helper", lambda stage: setattr(stage, "helper", other_helper)),
    "code put into a function": ("of_helper", in_place),
    "monkeypatched method": ("of_helper", of_method),
    "monkeypatched function of a library": ("of_library", lambda stage: setattr(stage.F, "invert", inverted)),
    "monkeypatched function of numpy": ("of_numpy", lambda stage: setattr(np, "flip", lambda array: 2 * array[::-1])),
    "edited source": ("of_helper", of_source),
    "working directory": ("of_directory", lambda stage: os.chdir(Path(stage.__file__).parent / "other")),
    "edited source of a module that is imported late": ("of_late", of_late_source),
}
BY_AUDIT: dict[str, tuple[str, Callable[[Any], None]]] = {
    "torch.set_default_dtype": ("of_dtype", lambda stage: torch.set_default_dtype(torch.float64)),
    "function inside a library": ("of_resize", lambda stage: setattr(functional(), "resize", of_ones)),
    "kernel of an operator": ("of_custom", of_custom),
    "name that code computes": ("of_name", lambda stage: vars(stage).update(HIDDEN=2)),
    "environment variable": ("of_environment", lambda stage: os.environ.update(PREFEED_TEST_SCALE="2")),
}


@pytest.fixture
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PREFEED_TEST_SCALE", "1")
    flip, invert, resize = np.flip, functional().invert, functional().resize
    yield
    np.flip = flip
    functional().invert, functional().resize = invert, resize
    torch.set_default_dtype(torch.float32)


def audits_failed() -> int:
    with NodeClient.connect(current()) as node:
        return node.statistics().sessions.audits_failed


@pytest.mark.usefixtures("_put_back")
@pytest.mark.parametrize(("change", "workers"), crossed(BY_KEY, [0, 2]))
def test_found_by_the_key(stage: Any, change: tuple[str, Callable[[Any], None]], workers: int) -> None:
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
    assert audits_failed() == 0
    later = prefeed.CachedDataset(stage.Data(how))
    assert [later[index] for index in range(NUM_SAMPLES)] == [plain[index] for index in range(NUM_SAMPLES)]


@pytest.mark.usefixtures("_put_back")
@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in BY_AUDIT.items()])
def test_found_by_an_audit_in_the_next_run(stage: Any, change: tuple[str, Callable[[Any], None]]) -> None:
    how, make_change = change

    def run() -> list[Any]:
        cached = prefeed.CachedDataset(stage.Data(how))
        return [cached[index] for index in range(NUM_SAMPLES)]

    before = run()
    make_change(stage)
    run()  # the first hits of a run are audited
    assert audits_failed() >= 1
    assert run() == [stage.Data(how)[index] for index in range(NUM_SAMPLES)] != before


class Advancing:
    """Holds a generator that is seeded once."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __call__(self, index: int) -> float:
        return float(self.generator.random())


def of_opencv(index: int) -> Any:
    cv2 = pytest.importorskip("cv2")
    return cv2.randu(np.zeros((4, 4), np.uint8), 0, 255)


BY_COMPUTING_TWICE: dict[str, Callable[[], Any]] = {
    "default_rng() without a seed": lambda: lambda index: np.random.default_rng().random(),
    "a seeded generator that advances": Advancing,
    "cv2.randu": lambda: of_opencv,
    "random": lambda: lambda index: random.random() * 0,
    "numpy.random": lambda: lambda index: np.random.rand() * 0,
    "torch": lambda: lambda index: torch.rand(1) * 0,
    "RandomHorizontalFlip": lambda: lambda index: transforms.RandomHorizontalFlip(0.001)(torch.zeros(3, 2, 2)),
}


@pytest.mark.parametrize("name", BY_COMPUTING_TWICE)
def test_found_by_computing_twice(name: str) -> None:
    step = BY_COMPUTING_TWICE[name]()
    with pytest.raises(RandomStageError, match=r"MappedDataset\(.*prefeed\.not_random"):
        prefeed.mapped(range(NUM_SAMPLES), step, prefeed.DatasetCache.default())[0]


def test_found_by_the_version_of_a_library(tmp_path: Path) -> None:
    found = []
    for version in ("1.0", "2.0", "1.0"):
        packages = tmp_path / version / "site-packages"
        if not packages.exists():
            (packages / "versioned").mkdir(parents=True)
            (packages / "versioned" / "__init__.py").write_text("def f(): return 1")
            info = packages / f"versioned-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: versioned\nVersion: {version}\n")
        found.append(fingerprint_elsewhere(packages, "versioned"))
    assert found[0] == found[2] != found[1]


def test_nothing_that_stays_is_made_again(stage: Any) -> None:
    for how in ("of_module", "of_late", "of_dict", "of_library", "of_numpy"):
        cached = prefeed.CachedDataset(stage.Data(how))
        for _ in range(3):
            cached.samples(range(NUM_SAMPLES))
        assert (cached.get_stat().hits, cached.get_stat().misses) == (2 * NUM_SAMPLES, NUM_SAMPLES)


CHANGES_IN_MID_EPOCH: dict[str, Callable[[Any, Any], None]] = {
    "attribute": lambda stage, plain: setattr(plain, "how", "of_environment"),
    "method": lambda stage, plain: of_method(stage),
    "global": lambda stage, plain: setattr(stage, "helper", other_helper),
    "added attribute": lambda stage, plain: setattr(plain, "of_helper", lambda index: 2 * index),
}


@pytest.mark.usefixtures("_put_back")
@pytest.mark.parametrize("change", CHANGES_IN_MID_EPOCH)
def test_samples_after_a_change_in_mid_epoch_are_not_those_of_before(
    stage: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_TEST_SCALE", "2")
    plain = stage.Data("of_helper")
    cached = prefeed.CachedDataset(plain)
    before = cached.cache
    assert [cached[index] for index in range(8)] == [*range(8)]
    CHANGES_IN_MID_EPOCH[change](stage, plain)
    assert [cached[index] for index in range(8, NUM_SAMPLES)] == [2 * index for index in range(8, NUM_SAMPLES)]
    assert before.get_stat().num_mem_cached == 8


def test_a_transform_that_is_swapped_between_two_loops(stage: Any) -> None:
    plain = stage.Data("of_helper")
    cached = prefeed.CachedDataset(plain)
    training, validation = Subset(cached, range(8)), Subset(cached, range(8, NUM_SAMPLES))
    for _ in range(3):
        plain.of_helper = lambda index: ("train", index)
        assert {training[index][0] for index in range(8)} == {"train"}
        plain.of_helper = lambda index: ("eval", index)
        assert {validation[index][0] for index in range(4)} == {"eval"}
    plain.of_helper = lambda index: ("train", index)
    later = prefeed.CachedDataset(plain)
    assert [later[index] for index in range(NUM_SAMPLES)] == [("train", index) for index in range(NUM_SAMPLES)]
    assert audits_failed() == 0


def test_a_step_of_a_dataset_that_declares_its_stage_is_swapped_in_mid_epoch(tmp_path: Path) -> None:
    folder = datasets.ImageFolder(str(make_image_folder(tmp_path / "images", num_images=4)))
    folder.transform = lambda image: 1
    mapped = prefeed.mapped(folder, lambda sample: (sample[0], 1))
    cached = prefeed.CachedDataset(Subset(mapped, range(4)))
    before = cached.cache
    assert cached[0] == (1, 1)
    folder.transform = lambda image: 2
    assert cached[1] == (2, 1)
    middle = cached.cache
    assert isinstance(mapped, MappedDataset)
    mapped.fn = lambda sample: (sample[0], 2)
    assert cached[2] == (2, 2)
    assert [cache.get_stat().num_mem_cached for cache in (before, middle, cached.cache)] == [1, 1, 1]


class Deep:
    """Scales by an item of a long list, whose items are not compared between fingerprints."""

    def __init__(self) -> None:
        self.scales = [1] * 1000

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index * self.scales[500]


ENDS: dict[str, Callable[[prefeed.CachedDataset], Any]] = {
    "next epoch": lambda cached: cached[0],
    "closed": lambda cached: cached.close(),
    "end of the process": lambda cached: _confirm_all(),
}


@pytest.mark.parametrize("end", [pytest.param(end, id=name) for name, end in ENDS.items()])
def test_samples_computed_since_the_last_fingerprint_are_discarded(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[prefeed.CachedDataset], Any]
) -> None:
    plain = Deep()
    cached = prefeed.CachedDataset(plain)
    with monkeypatch.context() as patch:
        patch.setattr("prefeed.stage_cache.stage._SHARE_OF_LOOKS", 1e-9)  # none within the epoch
        for index in range(100):
            plain.scales[500] = 1 if index < 50 else 7
            assert cached[index] == index * plain.scales[500]
        end(cached)
    later = prefeed.CachedDataset(Deep())
    assert [later[index] for index in range(100)] == [*range(100)]
    assert audits_failed() == 0


class DrawingLate:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        return float(np.random.rand()) if index >= 17 else float(index)


def test_a_stage_that_draws_late_leaves_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.stage_cache.auditing.ON_CREDIT", 0)
    monkeypatch.setattr("prefeed.stage_cache.auditing.SHARE", 0.0)
    cached = prefeed.CachedDataset(DrawingLate())
    first, second = ([cached[index] for index in range(64)] for _ in range(2))
    assert first[:17] == second[:17]
    assert not set(first[17:]) & set(second[17:])
    assert cached.get_stat().num_mem_cached == 0


class Resized:
    """Fills its size with the first sample, and counts them next to a setting."""

    def __init__(self) -> None:
        self.size: int | None = None
        self.state = {"scale": 1}

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        self.size = self.size or 1
        self.state["last"] = index
        return index * self.size * self.state["scale"]


def test_what_samples_fill_counts_once_the_user_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.stage_cache.auditing.ON_CREDIT", 0)
    plain = Resized()
    cached = prefeed.CachedDataset(plain)

    def samples() -> list[int]:
        return [cached[index] for index in range(NUM_SAMPLES)]

    assert samples() == samples() == [*range(NUM_SAMPLES)]
    assert cached.get_stat().hits == NUM_SAMPLES
    plain.size = 10
    assert samples() == [10 * index for index in range(NUM_SAMPLES)]
    plain.state["scale"] = 1000
    assert samples() == [10_000 * index for index in range(NUM_SAMPLES)]
    assert audits_failed() == 0


class Remembering(Resized):
    def __init__(self) -> None:
        super().__init__()
        self.results: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        return self.results.setdefault(index, super().__getitem__(index))


def test_a_spawned_worker_after_its_parent_has_computed_samples() -> None:
    cached = prefeed.CachedDataset(Remembering())
    assert [cached[index] for index in range(NUM_SAMPLES)] == [*range(NUM_SAMPLES)]
    loader = DataLoader(cached, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert list(loader) == [*range(NUM_SAMPLES)]
    assert cached.get_stat().hits == NUM_SAMPLES


def test_indices_that_torch_passes_on() -> None:
    data = TensorDataset(torch.arange(10))
    subset = Subset(data, [3, 4, 5])
    cached = prefeed.CachedDataset(subset)
    for index in ([0, 1], 1, torch.tensor(1), np.int64(1), -1, [0, 1]):
        assert torch.equal(cached[index][0], subset[index][0])
    itself = prefeed.CachedDataset(Itself())
    for index in (2, np.int64(2), np.int32(2), -1, True, 2):
        assert (type(itself[index]), itself[index]) == (type(index), index)


class Itself:
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: Any) -> Any:
        return index


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
    assert cached.get_stat().num_mem_cached == 2  # one for each label


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
    found = [
        fingerprint_elsewhere(tmp_path / word / "site-packages", "unversioned", "from unversioned import f")
        for word in ("one", "two", "one")
    ]
    assert found[0] == found[2] != found[1]


def fingerprint_elsewhere(packages: Path, name: str, use: str = "") -> str:
    """Return the fingerprint of a function that calls a package, in another process."""
    code = f"""
import sys; sys.path.insert(0, sys.argv[1])
import {name}
{use}
from prefeed.stage_cache.fingerprint import fingerprint
def g(): return {"f" if use else name + ".f"}()
print(fingerprint(g).hex())"""
    command = [sys.executable, "-c", code, str(packages)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
