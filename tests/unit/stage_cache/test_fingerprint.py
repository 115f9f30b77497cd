"""A stage has one fingerprint in every process and run; another code or parameter is another fingerprint."""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import importlib.util
import json
import logging
import operator
import os
import re
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import xxhash
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torchvision.transforms import v2

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.fingerprint import describe, fingerprint
from prefeed.stage_cache.identity import installed
from prefeed.stage_cache.identity.anatomy import anatomy_of

pytestmark = pytest.mark.usefixtures("sandbox")

# ---------------------------------------------------------------- code as text, run in processes of its own

STAGE = '''
import functools, operator, random
from enum import Enum
from dataclasses import dataclass, field
import numpy as np
import torch
import torchvision.transforms as T
import mine.steps as steps
from mine.steps import scale
from mine import steps as again

SIZE = 8
NAMES = {"b", "a", "c", "longer", "names", "in", "a", "set"}

class Kind(Enum):
    A = 1
    B = 2

@dataclass
class Options:
    size: int = 3
    names: frozenset = frozenset({"x", "y", "z"})
    more: dict = field(default_factory=dict)

class Step:
    """A step."""
    unit = 1

    def __init__(self, by):
        self.by = by

    def __call__(self, value):
        """Do it."""
        return self.helper(value) * self.unit

    def helper(self, value):
        return scale(value, self.by) if Kind.A else super().__call__(value)

def decode(value, mode="RGB", *, size=SIZE):
    """Decode a value."""
    def inner(x):
        """Inside."""
        return [steps.resize(y, SIZE) for y in x if y in {"p", "q", "r"}]
    return inner(value) or again.OFFSET

def made(amount):
    return lambda value: value + amount

def first(n):
    return second(n - 1) if n else 0

def second(n):
    return first(n - 1) if n else 1

STAGES = {
    "function": decode,
    "closure": made(3),
    "instance": Step(2),
    "class": Step,
    "bound": Step(2).helper,
    "partial": functools.partial(decode, size=3, mode="L"),
    "enum": [Kind.A, Kind],
    "dataclass": Options(),
    "set": NAMES,
    "functions in a set": {first, second, made(1), made(2)},
    "cycle": first,
    "compose": T.Compose([T.Resize(8), T.Lambda(made(2)), T.ToTensor()]),
    "module": torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.ReLU()).requires_grad_(False),
    "array": np.arange(10),
    "own module": steps,
}
for parameter in STAGES["module"].parameters():
    torch.nn.init.constant_(parameter, 0.5)
'''

STEPS = '''
"""Steps."""
OFFSET = 3
WEIGHTS = {"a": [1.0, 2.0], 3: (4,)}

def scale(value, by):
    return value * by * WEIGHTS["a"][0]

def resize(value, size):
    return crop(value)[:size]

def crop(value):
    return value
'''

RUN = """
import importlib, json, sys
def fingerprints(places):
    sys.dont_write_bytecode = True
    found = {}
    for where in places:
        sys.path.insert(0, where)
        stage = importlib.import_module("stage")
        from prefeed.stage_cache.fingerprint import fingerprint
        found[where] = {name: fingerprint(value).hex() for name, value in stage.STAGES.items()}
        sys.path.remove(where)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("stage", "mine")]:
            del sys.modules[name]
        importlib.invalidate_caches()
    return json.dumps(found)
"""


