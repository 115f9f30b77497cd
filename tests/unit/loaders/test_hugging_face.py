"""The order of the files that Hugging Face's datasets streams, by a stand-in with the names on which we rely."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from prefeed.loaders import hugging_face
from prefeed.loaders.hugging_face import bare, following

URLS = [f"prefeed://s3://b/{number}.parquet" for number in range(5)]


def split(gen_kwargs: dict[str, Any], max_num_jobs: int) -> list[dict[str, Any]]:
    return [
        {key: [value] for key, value in zip(gen_kwargs, values, strict=True)}
        for values in zip(*gen_kwargs.values(), strict=True)
    ]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found: Any = ModuleType("datasets.iterable_dataset")
    found._split_gen_kwargs = split
    monkeypatch.setitem(sys.modules, found.__name__, found)
    monkeypatch.setattr(hugging_face, "_replaced", [])
    hugging_face._see()
    hugging_face._see()
    yield found
    hugging_face._following.clear()


def test_each_file_is_followed_by_the_one_that_is_streamed_next(module: Any) -> None:
    shards = module._split_gen_kwargs({"files": [*URLS], "row_groups_list": [None] * 5}, max_num_jobs=5)
    assert [shards[number]["files"] for number in range(5)] == [[url] for url in URLS]  # as a list
    assert following("s3://b/0.parquet") is None
    for number, shard in enumerate(islice(shards, 1, None), 1):  # as ``datasets`` resumes
        assert shard["files"] == [URLS[number]]
        assert following(f"s3://b/{number}.parquet") == (None if number == 4 else f"s3://b/{number + 1}.parquet")
    # the next epoch, in another order
    for shard in module._split_gen_kwargs({"files": URLS[::-1]}, max_num_jobs=5):
        name = bare(shard["files"][0])
        number = int(name[-9])
        assert following(name) == (f"s3://b/{number - 1}.parquet" if number else None)


def test_a_file_in_several_parts_is_followed_by_another_file(module: Any) -> None:
    files = [URLS[0], URLS[0], URLS[1]]
    shards = iter(module._split_gen_kwargs({"files": files, "row_groups_list": [(0,), (1,), (0,)]}, max_num_jobs=3))
    next(shards)
    assert following("s3://b/0.parquet") is None
    next(shards)
    assert following("s3://b/0.parquet") == "s3://b/1.parquet"


def test_files_of_others_are_not_followed(module: Any) -> None:
    for arguments in ({"files": ["s3://b/x", "/data/y"], "names": ["a", "b"]}, {"numbers": [1, 2]}):
        shards = module._split_gen_kwargs(arguments, max_num_jobs=2)
        assert type(shards) is list
        assert len(shards) == 2
    assert not hugging_face._following


def test_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("datasets.iterable_dataset")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(hugging_face, "_replaced", [])
    hugging_face._see()
    assert not hasattr(module, "_split_gen_kwargs")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("prefeed://s3://b/x", "s3://b/x"),
        ("prefeed::s3://b/x", "s3://b/x"),
        ("prefeed://file:///d/x", "/d/x"),
        ("prefeed:///d/x", "/d/x"),
        ("prefeed://set/x", "set/x"),
    ],
)
def test_names_are_without_the_scheme_of_prefeed(url: str, name: str) -> None:
    assert bare(url) == name
