"""A fingerprint is the same for equal stages in every process, and another one for whatever else they compute."""

from __future__ import annotations

import enum
import functools
import importlib
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import attr
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.dataset import MappedDataset
from prefeed.stage_cache.fingerprint import Walk, _Pickler, fingerprint
from prefeed.stage_cache.stage import Stage


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int


@dataclass
class Scale:
    by: Any

    def __call__(self, value: Any) -> Any:
        return value * self.by


@attr.define
class Attributes:
    by: int = 1


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: int) -> None:
        self.by = by


def times(factor: Any) -> Callable[[Any], Any]:
    return lambda value: value * factor


def plus(value: int, offset: int = 1, *, scale: int = 1) -> int:
    return value + offset * scale


def plus_two(value: int, offset: int = 2, *, scale: int = 1) -> int:
    return value + offset * scale


def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "one": lambda: 1,
    "float": lambda: 1.0,
    "minus zero": lambda: -0.0,
    "text": lambda: "text",
    "bytes": lambda: b"text",
    "bytearray": lambda: bytearray(b"text"),
    "complex": lambda: 1j,
    "list": lambda: [1, "a"],
    "tuple": lambda: (1, "a"),
    "dict": lambda: {"a": 1, "b": 2},
    "dict in another order": lambda: {"b": 2, "a": 1},
    "ordered": lambda: OrderedDict(a=1, b=2),
    "set": lambda: {f"{index}" for index in range(40)},
    "frozenset": lambda: frozenset(f"{index}" for index in range(40)),
    "path": lambda: Path("a"),
    "paths": lambda: [Path(f"{index}") for index in range(100)],
    "other paths": lambda: [Path(f"{index}") for index in range(1, 101)],
    "long": lambda: [(f"{index}", index) for index in range(100)],
    "longer": lambda: [(f"{index}", index) for index in range(101)],
    "long of objects": lambda: [Scale(index) for index in range(100)],
    "nested": lambda: [[{"a": [index]}] for index in range(100)],
    "slice": lambda: slice(1, None),
    "range": lambda: range(3),
    "enum": lambda: Colour.RED,
    "another member": lambda: Colour.BLUE,
    "named tuple": lambda: Point(1),
    "dataclass": lambda: Scale(2),
    "dataclass of another value": lambda: Scale(3),
    "attrs": lambda: Attributes,
    "slots": lambda: Slotted(1),
    "other slots": lambda: Slotted(2),
    "array": lambda: np.arange(6),
    "shaped": lambda: np.arange(6).reshape(2, 3),
    "array of another dtype": lambda: np.arange(6, dtype=np.int32),
    "array of objects": lambda: np.array([1, "a"], object),
    "masked": lambda: np.ma.masked_array([1, 2], [0, 1]),
    "strided": lambda: np.arange(12)[::2],
    "numpy's number": lambda: np.float32(1),
    "dtype": lambda: np.dtype("f4"),
    "tensor": lambda: torch.arange(6),
    "tensor of another dtype": lambda: torch.arange(6, dtype=torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(3)),
    "torch's dtype": lambda: torch.float32,
    "module": lambda: torch.nn.Conv2d(1, 2, 3).requires_grad_(False).apply(zeroed),
    "transform": lambda: transforms.Resize(3),
    "another transform": lambda: transforms.Resize(4),
    "compose": lambda: transforms.Compose([transforms.Resize(3), times(2)]),
    "composed in another order": lambda: transforms.Compose([times(2), transforms.Resize(3)]),
    "closure": lambda: times(2),
    "another closure": lambda: times(3),
    "defaults": lambda: plus,
    "other defaults": lambda: plus_two,
    "recursive": lambda: even,
    "partial": lambda: functools.partial(plus, 1),
    "partial of another": lambda: functools.partial(plus, 2),
    "method": lambda: Scale(2).__call__,
    "cached": lambda: functools.lru_cache(plus),
    "builtin": lambda: len,
    "another builtin": lambda: abs,
    "ufunc": lambda: np.add,
    "function of torch": lambda: torch.sin,
    "function of a library": lambda: np.linalg.norm,
    "class": lambda: Scale,
    "class of a library": lambda: transforms.Resize,
}


def zeroed(module: Any) -> None:
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)


def found() -> dict[str, str]:
    return {name: fingerprint(make()).hex() for name, make in VALUES.items()}


