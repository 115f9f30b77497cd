"""Reading ahead: what ends it early."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_sources import MemorySource
from prefeed.errors import ObjectNotFoundError, TransientSourceError
from prefeed.packing.writing import read_ahead
from prefeed.sources.manifest_writer import build_manifest
from prefeed.types import FetchedObject


class Failing(MemorySource):
    """One object is gone, all others are not answered for."""

    def fetch(self, path: str) -> FetchedObject:
        if path == "a":
            raise ObjectNotFoundError("a is gone")
        raise TransientSourceError(f"{path}: no answer")


@pytest.mark.usefixtures("sandbox")
def test_an_error_does_not_wait_for_what_is_not_answered(tmp_path: Path) -> None:
    source = Failing(dict.fromkeys("abcdef", b"x"))
    manifest = build_manifest(source, tmp_path)
    with pytest.raises(ObjectNotFoundError, match="a is gone"):
        list(read_ahead(source, manifest, range(6), deadline_seconds=10_000.0))


@pytest.mark.usefixtures("sandbox")
def test_who_leaves_does_not_wait_for_what_is_not_answered(tmp_path: Path) -> None:
    source = Failing(dict.fromkeys("abcdef", b"x"))
    manifest = build_manifest(source, tmp_path)
    stream = read_ahead(source, manifest, range(6), deadline_seconds=10_000.0)
    with pytest.raises(ObjectNotFoundError):
        next(stream)
    stream.close()