def places_of(root: Path, texts: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Write each version of the two modules into a directory of its own."""
    places = {}
    for number, (name, (stage, steps)) in enumerate(texts.items()):
        package = root / f"place{number}" / "mine"
        package.mkdir(parents=True)
        (package.parent / "stage.py").write_text(stage)
        (package / "__init__.py").write_text("")
        (package / "steps.py").write_text(steps)
        places[name] = str(package.parent)
    return places


def fingerprints(places: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the fingerprints of each version, found in a fork of this process."""
    receiving, sending = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            run: dict[str, Any] = {}
            exec(RUN, run)
            with os.fdopen(sending, "w") as file:
                file.write(run["fingerprints"](places.values()))
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    with os.fdopen(receiving) as file:
        printed = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return _by_name(places, printed)


def fingerprints_elsewhere(places: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the fingerprints of each version, found by an interpreter of their own, where strings have other hashes."""
    command = [sys.executable, "-c", f"{RUN}print(fingerprints(sys.argv[1:]))", *places.values()]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return _by_name(places, ran.stdout)


def _by_name(places: dict[str, str], printed: str) -> dict[str, dict[str, str]]:
    found = json.loads(printed)
    return {name: found[where] for name, where in places.items()}


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The fingerprints of every changed text, and of the original one."""
    texts = {name: (STAGE.replace(before, after), STEPS) for name, (before, after, _) in CHANGES.items()}
    texts |= {name: (STAGE, STEPS.replace(before, after)) for name, (before, after, _) in STEP_CHANGES.items()}
    return fingerprints(places_of(tmp_path_factory.mktemp("changed"), {"original": (STAGE, STEPS), **texts}))


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The fingerprints of texts that mean the same, in another process with another hash seed."""
    other_docstrings = re.sub(r'"""[A-Z].*?"""', '"""Another text. ' + "x" * 99 + '"""', STAGE)
    no_docstrings = re.sub(r'( +)"""[A-Z].*?"""\n', "", STAGE)
    assert STAGE != other_docstrings != no_docstrings
    texts = {
        "hash seed": (STAGE, STEPS),
        "lines": ("# A comment.\n\n\n" + STAGE.replace("\ndef ", "\n\n# Here.\ndef "), "\n\n" + STEPS),
        "docstrings": (other_docstrings, STEPS.replace("Steps.", "Other steps.")),
        "no docstrings": (no_docstrings, STEPS),
    }
    return fingerprints_elsewhere(places_of(tmp_path_factory.mktemp("moved"), texts))


@pytest.mark.parametrize("name", ["hash seed", "lines", "docstrings", "no docstrings"])
def test_another_process_another_place_another_look_the_same(
    name: str, changed: dict[str, dict[str, str]], moved: dict[str, dict[str, str]]
) -> None:
    assert moved[name] == changed["original"]


CHANGES: dict[str, tuple[str, str, set[str]]] = {
    # What is changed in the text, into what, and which stages are others then.
    "default": ('mode="RGB"', 'mode="L"', {"function", "partial"}),
    "global constant": ("SIZE = 8", "SIZE = 9", {"function", "partial"}),
    "constant in a nested function": ('{"p", "q", "r"}', '{"p", "q", "s"}', {"function", "partial"}),
    "method": ("* self.unit", "+ self.unit", {"instance", "class", "bound"}),
    "class attribute": ("unit = 1", "unit = 2", {"instance", "class", "bound"}),
    "attribute": ("Step(2)", "Step(3)", {"instance", "bound"}),
    "closure": ("made(3)", "made(4)", {"closure"}),
    "lambda": ("value + amount", "value - amount", {"closure", "compose", "functions in a set"}),
    "member": ("B = 2", "B = 3", {"enum", "instance", "class", "bound"}),
    "parameter": ("T.Resize(8)", "T.Resize(9)", {"compose"}),
    "weights": ("0.5)", "0.25)", {"module"}),
    "architecture": ("torch.nn.ReLU()", "torch.nn.Tanh()", {"module"}),
    "set": ('"longer"', '"longest"', {"set"}),
    "dataclass default": ("size: int = 3", "size: int = 4", {"dataclass"}),
    "far function of a cycle": ("else 1", "else 2", {"cycle", "functions in a set"}),
    "content": ("np.arange(10)", "np.arange(11)", {"array"}),
}


STEP_CHANGES: dict[str, tuple[str, str, set[str]]] = {
    "imported function": ("value * by *", "value * by +", {"instance", "class", "bound", "own module"}),
    "function of a function": ("return value\n", "return value[1:]\n", {"function", "partial", "own module"}),
    "constant of a module": ("OFFSET = 3", "OFFSET = 4", {"function", "partial", "own module"}),
    "container": ("[1.0, 2.0]", "[1.0, 2.5]", {"instance", "class", "bound", "own module"}),
}


@pytest.mark.parametrize("name", [*CHANGES, *STEP_CHANGES])
def test_what_is_changed_is_another_stage_and_nothing_else_is(name: str, changed: dict[str, dict[str, str]]) -> None:
    before, after, others = (CHANGES | STEP_CHANGES)[name]
    assert before in STAGE if name in CHANGES else before in STEPS, after

    assert {stage for stage, found in changed["original"].items() if changed[name][stage] != found} == others


def test_a_function_of_main_is_the_same_in_a_module(tmp_path: Path) -> None:
    text = "SIZE = 3\ndef f(x):\n    return x + SIZE\n"
    show = "from prefeed.stage_cache.fingerprint import fingerprint\nprint(fingerprint(f).hex())\n"
    (tmp_path / "module.py").write_text(text)

    def run(code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert run(text + show) == run("from module import f\n" + show)


# ---------------------------------------------------------------- values, in this process


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class WithState(Plain):
    """Drops what it opened when it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "opened"}


class Reduced(Plain):
    def __reduce__(self) -> Any:
        return Plain, (), {"only": self.only}


class Slotted:
    __slots__ = ("a", "b")


class Listed(list[int]):
    pass


class Named(np.ndarray[Any, Any]):
    """An array that knows more."""


class Number(int):
    pass


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 2], "itemsize": 8})


