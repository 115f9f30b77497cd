"""The kernel asks for as much at once as nine of ten small objects have, and never for less than is quick."""

from __future__ import annotations

import numpy as np
import pytest

from prefeed.mount.request import SMALL_BYTES, read_bytes_for
from prefeed.sources.listing import UNKNOWN_SIZE

KIB = 1024


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], SMALL_BYTES),
        ([1 << 30, SMALL_BYTES + 1, UNKNOWN_SIZE], SMALL_BYTES),
        ([0], 128 * KIB),
        ([87 * KIB] * 100, 128 * KIB),
        ([128 * KIB] * 100, 128 * KIB),
        ([128 * KIB + 1] * 100, 256 * KIB),
        ([SMALL_BYTES] * 100, SMALL_BYTES),
        ([87 * KIB] * 91 + [SMALL_BYTES] * 9, 128 * KIB),
        ([87 * KIB] * 80 + [400 * KIB] * 20, 512 * KIB),
        ([87 * KIB] * 10 + [1 << 30] * 90, 128 * KIB),
    ],
)
def test_nine_of_ten_small_objects_come_in_one_piece(sizes: list[int], expected: int) -> None:
    assert read_bytes_for(np.array(sizes, np.uint64)) == expected
