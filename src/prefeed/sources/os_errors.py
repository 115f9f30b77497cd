"""Which error of the tree stands for one of the operating system's."""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

from prefeed.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    PassedThroughError,
    SourceError,
    TransientSourceError,
)

_PERMANENT: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP}
)
"""What asking a second time does not change; whoever opens the file is told in the system's own words."""


def raise_translated(err: OSError | ValueError, path: str, *, listing: bool = False) -> NoReturn:
    """Raise the error of the tree that stands for one of the operating system's.

    Args:
        err: What the system said.
        path: What was asked for.
        listing: It was asked for by a listing, not by who reads it.
    """
    if isinstance(err, SourceError):
        raise err
    if isinstance(err, FileNotFoundError):
        advice = "check the path, and that the storage is mounted on this node" if listing else "was it removed?"
        raise ObjectNotFoundError(f"{path} does not exist; {advice}", path=path) from err
    if isinstance(err, NotADirectoryError | IsADirectoryError):
        wanted = "directory; pass the directory that holds the files" if listing else "file"
        raise ObjectNotFoundError(f"{path} is not a {wanted}", path=path) from err
    if isinstance(err, PermissionError):
        raise AccessDeniedError(f"{path} may not be read by user {os.geteuid()}; change its mode", path=path) from err
    if isinstance(err, OSError) and err.errno in _PERMANENT and not listing:
        raise PassedThroughError(f"{path}: {err.strerror}", path=path) from err
    if isinstance(err, ValueError):
        raise ObjectNotFoundError(f"{path!r} cannot be the name of a file: {err}", path=path) from err
    raise TransientSourceError(f"{path}: {err.strerror or err}", path=path, errno=err.errno) from err