def named(array: Any, **values: Any) -> Any:
    made = array.view(Named)
    made.__dict__.update(values)
    return made


class Flags(enum.Flag):
    A = 1
    B = 2


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Options:
    size: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    size: int


def slotted(**values: int) -> Slotted:
    made = Slotted()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def closure(amount: Any) -> Callable[[Any], Any]:
    return lambda value: value + amount


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.name_of_mine = 1  # type: ignore[attr-defined]
    return tensor


def linear(*, bias: float = 0.0) -> nn.Module:
    layer = nn.Linear(2, 2)
    nn.init.ones_(layer.weight), nn.init.constant_(layer.bias, bias)
    return layer


class Cached:
    def __init__(self, size: int) -> None:
        self.size = size

    @functools.cached_property
    def area(self) -> int:
        return self.size**2

    @property
    def edge(self) -> int:
        return self.size

    @staticmethod
    def one() -> int:
        return 1

    @classmethod
    def two(cls) -> Cached:
        return cls(2)


@functools.lru_cache
def remembered(value: int) -> int:
    return value + 1


@functools.singledispatch
def dispatched(value: Any) -> Any:
    return value


@dispatched.register
def _(value: int) -> Any:
    return value + 1


@functools.wraps(remembered)
def wrapping(value: int) -> int:
    return value + 2


