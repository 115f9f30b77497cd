"""Parsers of sizes and numbers in settings and options."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import re
from typing import Final

from prefeed.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_UNITS: Final = {
    "": 1, "b": 1,
    "k": KIB, "kb": 1000, "kib": KIB,
    "m": MIB, "mb": 1000**2, "mib": MIB,
    "g": GIB, "gb": 1000**3, "gib": GIB,
    "t": 1024 * GIB, "tb": 1000**4, "tib": 1024 * GIB,
}  # fmt: skip


EVERYTHING: Final = 1 << 62
"""``auto`` for a limit: the whole file system, except for the share that must stay free."""


def parse_bytes(value: str | int) -> int:
    """Parse a size in bytes: ``8GiB``, ``500MB``, ``4096``. ``k``, ``m``, ``g`` and ``t`` alone are binary units.

    Raises:
        ConfigError: The value is not a size.
    """
    number, unit = number_of(value), ""
    if number is None:
        match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value if isinstance(value, str) else "")
        if match is None or match[2].lower() not in _UNITS:
            raise ConfigError(f"{value!r} is not a size; write it like 8GiB, 500MB or 4096")
        number, unit = float(match[1]) if "." in match[1] else int(match[1]), match[2].lower()
    if number < 0:
        raise ConfigError(f"a size cannot be negative: {value!r}")
    if not unit and number != int(number):
        raise ConfigError(f"{value!r} is not a whole number of bytes; write the unit, as in {number:g}GiB")
    size = int(number * _UNITS[unit])
    if size > EVERYTHING:
        raise ConfigError(f"{value!r} is more than any machine has; write it like 8GiB, 500MB or 4096")
    return size


def size_text(size_bytes: int) -> str:
    """Return a size as settings are written: ``512MiB``, ``auto`` for ``EVERYTHING``."""
    if size_bytes == EVERYTHING:
        return "auto"
    for unit, text in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{text}"
    return f"{size_bytes}B" if size_bytes else "0"


def number_of(value: object) -> float | int | None:
    """Convert a Python or numpy number; return None for text and other types.

    Raises:
        ConfigError: The value is a boolean, NaN or infinite.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        raise ConfigError(f"{value!r} is not a number; write one")
    if hasattr(value, "__index__"):
        return operator.index(value)
    if not isinstance(value, numbers.Real):  # numpy's are such
        return None
    if not math.isfinite(value):
        raise ConfigError(f"{value!r} is not a number that can be used here")
    number = float(value)
    return int(number) if number.is_integer() else number


def whole(value: str | int) -> int:
    """Parse a whole number.

    Raises:
        ConfigError: The value is not a whole number.
    """
    number = number_of(value)
    if number is None and isinstance(value, str):
        with contextlib.suppress(ValueError):
            number = int(value)
    if not isinstance(number, int):
        raise ConfigError(f"{value!r} is not a whole number")
    return number
