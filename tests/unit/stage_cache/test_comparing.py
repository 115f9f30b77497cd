from __future__ import annotations

from collections import OrderedDict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prefeed.stage_cache.comparing import difference
from prefeed.stage_cache.rows import encode


def entry(sample: Any, **more: Any) -> bytes:
    return b"".join(encode(sample, **more))


SAMPLES: list[Any] = [
    {"image": np.full((3, 2), np.nan), "label": 1},
    (torch.tensor([-0.0, float("nan")]), "text", None, [1, 2.5]),
    Image.new("RGB", (3, 2), (1, 2, 3)),
    np.zeros(0),
    torch.zeros((), dtype=torch.bfloat16),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_is_the_same_bit_for_bit(sample: Any) -> None:
    assert difference(entry(sample), entry(sample, note=b"another note")) is None


class Words:
    """A class of the user's, which compares by identity."""

    def __init__(self, number: int, *, twice: bool) -> None:
        self.parts = [str(number), str(number)] if twice else [str(number)] * 2
        self.array = torch.zeros(3, dtype=torch.bfloat16)


def test_equal_samples_may_have_unequal_pickles() -> None:
    one, other, third = (
        entry(Words(number, twice=twice)) for number, twice in ((1000, True), (1000, False), (1001, True))
    )
    assert one != other
    assert difference(one, other) is None
    assert difference(one, third) == "sample['parts'][0]: '1000', now '1001'"


@pytest.mark.parametrize(
    ("kept", "fresh", "said"),
    [
        (1, 2, "sample: 1, now 2"),
        (1, True, "sample: type int, now bool"),
        ({"a": 1}, {"a": 1, "b": 2}, "sample: key 'b'"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "sample: the order of its keys"),
        ([1, 2], [1], "sample: length 2, now 1"),
        ((0.0,), (-0.0,), "sample[0]: 0.0, now -0.0"),
        (OrderedDict(a=1), OrderedDict(a=2), "sample['a']: 1, now 2"),
        (Fraction(1, 2), Fraction(1, 3), "sample: 2, now 3"),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), "sample: its bytes"),
        ({"x": np.zeros(3, np.uint8)}, {"x": np.zeros(3, np.int8)}, "sample['x']: dtype uint8, now int8"),
        ([torch.zeros(2, 3)], [torch.zeros(3, 2)], "sample[0]: shape (2, 3), now (3, 2)"),
        (np.zeros((2, 2)), np.array([[0, 0], [3, 4.0]]), "sample[1, 0]: 0.0, now 3.0 (2 of 4 elements differ)"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "sample[0]: 0.0, now -0.0 (1 of 1 elements differ)"),
        (Image.new("L", (2, 1)), Image.new("L", (2, 1), 9), "sample[0, 0]: 0, now 9 (2 of 2 elements differ)"),
    ],
)
def test_what_differs_is_said(kept: Any, fresh: Any, said: str) -> None:
    assert difference(entry(kept), entry(fresh)) == said
