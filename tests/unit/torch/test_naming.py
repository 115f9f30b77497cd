"""Names of loaders: one for each, found where they are made, kept as long as they are."""

from __future__ import annotations

import gc
import pickle
import sys
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

from prefeed.torch import naming, patch


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PREFEED_ROOTS", "")
    patch.enable()
    yield
    patch.disable()


class Photos(list[int]):
    pass


def test_train_and_eval_loaders_of_one_class_have_names_of_their_own() -> None:
    train_loader, eval_data = DataLoader(Photos(range(8)), batch_size=4), Photos(range(4))
    eval_loader = DataLoader(Subset(eval_data, [1, 2]))
    names = [naming.name_of(loader) for loader in (train_loader, eval_loader)]
    assert names[1] == "eval_loader (Subset of Photos)"
    assert names[0].startswith("test_naming.py:")
    assert [naming.name_of(loader) for loader in (train_loader, eval_loader)] == names


def test_two_of_one_name_are_told_apart_while_both_are_there() -> None:
    def make() -> DataLoader[int]:
        loader = DataLoader(Photos([1]))
        naming.name_of(loader)
        return loader

    kept = [make(), make()]
    assert [naming.name_of(loader) for loader in kept] == ["loader (Photos)", "loader #2 (Photos)"]
    del kept
    gc.collect()
    assert naming.name_of(make()) == "loader (Photos)"  # one that is made anew each epoch is the same


def test_what_a_library_makes_in_the_place_of_a_loader_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    val_loader = DataLoader(Photos([1, 2]))
    scope: dict[str, Any] = {"__name__": "accelerate.data_loader", "DataLoader": DataLoader}
    monkeypatch.setattr("prefeed.torch.naming._is_library", lambda frame: frame.f_globals is scope)
    exec("def prepare(*loaders):\n  return [DataLoader(each.dataset) for each in loaders]", scope)
    (prepared,) = scope["prepare"](val_loader)
    del val_loader
    assert naming.name_of(prepared) == "val_loader (Photos)"


def test_loaders_made_before_anybody_looked_are_called_after_the_loop() -> None:
    patch.disable()
    valid = DataLoader(Photos([1, 2]))
    patch.enable()
    assert [list(each) for each in valid]
    assert naming.name_of(valid) == "valid (Photos)"


def test_copies_and_pickles_are_torchs_and_nothing_is_kept() -> None:
    test_loader = DataLoader(Photos([1]))
    naming.name_of(test_loader)
    assert not any("prefeed" in name for name in vars(test_loader))
    again = pickle.loads(pickle.dumps(test_loader))
    assert naming.name_of(again).endswith("(Photos)")
    keys = {id(test_loader), id(again)}
    del test_loader, again
    gc.collect()
    assert not keys & (naming._made.keys() | naming._named.keys())


def test_no_error_comes_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("a frame of another kind")

    for name in ("given_name", "iterated_name"):
        monkeypatch.setattr(naming, name, fail)
    loader = DataLoader(Photos([1]))
    assert naming.name_of(loader) == "Photos"


def test_the_rank_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "rank_of_process", lambda: 3)
    train_loader = DataLoader(Photos([1]))
    assert naming.name_of(train_loader) == "train_loader (Photos, rank 3)"


def test_a_sanity_check_is_a_trial() -> None:
    scope: dict[str, Any] = {"__name__": "lightning.pytorch.trainer.trainer", "is_trial": naming.is_trial}
    exec("def _run_sanity_check():\n  return is_trial()\ndef fit():\n  return is_trial()", scope)
    assert (scope["_run_sanity_check"](), scope["fit"]()) == (True, False)
    scope["__name__"] = "my.program"
    assert not scope["_run_sanity_check"]()
    assert sys._getframe().f_code.co_name not in naming._TRIALS