ALL_DIFFERENT: dict[str, list[Callable[[], Any]]] = {
    "numbers": [
        lambda: 1,
        lambda: 1.0,
        lambda: True,
        lambda: 1 + 0j,
        lambda: "1",
        lambda: b"1",
        lambda: None,
        lambda: 2,
    ],
    "zeros": [lambda: 0.0, lambda: -0.0, lambda: float("nan"), lambda: 2**70, lambda: 2**71],
    "containers": [list, tuple, dict, set, frozenset, bytearray, lambda: [None], lambda: (None,), lambda: [[]]],
    "nesting": [lambda: [1, [2]], lambda: [[1], 2], lambda: [[1, 2]], lambda: [1, (2,)], lambda: [(1,), (2,)]],
    "pairs": [lambda: [("a", 1)], lambda: [["a", 1]], lambda: (("a", 1),), lambda: [("a", 1.0)], lambda: [("a", "1")]],
    "dicts": [
        lambda: {"a": 1, "b": 2},
        lambda: {"b": 2, "a": 1},
        lambda: {"a": 1},
        lambda: {1: "a"},
        lambda: {"1": "a"},
    ],
    "orders": [lambda: collections.OrderedDict(a=1), lambda: {"a": 1}, lambda: types.MappingProxyType({"a": [2]})],
    "ranges": [lambda: range(3), lambda: range(4), lambda: slice(3), lambda: slice(4), lambda: ...],
    "paths": [
        lambda: Path("a"),
        lambda: Path("b"),
        lambda: "a",
        lambda: [Path("a")],
        lambda: [Path("b")],
        lambda: ["a"],
    ],
    "arrays": [
        lambda: np.arange(4),
        lambda: np.arange(4).reshape(2, 2),
        lambda: np.arange(4.0),
        lambda: np.arange(4)[::-1],
        lambda: np.array([0, 1, 2, 4]),
        lambda: np.array([None, 1, "a"]),
        lambda: np.array([None, 1, "b"]),
        lambda: np.int64(4),
        lambda: np.int32(4),
        lambda: np.zeros(2, [("a", "i4")]),
        lambda: np.zeros(2, [("b", "i4")]),
    ],
    "kinds of arrays": [
        lambda: np.ma.array([1, 2, 3], mask=[0, 0, 0]),
        lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0]),
        lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=7),
        lambda: np.ma.array([1, 2, 4], mask=[0, 1, 0]),
        lambda: np.array([1, 2, 3]),
        lambda: np.array([1, 2, 3]).view(Named),
        lambda: np.array([1, 2, 4]).view(Named),
        lambda: named(np.array([1, 2, 3]), unit="m"),
        lambda: named(np.array([1, 2, 3]), unit="s"),
        lambda: np.array([[1, 2, 3]]).view(np.matrix),
        lambda: np.zeros(2, OVERLAPPING),
        lambda: np.zeros(2, [("a", "i4"), ("b", "i2")]),
        lambda: np.zeros(2, OVERLAPPING)[0],
        lambda: np.zeros(2, [("a", "V4")])[0],
        lambda: np.zeros(2, [("b", "V4")])[0],
        lambda: np.zeros(3, "V0"),
        lambda: np.array(["a", "b"], np.dtypes.StringDType()),
        lambda: np.array(["a", "c"], np.dtypes.StringDType()),
    ],
    "plain nesting": [
        lambda: {"a": [{"b": 1}]},
        lambda: {"a": [{"b": 1.0}]},
        lambda: {"a": [{"b": True}]},
        lambda: {"a": ({"b": 1},)},
        lambda: {"a": [{"b": [1]}]},
        lambda: {"a": [{"b": "1"}]},
        lambda: {"a": [{"b": b"1"}]},
        lambda: {"a": [{"b": bytearray(b"1")}]},
        lambda: {"a": [{"b": np.frombuffer(b"1", np.uint8)}]},
        lambda: {"a": [{"b": np.frombuffer(b"1", np.int8)}]},
        lambda: {"a": [{"b": np.uint8(49)}]},
        lambda: {"a": [{"b": np.float64(1)}]},
        lambda: {"a": [{"b": {1}}]},
        lambda: {"a": [{"b": frozenset({1})}]},
        lambda: {"a": [{"b": Colour.RED}]},
        lambda: {"a": [{"b": Number(1)}]},
        lambda: {"a": [{"b": 2**80}]},
        lambda: {"a": [{"b": "\ud800"}]},
        lambda: {"a": [{"b": ...}]},
        lambda: {"a": [{"b": 0.0}]},
        lambda: {"a": [{"b": -0.0}]},
        lambda: {"a": [{"b": 1j}]},
        lambda: {"a": [collections.OrderedDict(b=1)]},
    ],
    "tensors": [
        lambda: torch.arange(4),
        lambda: torch.arange(4.0),
        lambda: torch.arange(4).view(2, 2),
        lambda: torch.arange(4).bfloat16(),
        lambda: torch.arange(4).flip(0),
        lambda: with_attribute(torch.arange(4)),
        lambda: nn.Parameter(torch.arange(4.0)),
        lambda: torch.tensor(4),
        lambda: torch.tensor([]),
        lambda: torch.float32,
        lambda: torch.float16,
        lambda: torch.device("cpu"),
        lambda: torch.Size([4]),
    ],
    "instances": [
        Plain,
        lambda: Plain(a=1),
        lambda: Plain(a=2),
        lambda: Plain(b=1),
        lambda: WithState(a=1),
        lambda: Reduced(only=1),
        lambda: Reduced(only=2),
        lambda: slotted(a=1),
        lambda: slotted(b=1),
        lambda: slotted(a=1, b=1),
        lambda: Listed([1]),
        lambda: Listed([2]),
        lambda: Options(1),
        lambda: Options(1, ["a"]),
        lambda: Frozen(1),
        lambda: Frozen(2),
        lambda: Cached(1),
        lambda: Plain,
        lambda: Options,
    ],
    "enums": [
        lambda: Colour.RED,
        lambda: Colour.BLUE,
        lambda: Flags.A,
        lambda: Flags.A | Flags.B,
        lambda: Flags,
        lambda: 1,
    ],
    "functions": [
        lambda: closure(1),
        lambda: closure(2),
        lambda: closure("1"),
        lambda: remembered,
        lambda: remembered.__wrapped__,
        lambda: wrapping,
        lambda: len,
        lambda: max,
        lambda: str.lower,
        lambda: str.upper,
        lambda: "a".join,
        lambda: "b".join,
        lambda: dict.fromkeys,
        lambda: operator.itemgetter(1),
        lambda: operator.itemgetter(2),
        lambda: functools.partial(closure, 1),
        lambda: functools.partial(closure, amount=1),
        lambda: functools.partial(closure, 2),
        lambda: np.add,
        lambda: np.multiply,
        lambda: np.linalg.norm,
        lambda: torch.relu,
        lambda: torch.sigmoid,
        lambda: nn.functional.relu,
        lambda: Cached(1).two,
        lambda: Cached.one,
        lambda: dispatched,
        lambda: re.compile("a"),
        lambda: re.compile("a", re.I),
    ],
    "models": [
        linear,
        lambda: linear(bias=1.0),
        lambda: linear().eval(),
        lambda: nn.Sequential(linear()),
        lambda: nn.ModuleList([linear()]),
    ],
    "transforms": [
        lambda: v1.Resize(3),
        lambda: v1.Resize(4),
        lambda: v1.Resize(3, v1.InterpolationMode.NEAREST),
        lambda: v2.Resize(3),
        lambda: v1.Compose([v1.Resize(3)]),
        lambda: v2.Compose([v2.Resize(3)]),
        lambda: v1.Compose([v1.Resize(3), v1.ToTensor()]),
        lambda: v1.Compose([v1.ToTensor(), v1.Resize(3)]),
        lambda: v1.Lambda(closure(1)),
        lambda: v1.Lambda(closure(2)),
    ],
    "datasets": [
        lambda: TensorDataset(torch.arange(4)),
        lambda: TensorDataset(torch.arange(5)),
        lambda: Subset(TensorDataset(torch.arange(4)), [0, 1]),
        lambda: Subset(TensorDataset(torch.arange(4)), [0, 2]),
        lambda: ConcatDataset([TensorDataset(torch.arange(4))]),
        lambda: ConcatDataset([TensorDataset(torch.arange(4))] * 2),
    ],
}


