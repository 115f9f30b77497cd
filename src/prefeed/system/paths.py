"""Compares places: absolute paths without ``.``, ``..`` and double slashes, or URLs."""

from __future__ import annotations

import os


def is_in(place: str, root: str) -> bool:
    """Return whether a place is another one or below it, by name."""
    return place == root or place.startswith(f"{root.rstrip('/')}/")


def path_below(place: str, root: str) -> str:
    """Return the path of a place that is in ``root``, relative to that."""
    return place[len(root) :].removeprefix("/")


def overlap_by_name(one: str, other: str) -> bool:
    """Return whether one of two places contains the other, or both are equal, by name."""
    return is_in(one, other) or is_in(other, one)


def is_in_resolved(place: str, root: str) -> bool:
    """Return whether a place is another one or below it, after resolving links."""
    return is_in(_real(place), _real(root))


def _real(place: str) -> str:
    return os.path.realpath(place) if place.startswith("/") else place
