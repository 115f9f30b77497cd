"""prefeed.auto, switched on for a while."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def auto() -> Iterator[None]:
    """Inside it, every loader is served."""
    enabled: Any = importlib.import_module("prefeed.auto")
    enabled.enable()
    try:
        yield
    finally:
        enabled.disable()
