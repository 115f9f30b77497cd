"""One tree of errors: whatever module defines one, it crosses a process boundary and has a code of its own."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import prefeed
import prefeed_bench
from prefeed.errors import PrefeedError


def every_error() -> set[type[PrefeedError]]:
    for package in (prefeed, prefeed_bench):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(("__main__", "prefeed.auto", "sitecustomize")):  # these act when imported
                importlib.import_module(module.name)
    return set(below(PrefeedError))


def below(cls: type[PrefeedError]) -> list[type[PrefeedError]]:
    return [cls, *(deeper for child in cls.__subclasses__() for deeper in below(child))]


def test_codes_are_unique() -> None:
    codes = sorted(cls.code for cls in every_error())

    assert codes == sorted(set(codes))


def test_every_error_pickles() -> None:
    for cls in every_error():
        err = pickle.loads(pickle.dumps(cls("gone", path="a")))

        assert (type(err), str(err), err.details) == (cls, "gone", {"path": "a"})