@pytest.mark.parametrize("group", ALL_DIFFERENT)
def test_different_values_are_different_and_equal_ones_the_same(group: str) -> None:
    makers = ALL_DIFFERENT[group]
    first, second = ([fingerprint(make()) for make in makers] for _ in range(2))

    assert first == second
    assert len(set(first)) == len(makers)
    assert {len(found) for found in first} == {16}


SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "order of attributes": (lambda: Plain(a=1, b=2), lambda: Plain(b=2, a=1)),
    "order of keywords": (lambda: functools.partial(max, a=1, b=2), lambda: functools.partial(max, b=2, a=1)),
    "order of a set": (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}),
    "what pickle drops": (lambda: WithState(a=1, opened=threading.Lock()), lambda: WithState(a=1)),
    "strides": (lambda: np.arange(4).reshape(2, 2).T.T, lambda: np.arange(4).reshape(2, 2)),
    "copies and the same again": (lambda: [Plain(a=1)] * 2, lambda: [Plain(a=1), Plain(a=1)]),
    "copies in plain data": (lambda: [SHARED, SHARED], lambda: [["a", 1.5, 1000], ["a", 1.5, int("1000")]]),
    "interned texts": (lambda: [[sys.intern("some text")]], lambda: [[str(b"some text", "ascii")]]),
    "order of a set in plain data": (lambda: {"a": [{"a", "b", "c"}]}, lambda: {"a": [{"c", "b", "a"}]}),
    "loggers": (lambda: Plain(log=logging.getLogger("a")), lambda: Plain(log=logging.getLogger("a"))),
    "names of functions": (lambda: closure(1), lambda: renamed(closure(1))),
}


