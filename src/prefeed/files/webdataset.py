"""WebDataset reads ``prefeed:s3://bucket/shard.tar`` through the node's cache: an entry in its table of schemes."""

from __future__ import annotations

import sys
from typing import Any, Final

from prefeed.after_import import after_import
from prefeed.files.opening import open as open_object

_SCHEME: Final = "prefeed"
_MODULE: Final = "webdataset.gopen"


def register() -> None:
    """WebDataset opens ``prefeed:`` URLs from now on, whether it is imported already or later. Idempotent."""
    after_import(_MODULE, _add)


def _add() -> None:
    sys.modules[_MODULE].gopen_schemes.setdefault(_SCHEME, _gopen)


def _gopen(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> Any:
    """Return a shard as a file; it is read in order, so that all of it is read ahead.

    Args:
        url: ``prefeed:`` or ``prefeed::`` or ``prefeed://``, and the URL of the shard.
        mode: As WebDataset gives it.
        bufsize: Taken for WebDataset's sake.
    """
    inner = url.removeprefix(f"{_SCHEME}://").removeprefix(f"{_SCHEME}::").removeprefix(f"{_SCHEME}:")
    return open_object(inner, mode, readahead=True)
