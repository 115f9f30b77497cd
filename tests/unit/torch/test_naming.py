"""Names of loaders: the class of the dataset and a number, as long as there is the loader."""

from __future__ import annotations

import gc
import pickle
import sys
from typing import Any

from torch.utils.data import DataLoader, Subset

from prefeed.torch import naming


class Photos(list[int]):
    pass


def test_loaders_of_one_class_are_numbered_in_the_order_of_their_first_use() -> None:
    loaders = [DataLoader(Photos([1])), DataLoader(Subset(Photos([1, 2]), [1])), DataLoader([1])]
    names = [naming.name_of(loader) for loader in loaders]
    assert names == ["Photos-1", "Photos-2", "list-1"]
    assert [naming.name_of(loader) for loader in reversed(loaders)] == names[::-1]


def test_a_loader_that_is_created_anew_in_each_epoch_keeps_its_name() -> None:
    kept = DataLoader(Photos([1]))
    naming.name_of(kept)
    names = []
    for _ in range(3):
        loader = DataLoader(Photos([1]))
        names.append(naming.name_of(loader))
        del loader
        gc.collect()
    assert names == ["Photos-2"] * 3


def test_nothing_is_kept_of_loaders_and_nothing_is_added_to_them() -> None:
    loader = DataLoader(Photos([1]))
    naming.name_of(loader)
    assert not any("prefeed" in name for name in vars(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert naming.name_of(again) == "Photos-2"
    keys = {id(loader), id(again)}
    del loader, again
    gc.collect()
    assert not keys & naming._names.keys()


def test_a_sanity_check_is_a_trial() -> None:
    scope: dict[str, Any] = {"__name__": "lightning.pytorch.trainer.trainer", "is_trial": naming.is_trial}
    exec("def _run_sanity_check():\n  return is_trial()\ndef fit():\n  return is_trial()", scope)
    assert (scope["_run_sanity_check"](), scope["fit"]()) == (True, False)
    scope["__name__"] = "my.program"
    assert not scope["_run_sanity_check"]()
    assert sys._getframe().f_code.co_name not in naming._TRIALS
