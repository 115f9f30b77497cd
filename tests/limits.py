"""Constants of prefeed that a test replaces, in its own process and in the processes that it starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from prefeed.limits import LIMITS_VARIABLE


def set_limits(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    """Replace constants until the end of the test, in addition to those that are replaced already."""
    monkeypatch.setenv(LIMITS_VARIABLE, limits_text(os.environ.get(LIMITS_VARIABLE, ""), **limits))


def limits_text(before: str = "", /, **limits: Any) -> str:
    """Return a value of ``LIMITS_VARIABLE``; of two entries with one name the last counts."""
    return " ".join([before, *(f"{name}={value + 0}" for name, value in limits.items())]).strip()