def test_each_value_has_a_fingerprint_of_its_own() -> None:
    here = found()
    assert here == found()
    names: dict[str, list[str]] = {}
    for name, digest in here.items():
        names.setdefault(digest, []).append(name)
    assert [same for same in names.values() if len(same) > 1] == []


@pytest.mark.usefixtures("sandbox")
def test_other_processes_agree() -> None:
    code = "import importlib, json, sys; sys.path[:0] = sys.argv[2:]; print(json.dumps(importlib.import_module(sys.argv[1]).found()))"
    command = [sys.executable, "-c", code, __name__, str(Path(__file__).parent), str(Path(__file__).parents[2])]
    processes = [
        subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("1", "2")
    ]
    here = found()
    for process in processes:
        assert json.loads(process.communicate()[0]) == here


def test_texts_that_are_one_object_or_two_are_equal() -> None:
    text = "a-text"
    other = text[:3] + text[3:]
    assert text is not other
    assert fingerprint([text, text]) == fingerprint([text, other])
    scale = Scale(2)
    assert fingerprint([scale, scale]) == fingerprint([scale, Scale(2)])


def test_where_code_stands_and_in_which_order_attributes_were_set_does_not_count() -> None:
    def compiled(source: str) -> Any:
        names: dict[str, Any] = {"__name__": "somewhere"}
        exec(compile(source, "<test>", "exec"), names)
        return names["f"]

    one, moved, other = (
        compiled(source) for source in ("def f(): return 1", "\n\n\ndef f(): return 1", "def f(): return 2")
    )
    assert fingerprint(one) == fingerprint(moved) != fingerprint(other)
    first, second = Scale(1), Scale(1)
    first.a, first.b = 1, 2  # type: ignore[attr-defined]
    second.b, second.a = 2, 1  # type: ignore[attr-defined]
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (threading.Lock, r"Scale\.by is a _thread\.lock, which cannot be identified .*version="),
        (Path(__file__).open, r"Scale\.by is a _io\.TextIOWrapper"),
        (lambda: (number for number in range(3)), r"Scale\.by is a generator"),
    ],
)
def test_what_cannot_be_pickled_is_named(make: Any, match: str) -> None:
    value = make()
    try:
        with pytest.raises(CannotFingerprintError, match=match):
            fingerprint(Scale(value))
    finally:
        getattr(value, "close", int)()


def test_a_list_that_holds_itself_is_named() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CannotFingerprintError, match=r"Scale\.by"):
        fingerprint(Scale(loop))


@pytest.mark.parametrize("item", [str, lambda index: (index, 1), Path], ids=["texts", "pairs", "paths"])
def test_no_code_runs_for_each_of_a_hundred_thousand_paths(item: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[type]()
    ask = _Pickler.persistent_id
    monkeypatch.setattr(_Pickler, "persistent_id", lambda self, value: calls.append(type(value)) or ask(self, value))
    fingerprint(Scale([item(str(index)) for index in range(100_000)]))
    assert len(calls) < 1000


# ---------------------------------------------------------------- code


def named(source: str, name: str, *, module: str = "somewhere") -> Any:
    """Return a value of a module with this source."""
    namespace: dict[str, Any] = {"__name__": module}
    exec(source, namespace)
    return namespace[name]


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "enable_grad"])
def test_functions_decorated_by_torch_count(mode: str) -> None:
    source = f"import torch\n@torch.{mode}()\ndef f(value): return value * SCALE"
    sources = [f"SCALE = 1\n{source}", f"SCALE = 2\n{source}", f"SCALE = 1\n{source} + 1"]
    assert len({fingerprint(named(each, "f")) for each in sources}) == 3
    assert fingerprint(named(sources[0], "f")) == fingerprint(named(sources[0], "f"))


@pytest.mark.parametrize("source", ["def f(value): return value * SCALE", "class f:\n def g(self): return SCALE"])
def test_equal_code_of_two_modules_keeps_its_order(source: str) -> None:
    one, two = (named(f"SCALE = {scale}\n{source}", "f", module=f"module_{scale}") for scale in (1, 2))
    assert fingerprint([one, two]) != fingerprint([two, one])


