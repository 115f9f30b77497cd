"""Directories as dictionaries."""

from __future__ import annotations

from pathlib import Path


def tree(root: Path) -> dict[str, bytes]:
    """Return the files below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def make(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a directory."""
    root.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def names(root: Path) -> set[str]:
    """Return which files are below a directory, some of which may come and go meanwhile."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
