from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefeed import datasets


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    datasets._readers.close()