class Project(NamedTuple):
    folder: Path

    def write(self, **sources: str) -> None:
        for name, source in sources.items():
            path = self.folder / "fp_package" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name("__init__.py").touch()
            path.write_text(source)

    def load(self, name: str) -> Any:
        importlib.invalidate_caches()
        return importlib.import_module(f"fp_package.{name}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Project(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fp_package"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "imported", ["from fp_package import sub", "from .. import sub", "from ..sub import S", "import fp_package.sub"]
)
def test_modules_that_are_imported_in_functions_count(project: Project, imported: str) -> None:
    uses = {"import fp_package.sub": "fp_package.sub.S", "from ..sub import S": "S"}.get(imported, "sub.S")
    project.write(
        inner__code=f"class D:\n def __len__(self): return 4\n def __getitem__(self, index):\n  {imported}\n  return {uses}",
        sub="from .low import S",
        low="S = 1",
    )
    dataset = project.load("inner.code").D()
    before = fingerprint(dataset)
    project.write(low="S = 2 + 1")
    assert fingerprint(dataset) != before

    before = fingerprint(dataset)
    assert dataset[0] == 3
    assert fingerprint(dataset) == before  # although the modules are imported now
    project.write(low="S = 1 + 1 + 1")
    assert fingerprint(dataset) == before  # the process computes with what it has read
    importlib.reload(project.load("low"))
    assert fingerprint(dataset) != before


def test_constants_of_a_module_that_a_function_imports_count(project: Project) -> None:
    project.write(set_early="S = 1", user="def f():\n  from .set_early import S\n  return S")
    early, function = project.load("set_early"), project.load("user").f
    before = fingerprint(function)
    early.S = 2
    assert fingerprint(function) != before


@pytest.mark.parametrize("user", ["Scale(conf)", "lambda: conf.S", "passed", "default", "[conf]", "listed"])
def test_modules_as_values_count_by_their_globals(project: Project, user: str) -> None:
    project.write(
        conf="from . import other\nS = 1",
        other="from . import conf\nS = 1",
        code="from . import conf\nTABLE = [conf]\ndef used(module): return module.S\ndef passed(): return used(conf)\n"
        "def default(module=conf): return module.S\ndef listed(): return TABLE[0].S",
    )
    conf = project.load("conf")
    value = eval(user, {"Scale": Scale, "conf": conf, **vars(project.load("code")), "__name__": "somewhere"})
    before = fingerprint(value)
    conf.other.S = 2
    other = fingerprint(value)
    conf.S = 2
    assert fingerprint(value) != other
    assert user.startswith("lambda") or other != before


STANDING = [
    *("threading.Lock()", "threading.local()", "threading.Thread()", "queue.Queue()", "contextvars.ContextVar('a')"),
    *("concurrent.futures.ThreadPoolExecutor(1)", "weakref.ref(threading.Thread)", "weakref.WeakKeyDictionary()"),
    *("struct.Struct('<i')", "ctypes.CDLL(None).strlen", "functools.partial(int, threading.Lock())"),
    *("functools.singledispatch(lambda value: value)", "sqlite3.connect(':memory:')"),
]


@pytest.mark.parametrize("made", STANDING)
def test_what_has_no_value_counts_by_its_type_in_modules_and_classes(made: str) -> None:
    imports = "import threading, queue, contextvars, concurrent.futures, weakref, struct, ctypes, functools, sqlite3\n"

    def found(text: str) -> bytes:
        function = named(f"{imports}class D:\n held = {text}\nHELD = {text}\ndef f(): return HELD, D", "f")
        before = fingerprint(function)
        for each in (function()[0], function()[1].held):
            getattr(each, "close", int)()
        return before

    assert found(made) == found(made)
    assert found(made) != found("threading.Event()")


def test_what_has_no_value_does_not_hide_what_is_next_to_it() -> None:
    source = (
        "import threading, functools\nclass C:\n def __init__(self): self.lock, self.scale = threading.Lock(), {}\n"
    )
    source += "HELD = [C(), functools.partial(lambda value: value + {}, threading.Lock())]\ndef f(): return HELD"
    assert len({fingerprint(named(source.format(*each), "f")) for each in ((1, 1), (2, 1), (1, 2))}) == 3