SHARED = ["a", 1.5, 1000]


def renamed(function: Any) -> Any:
    function.__name__ = function.__qualname__ = "another"
    return function


@pytest.mark.parametrize("name", SAME)
def test_what_does_not_matter_does_not(name: str) -> None:
    one, other = SAME[name]

    assert fingerprint(one()) == fingerprint(other())


def test_what_was_used_meanwhile_is_the_same() -> None:
    stages = [remembered, dispatched, Cached, Options(1), closure(1)]
    before = [fingerprint(stage) for stage in stages]
    remembered(3), dispatched(3), dispatched("a"), Cached(3).area
    repr(Options(1)), fingerprint([Options(2), Cached(1)])

    assert [fingerprint(stage) for stage in stages] == before


def test_a_mapped_file_counts_by_its_version_and_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100))
    first = fingerprint(np.load(path, mmap_mode="r"))
    assert fingerprint(np.load(path, mmap_mode="r")) == first
    assert fingerprint(np.load(path, mmap_mode="r")[1:]) != first

    os.utime(path, ns=(1, 1))
    assert fingerprint(np.load(path, mmap_mode="r")) != first


def test_cycles_end() -> None:
    def loop(value: int) -> Any:
        made: list[Any] = [value]
        made.append({"again": made})
        return made

    assert fingerprint(loop(1)) == fingerprint(loop(1)) != fingerprint(loop(2))


def test_plain_data_that_holds_itself_many_times_over_ends() -> None:
    def doubled(last: Any) -> Any:
        value: Any = [last]
        for _ in range(60):
            value = [value, value]
        return value

    assert fingerprint(doubled(1)) == fingerprint(doubled(1)) != fingerprint(doubled(2))


def test_plain_data_is_looked_at_as_a_whole() -> None:
    data = [{"id": n, "box": [1.0, 2.0, float(n)], "names": ("a", None)} for n in range(1000)]
    assert anatomy_of(data).parts == anatomy_of({"a": data}).parts == anatomy_of(({"a", "b"}, data)).parts == ()


def extension(directory: Path, *, more: bytes) -> Any:
    """Return a compiled module of the user's own, which is not in ``sys.modules`` yet."""
    installed = Path(xxhash._xxhash.__file__)
    path = directory / installed.name
    path.write_bytes(installed.read_bytes() + more)
    spec = importlib.util.spec_from_file_location("_xxhash", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compiled_code_of_the_users_own_counts_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, more: bytes) -> list[bytes]:
        (tmp_path / name).mkdir()
        module = extension(tmp_path / name, more=more)
        monkeypatch.setitem(sys.modules, "_xxhash", module)
        scope: dict[str, Any] = {"module": module, "__name__": "mine"}
        exec(
            "def f(x):\n    return module.xxh32_digest(x)\ndef g(x):\n    import _xxhash as m\n    return m.xxh32_digest(x)",
            scope,
        )
        return [fingerprint(value) for value in (module, module.xxh32_digest, scope["f"], scope["g"])]

    first, same, other = found("a", b""), found("b", b""), found("c", b"more")
    assert first == same
    assert not set(first) & set(other)


