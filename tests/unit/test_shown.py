"""What public objects say of themselves: what they are, of what, and where."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import prefeed
from prefeed.shown import shown


def double(value: Any) -> Any:
    return value * 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1] * 1000, "list of 1,000"), (double, "double"), (functools.partial(double, 1), "partial of double"), (3, "int"),
        (prefeed.mapped(range(5), double), "<MappedDataset double of range of 5>"),
        (prefeed.mapped(prefeed.mapped("abc", double), str), "<MappedDataset str of <MappedDataset double of str of 3>>"),
        (prefeed.DataLoader(range(5), batch_size=2), "<DataLoader of range of 5, batches of 2, made by this process>"),
        (
            prefeed.DataLoader("abc", batch_size=None, num_workers=2),
            "<DataLoader of str of 3, batches of a sampler of its own, made by 2 workers>",
        ),
        (prefeed.DevicePrefetcher([1], "cpu"), "<DevicePrefetcher of list of 1, to cpu, 2 batches ahead>"),
        (prefeed.DatasetCache(7, size=64, spilling=True), "<DatasetCache of session 7, 64 MiB at most, spilling to disk>"),
        (prefeed.DatasetCache.default(), "<DatasetCache of the default session>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_shown(value: object, expected: str) -> None:
    assert shown(value) == expected
