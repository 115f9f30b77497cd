"""What is read from frames: programs that make something and go over it, and what they call it."""

from __future__ import annotations

import sys
import sysconfig
from types import FrameType
from typing import Any

import pytest

from prefeed.torch.naming import given_name, is_made_by_library, iterated_name, line_of

LIBRARY = """
def create_loader(make):
    loader = make()
    return loader

def prepare(*made):
    return made

def hook(method):
    data_source = method()
    return data_source

def evaluate(make):
    eval_loader = make()
    return 0.5

def run(make):
    return make()
"""


class Made:
    """Stands for a loader; notes what its maker's frame told."""

    def __init__(self) -> None:
        self._see(sys._getframe(1))

    def _see(self, frame: FrameType | None) -> None:
        self.name, self.line, self.by_library = given_name(frame), line_of(frame), is_made_by_library(frame)


def names_of(text: str) -> list[str]:
    """Return what a program calls each loader that it makes, or its line."""
    library: dict[str, Any] = {"__name__": "timm.data"}
    exec(compile(LIBRARY, f"{sysconfig.get_paths()['purelib']}/timm/data.py", "exec"), library)
    seen: list[str] = []

    class Noted(Made):
        def __init__(self) -> None:
            self._see(sys._getframe(1))
            seen.append(self.name or self.line)

    scope: dict[str, Any] = {**library, "__name__": "__main__", "Loader": Noted}
    exec(compile(text, "/home/me/train.py", "exec"), scope)
    return seen


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("train_loader = Loader()", ["train_loader"]),
        ("train: object = Loader()", ["train"]),
        ("first = second = Loader()", ["first"]),
        ("if (loader := Loader()): pass", ["loader"]),
        ("def main():\n  val_loader = Loader()\nmain()", ["val_loader"]),
        ("def main():\n  loader = Loader()\n  return lambda: loader\nmain()", ["loader"]),
        ("def main():\n  global test_loader\n  test_loader = Loader()\nmain()", ["test_loader"]),
        ("loader = Loader(*(), **{})", ["loader"]),
        ("class M:\n  def __init__(self):\n    self.val_dl = Loader()\nM()", ["val_dl"]),
        ("class M: pass\nm = M()\nm.inner = M()\nm.inner.train_dl = Loader()", ["train_dl"]),
        ("loaders = {}\nloaders['train'] = Loader()", ["loaders['train']"]),
        ("loaders = {}\nfor split in 'ab':\n  loaders[split] = Loader()", ["loaders['a']", "loaders['b']"]),
        ("class M: pass\nm = M()\nm.parts = {0: {}}\nm.parts[0]['x'] = Loader()", ["parts['x']"]),
        ("loaders = {x: Loader() for x in ('train', 'val')}", ["loaders['train']", "loaders['val']"]),
        ("def make():\n  return {n: Loader() for n in 'ab'}\nall = make()", ["all['a']", "all['b']"]),
        ("def main(root):\n  loaders = {n: Loader() for n in 'ab' if root}\nmain('x')", ["loaders['a']", "loaders['b']"]),
        ("loaders = [Loader() for _ in range(2)]", ["loaders", "loaders"]),
        ("def make():\n  return Loader()\nvalid_loader = make()", ["valid_loader"]),
        ("def get_valid():\n  return Loader()\nprint(get_valid() is None)", ["get_valid"]),
        ("make = lambda: Loader()\nvalid_loader = make()", ["valid_loader"]),
        ("class Own(Loader):\n  def __init__(self):\n    super().__init__()\ntest_loader = Own()", ["test_loader"]),
        ("loader_train = create_loader(Loader)", ["loader_train"]),
        ("wrapped = list(prepare(Loader()))", ["wrapped"]),
        ("class M:\n  def val_dataloader(self):\n    return Loader()\nhook(M().val_dataloader)", ["val_dataloader"]),
        ("class M:\n  def val_dataloader(self):\n    return create_loader(Loader)\nx = hook(M().val_dataloader)", ["val_dataloader"]),
        ("\nrun(Loader)", ["train.py:2"]),
        ("\nevaluate(Loader)", ["eval_loader at train.py:2"]),
        ("a, b = (Loader(),\n        Loader())", ["train.py:1", "train.py:2"]),
        ("[\n Loader(), 1]", ["train.py:2"]),
        ("Loader()", ["train.py:1"]),
        ("for _ in [Loader()]: pass", ["train.py:1"]),
        ("def make(split):\n  loaders = {}\n  loaders[split] = Loader()\nmake('x')", ["loaders[split]"]),
    ],
)  # fmt: skip
def test_what_a_value_that_is_made_is_called(text: str, names: list[str]) -> None:
    assert names_of(text) == names


def test_of_code_without_a_file() -> None:
    scope: dict[str, Any] = {"Loader": Made}
    exec("train_loader = Loader()", scope)
    assert scope["train_loader"].name == "train_loader"
    scope = {"Loader": Made, "seen": []}
    exec("seen.append(Loader() or 1)", scope)
    assert scope["seen"][0].line == "<string>:1"


def test_no_variable_of_a_function_is_kept_alive() -> None:
    """To look at them would make a dictionary of them, which lives as long as the function runs."""

    class Large:
        pass

    def main() -> int:
        large = Large()
        before = sys.getrefcount(large)
        loader = Made()
        assert loader.name == "loader"
        return sys.getrefcount(large) - before

    assert main() == 0


class Gone:
    """Something that a loop goes over; says how the program calls it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __iter__(self) -> Any:
        self.names.append(iterated_name(sys._getframe(1), self))
        return iter(())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("for _ in train_loader: pass", "train_loader"),
        ("def run(loader):\n  for _ in loader: pass\nrun(train_loader)", "train_loader"),
        ("def run():\n  for _ in train_loader: pass\nrun()", "train_loader"),
        ("for _ in hidden(): pass", "train.py:1"),
        ("def run(loader):\n  for _ in loader: pass\nrun(hidden())", "loader"),
        ("def run(loader):\n  for _ in enumerate(loader, 1): pass\nrun(hidden())", "loader"),
        ("def run(loader):\n  return [x for x in loader]\nrun(hidden())", "loader"),
        ("class M: pass\nm = M()\nm.val_dl = hidden()\nfor _ in enumerate(m.val_dl): pass", "val_dl"),
        ("def run(a, b):\n  for _ in zip(a, b): pass\nrun(hidden(), ())", "train.py:2"),
    ],
)  # fmt: skip
def test_what_a_loop_goes_over_is_called(text: str, name: str) -> None:
    value = Gone()
    scope: dict[str, Any] = {"__name__": "__main__", "hidden": lambda: value}
    if "train_loader" in text:
        scope["train_loader"] = value
    exec(compile(text, "/home/me/train.py", "exec"), scope)
    assert value.names == [name]