def test_installed_code_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [v1.Resize(3), nn.ReLU(), lambda value: np.linalg.norm(value), closure(1)]
    before = [fingerprint(stage) for stage in stages]
    versions = {"torchvision": "0.1", "torch": "0.1", "numpy": "0.1"}
    monkeypatch.setattr(
        "prefeed.stage_cache.identity.anatomy.version_of",
        lambda name: versions.get(name.partition(".")[0]) or installed.version_of(name),
    )

    after = [fingerprint(stage) for stage in stages]

    assert [one != other for one, other in zip(before, after, strict=True)] == [True, True, True, False]


# ---------------------------------------------------------------- refused

LOCK = threading.Lock()


def uses_a_lock(value: Any) -> Any:
    with LOCK:
        return value


def numbers() -> Iterator[int]:
    yield 1


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lock": (
        lambda: v1.Compose([v1.Resize(3), v1.Lambda(uses_a_lock)]),
        "Compose.transforms[1].lambd -> LOCK is a _thread.lock",
    ),
    "generator": (lambda: Plain(a=[numbers()]), "Plain.a[0] is a generator"),
    "pointer": (lambda: Plain(a=ctypes.pointer(ctypes.c_int(1))), "Plain.a is a"),
    "weak reference": (lambda: {"a": weakref.ref(Plain)}, "dict['a'] is a weakref.ReferenceType"),
    "thread": (lambda: functools.partial(max, a=threading.local()), "max.a is a _thread._local"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "Tensor is a torch.Tensor"),
    "own ufunc": (lambda: np.frompyfunc(closure(1), 1, 1), "out of sight"),
    "no source": (lambda: Plain(a=types.ModuleType("made_here")), "a module without source"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_refused_with_its_place_and_the_way_out(name: str) -> None:
    make, words = REFUSED[name]

    with pytest.raises(CannotFingerprintError, match='version="resize-224 v1"') as caught:
        fingerprint(make())
    assert words in str(caught.value)


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "a", "w") as opened, pytest.raises(CannotFingerprintError) as caught:
        fingerprint(Plain(inner=Plain(log=opened)))

    assert caught.value.details["where"] == "Plain.inner.log"
    assert caught.value.details["type"] == "_io.TextIOWrapper"


def test_a_value_can_be_called_something_else_in_errors() -> None:
    with pytest.raises(CannotFingerprintError, match=r"^ImageFolder\[1\] is a _thread.lock"):
        fingerprint(("a", threading.Lock()), name="ImageFolder")


def test_what_is_nested_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]

    with pytest.raises(CannotFingerprintError, match="nested too deep"):
        fingerprint(deep)


# ---------------------------------------------------------------- for people

DESCRIBED: list[tuple[Callable[[], Any], str]] = [
    (lambda: v1.Compose([v1.Resize(3), v1.CenterCrop(2), v1.ToTensor()]), "Compose(Resize, CenterCrop, ToTensor)"),
    (lambda: v1.Compose([v1.Compose([v1.Resize(3)])]), "Compose(Compose(Resize))"),
    (lambda: nn.Sequential(nn.ReLU(), nn.Tanh()), "Sequential(ReLU, Tanh)"),
    (lambda: Subset(TensorDataset(torch.arange(3)), [0]), "Subset(TensorDataset)"),
    (lambda: uses_a_lock, "uses_a_lock"),
    (lambda: closure(1), "closure.lambda"),
    (lambda: functools.partial(uses_a_lock, 1), "uses_a_lock"),
    (lambda: Cached(1).two, "Cached.two"),
    (lambda: Plain(transform=v1.Compose([v1.ToTensor()])), "Plain(Compose(ToTensor))"),
    (lambda: Plain, "Plain"),
    (lambda: 3, "int"),
]


@pytest.mark.parametrize("number", range(len(DESCRIBED)))
def test_a_stage_has_a_line_for_people(number: int) -> None:
    make, line = DESCRIBED[number]

    assert describe(make()) == line


def test_a_long_line_is_cut() -> None:
    line = describe(v1.Compose([v1.Resize(3)] * 50))

    assert len(line) == 100
    assert line.endswith("...")