@pytest.mark.parametrize(
    "made",
    [("struct.Struct('<i')", "struct.Struct('<q')"), [f"functools.singledispatch(lambda: {each})" for each in (1, 2)]],
)
def test_formats_and_registries_count(made: tuple[str, str]) -> None:
    sources = [f"import struct, functools\nHELD = {each}\ndef f(): return HELD" for each in made]
    assert len({fingerprint(named(source, "f")) for source in sources}) == 2


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_scripted_code_is_refused_in_globals_too() -> None:
    function = named("def f(): return HELD", "f")
    function.__globals__["HELD"] = torch.jit.trace(torch.abs, torch.zeros(1))
    with pytest.raises(CannotFingerprintError, match="ScriptFunction"):
        fingerprint(function)


@pytest.mark.parametrize("name", ["random", "randint"])
def test_the_state_of_the_global_generator_does_not_count(name: str) -> None:
    function = named(f"import random\ndef f(index): return random.Random(index).{name}(0, 9)", "f")
    before = fingerprint((function, getattr(random, name)))
    random.random()
    assert fingerprint((function, getattr(random, name))) == before
    assert fingerprint(random.Random(1).random) != fingerprint(random.Random(2).random)


class Reader:
    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.decoder = Scale(self)


class Readers:
    def __init__(self, active: int) -> None:
        self.all = [Reader(1), Reader(2)]
        self.last = self.all[active].decoder


def test_objects_that_point_back_count_by_what_they_point_to() -> None:
    assert fingerprint(Readers(0)) != fingerprint(Readers(1))
    assert fingerprint(Readers(0)) == fingerprint(Readers(0))


def test_cycles_take_time_for_each_value_once() -> None:
    grid = [[Scale(None) for _ in range(6)] for _ in range(6)]
    for row, column in itertools.product(range(6), repeat=2):
        grid[row][column].by = [grid[(row + 1) % 6][column], grid[row][(column + 1) % 6], grid[row - 1][column]]
    walk = Walk()
    walk.fingerprint(grid)
    assert len(walk.slots) < 100


# ---------------------------------------------------------------- samples


class Rows:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def key(dataset: Any, index: Any) -> bytes:
    return Stage(dataset, None).key(index)


def test_subsets_share_the_samples_of_what_they_choose_from() -> None:
    rows = Rows(6)
    chosen = Subset(Subset(rows, [5, 3, 1]), [2, 0])
    assert [key(chosen, 0), key(chosen, 1), key(chosen, -1)] == [key(rows, 1), key(rows, 5), key(rows, 5)]
    mapped = [key(MappedDataset(dataset, fn), 0) for dataset in (Subset(rows, [4]), rows) for fn in (abs, float)]
    assert len({*mapped, key(rows, 0), key(rows, 4)}) == 6
    assert mapped[0] == key(MappedDataset(rows, abs), 4)


def test_a_part_that_is_joined_twice_has_each_sample_once() -> None:
    rows, other = Rows(3), Rows(3)
    keys = [key(ConcatDataset([rows, other, rows]), index) for index in range(9)]
    assert keys[:3] == keys[6:]
    assert len(set(keys)) == 6
    assert key(ConcatDataset([rows, other, rows]), -9) == keys[0]
    with pytest.raises(IndexError):
        key(ConcatDataset([rows, other, rows]), 9)


def test_a_dataset_around_a_subset_depends_on_the_choice() -> None:
    around = [Scale(Subset(Rows(6), chosen)) for chosen in ([1], [2])]
    assert fingerprint(around[0]) != fingerprint(around[1])


class Squared(MappedDataset):
    def __init__(self, dataset: Any, fn: Any, power: int) -> None:
        super().__init__(dataset, fn)
        self.power = power

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index) ** self.power


def test_a_class_derived_from_one_of_prefeed_is_another() -> None:
    rows = Rows(3)
    datasets = [MappedDataset(rows, abs), Squared(rows, abs, 2), Squared(rows, abs, 3), Squared(rows, float, 3)]
    assert len({key(dataset, 0) for dataset in datasets}) == len(datasets)


def test_attributes_named_like_functions_of_prefeed_count() -> None:
    def derived(name: str, value: int) -> Squared:
        dataset = Squared(Rows(3), abs, 2)
        setattr(dataset, name, value)
        return dataset

    names = ("describe", "shown", "__name__")  # called by MappedDataset
    assert len({key(derived(name, value), 0) for name in names for value in (1, 2)}) == 2 * len(names)


# ---------------------------------------------------------------- parts that computing samples changes


class Parser:
    def __init__(self) -> None:
        self.calls = 0
        self.scale = 1


