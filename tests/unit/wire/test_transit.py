"""Files that are handed to a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prefeed.wire.endpoint import put_in_transit, remove_in_transit


def test_what_is_handed_over_is_there_until_it_is_taken_or_left(tmp_path: Path) -> None:
    (tmp_path / "socket").touch()
    names = [
        put_in_transit(tmp_path, [np.arange(2, dtype=np.int64).data, b"paths"], suffix=".i64"),
        put_in_transit(tmp_path, []),
    ]
    assert Path(names[0]).read_bytes() == b"\0" * 8 + b"\1" + b"\0" * 7 + b"paths"
    assert Path(names[0]).suffix == ".i64"
    assert Path(names[1]).stat().st_mode & 0o077 == 0
    remove_in_transit(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["socket"]


def test_what_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"some"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        put_in_transit(tmp_path, parts())
    assert list(tmp_path.iterdir()) == []
