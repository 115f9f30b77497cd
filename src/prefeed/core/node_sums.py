"""Sums the counts of several node servers, for a process that uses more than one sample set. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from prefeed.core.origins import summed
from prefeed.types import Statistics


def sum_statistics(counts: Sequence[Statistics]) -> Statistics:
    """Return the sum of all counts. The best hit ratio is the lowest one."""
    return Statistics() if not counts else _sum_fields(counts)


def _sum_fields(counts: Sequence[Any]) -> Any:
    found = {one.name: [getattr(each, one.name) for each in counts] for one in fields(counts[0])}
    return type(counts[0])(**{name: _sum(name, values) for name, values in found.items()})


def _sum(name: str, values: list[Any]) -> Any:
    if name == "best_hit_ratio":
        return min((value for value in values if value is not None), default=None)
    if name == "origins":
        return summed(*values)
    if name == "epochs":
        return tuple(epoch for value in values for epoch in value)
    if name == "errors":
        return {code: sum(value.get(code, 0) for value in values) for value in values for code in value}
    return _sum_fields(values) if is_dataclass(values[0]) else sum(values)