class Filling(Rows):
    """Counts, opens a file late, and keeps results."""

    def __init__(self) -> None:
        super().__init__(4)
        self.parser = Parser()
        self.kept: dict[int, int] = {}
        self.handle: Any = None

    def __getitem__(self, index: int) -> int:
        self.handle = self.handle or threading.Lock()
        self.parser.calls += 1
        self.late = Parser()
        return self.kept.setdefault(index, index * self.parser.scale)


def test_parts_that_computing_changes_do_not_count_but_others_next_to_them_do() -> None:
    filling = Filling()
    stage = Stage(filling, None)
    before = stage.fingerprint
    with stage.computing():
        filling[0]
    with stage.computing(leaves_out=False):
        filling[1]
    stage.look()
    assert stage.fingerprint == before == Stage(Filling(), None).fingerprint
    filling.parser.scale = 2
    stage.look()
    assert stage.fingerprint != before
    filling.parser.scale = 1
    stage.look()
    assert stage.fingerprint == before


def test_other_parts_of_one_file_are_other_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))

    def mapped(mode: Any = "r") -> Any:
        return np.load(tmp_path / "a.npy", mmap_mode=mode)

    views = [lambda each: each, *(lambda each, at=at: each[at:][:5] for at in (0, 1, 5)), lambda each: each[::2]]
    views += [lambda each: each.reshape(2, 5), lambda each: each.reshape(2, 5).T, lambda each: each.view(np.uint8)]
    for mode in ("r", "r+", "c"):
        found = [fingerprint(view(mapped(mode))) for view in views]
        assert found == [fingerprint(view(mapped(mode))) for view in views]
        assert len(set(found)) == len(found)
    before = fingerprint(mapped()[:5])
    os.utime(tmp_path / "a.npy", (1, 1))
    assert fingerprint(mapped()[:5]) != before


def test_a_part_that_is_set_after_computing_filled_it_counts_again() -> None:
    filling = Filling()
    stage = Stage(filling, None)
    before = stage.fingerprint
    with stage.computing():
        filling[0]
    filling.parser.calls = 0
    filling.kept.clear()
    assert stage.has_changed()
    stage.look()
    assert stage.fingerprint == before
    filling.parser.calls = 7
    stage.look()
    assert stage.fingerprint != before


@pytest.mark.parametrize(
    "change", [lambda kept: kept.update({5: 5}), lambda kept: kept[0].append(2)], ids=["added", "inside"]
)
def test_a_small_container_that_is_changed_in_place_is_noticed_at_once(change: Any) -> None:
    rows = Rows(4)
    rows.kept = {0: [1]}  # type: ignore[attr-defined]
    stage = Stage(rows, None)
    assert not stage.has_changed()
    change(rows.kept)  # type: ignore[attr-defined]
    assert stage.has_changed()
    with stage.computing(leaves_out=False):
        pass
    assert not stage.has_changed()


def test_a_stage_takes_digests_of_filled_parts_along() -> None:
    filling = Filling()
    filling.handle = 1  # locks cannot be pickled
    stage = Stage(filling, None)
    before = stage.fingerprint
    with stage.computing():
        filling[0]
    copy = pickle.loads(pickle.dumps(stage))
    copy.look()
    assert copy.fingerprint == before
    copy._dataset.parser.calls = 9
    copy.look()
    assert copy.fingerprint != before


def test_no_fingerprint_is_refused_for_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(Rows(4), None)
    monkeypatch.setattr(stage, "cost_seconds", 0.0001)
    stage.is_due([0])
    assert all(stage.is_due([0]) for _ in range(100))
    monkeypatch.setattr(stage, "cost_seconds", 10.0)
    assert stage.is_due([0]) is False


def test_indices_that_are_equal_and_of_other_types_are_other_samples() -> None:
    stage = Stage(Rows(4), None)
    indices = [2, np.int64(2), np.int32(2), torch.tensor(2), -2, True, 2.0]
    assert len({stage.key(index) for index in indices}) == len(indices)


def test_an_error_for_what_a_sample_has_set_says_to_wrap_before() -> None:
    filling = Filling()
    filling[0]
    with pytest.raises(
        CannotFingerprintError, match=r"Filling\.handle is a .*wrap the dataset before its samples are read"
    ):
        Stage(filling, None)
