"""What LMDB and the system say of a tier, as errors of the store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from prefeed.errors import StoreDamagedError, StoreError, TierFullError

DAMAGE: Final = (
    lmdb.BadTxnError, lmdb.CorruptedError, lmdb.CursorFullError, lmdb.IncompatibleError, lmdb.InvalidError, lmdb.NotFoundError,
    lmdb.PageFullError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.VersionMismatchError,
)  # fmt: skip
"""What LMDB says of files that are not, or no longer, what they should be: the first time, or when it is asked again."""


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Turn what is raised inside into errors of the store in this directory."""
    try:
        yield
    except StoreError:
        raise
    except lmdb.BadValsizeError as err:
        raise ValueError(f"LMDB takes no value of this size: {err}") from err
    except (lmdb.Error, OSError) as err:
        if isinstance(err, lmdb.MapFullError) or (isinstance(err, OSError) and err.errno == errno.ENOSPC):
            raise TierFullError(
                f"no room in {directory}: {err}; free space on its file system (--shm-size in a container), lower "
                "PREFEED_MEMORY, or name another directory with PREFEED_MEMORY_DIR"
            ) from err
        if isinstance(err, DAMAGE):
            raise StoreDamagedError(f"the store in {directory} is damaged: {err}") from err
        raise StoreError(f"the store in {directory} failed: {err}; remove the directory if it is damaged") from err
