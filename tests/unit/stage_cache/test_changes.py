"""What is set anew in a pipeline is noticed, but for what changes by itself while samples are made."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

from prefeed.stage_cache.changes import Changes
from prefeed.stage_cache.dataset import CachedDataset, MappedDataset

pytestmark = pytest.mark.usefixtures("sandbox")


class Rows:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Step:
    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, value: Any) -> Any:
        return value


class Steps(Step):
    pass


def is_changed(changes: Changes) -> bool:
    return changes.is_any() and changes.are_in(changes.now())


def test_nothing_has_changed() -> None:
    rows = Rows(a=1000, b="bb", c=np.arange(3), d=None, e=float("nan"))
    changes = Changes(MappedDataset(rows, Step(2)), CachedDataset)
    assert not changes.is_any()
    rows.b = str(b"bb", "ascii")
    rows.a = int("1000")
    assert not changes.are_in(changes.now())


CHANGES: dict[str, Any] = {
    "a number": lambda rows: setattr(rows, "a", 2),
    "a number of another type": lambda rows: setattr(rows, "a", 1.0),
    "another list": lambda rows: setattr(rows, "items", [1]),
    "a new attribute": lambda rows: setattr(rows, "new", 1),
    "one attribute less": lambda rows: delattr(rows, "a"),
    "a step's parameter": lambda rows: setattr(rows.transform, "by", 3),
    "a parameter of a step of a step": lambda rows: setattr(rows.transform.by[1], "by", 4),
    "another step": lambda rows: setattr(rows, "transform", Step(2)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "around",
    [
        pytest.param(lambda rows: rows, id="itself"),
        pytest.param(lambda rows: MappedDataset(Subset(rows, [0]), abs), id="mapped subset"),
        pytest.param(lambda rows: ConcatDataset([Rows(), rows]), id="joined"),
        pytest.param(lambda rows: Rows(inner=[rows]), id="in a list"),
    ],
)
def test_what_is_set_again_is_a_change_once(name: str, around: Any) -> None:
    rows = Rows(a=1, items=[1], transform=Steps([Step(1), Step(2)]))
    changes = Changes(around(rows), CachedDataset)
    assert not changes.is_any()
    CHANGES[name](rows)
    assert is_changed(changes)
    changes.note(changes.now())
    assert not changes.is_any()


def test_another_working_directory_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(Rows(), CachedDataset)
    monkeypatch.chdir(tmp_path)
    assert is_changed(changes)


def test_what_changes_while_a_sample_is_made_does_not_count() -> None:
    class Counting(Rows):
        pass

    rows, other = Counting(a=1, made=0), Counting(a=1, made=0)
    changes, others = Changes(rows, CachedDataset), Changes(other, CachedDataset)
    with changes.making():
        rows.made += 1
        assert not changes.is_any()
    assert not changes.is_any()
    rows.made += 1
    other.made += 1
    assert not is_changed(changes)
    assert not is_changed(others)  # of the same class
    rows.a = 2
    assert is_changed(changes)


def test_a_fork_while_another_thread_makes_a_sample_leaves_nothing_behind() -> None:
    rows = Rows(a=1)
    changes = Changes(rows, CachedDataset)
    inside, done = threading.Event(), threading.Event()

    def make() -> None:
        with changes.making():
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=make)
    thread.start()
    inside.wait(60)
    pid = os.fork()
    if pid == 0:
        rows.a = 2
        os._exit(0 if is_changed(changes) else 1)
    done.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_handle_that_is_opened_late_is_no_change() -> None:
    rows = Rows(a=1, handle=None)
    changes = Changes(rows, CachedDataset)
    rows.handle = threading.Lock()
    rows.another = threading.Lock()
    assert changes.is_any()
    assert not changes.are_in(changes.now())
    rows.handle = 3
    assert is_changed(changes)


def test_a_dataset_without_attributes() -> None:
    assert not Changes(range(3), CachedDataset).is_any()
    assert not Changes([Rows(a=1)], CachedDataset).is_any()


def test_many_attributes_are_looked_at_from_the_top() -> None:
    deep = Rows(**{f"a{number}": number for number in range(1000)})
    rows = Rows(a=1, inner=deep)
    changes = Changes(rows, CachedDataset)
    deep.a3 = 0
    assert not changes.is_any()
    rows.a = 2
    assert is_changed(changes)


# ---------------------------------------------------------------- what functions name besides

factor, offset = 2, 10
calls = 0


def helper(value: Any) -> Any:
    return value + offset


def scaled(value: Any) -> Any:
    return helper(value) * factor


def counted(value: Any) -> Any:
    global calls
    calls += 1
    return value


class Scaled(Step):
    def __call__(self, value: Any) -> Any:
        return [one * factor for one in value]


@pytest.mark.parametrize("name", ["factor", "offset", "helper"])
@pytest.mark.parametrize("step", [scaled, partial(scaled)], ids=["function", "partial"])
def test_a_global_that_is_set_again_is_a_change(monkeypatch: pytest.MonkeyPatch, step: Any, name: str) -> None:
    changes = Changes(MappedDataset(Rows(), step), CachedDataset)
    assert not changes.is_any()
    monkeypatch.setitem(globals(), name, lambda value: value)
    assert is_changed(changes)


def test_a_global_of_a_step_s_method_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Changes(Rows(transform=Scaled(1)), CachedDataset)
    monkeypatch.setitem(globals(), "factor", 3)
    assert is_changed(changes)


def test_a_variable_around_a_function_counts() -> None:
    around = 1

    def step(value: Any) -> Any:
        return value + around

    changes = Changes(MappedDataset(Rows(), step), CachedDataset)
    assert not changes.is_any()
    around = 2
    assert is_changed(changes)


def test_a_global_that_changes_while_samples_are_made_is_left_out() -> None:
    mapped = MappedDataset(Rows(), counted)
    changes = Changes(mapped, CachedDataset)
    with changes.making():
        mapped[0]
    mapped[1]
    assert not changes.is_any()
