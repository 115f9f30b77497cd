"""Finding and removing copies; ``prefeed stage --list`` and ``prefeed unstage``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from prefeed.config import Config
from prefeed.copying.holding import held, is_held
from prefeed.copying.records import (
    COPYING,
    DATA,
    GONE,
    INCOMING,
    INTERRUPTED,
    MARKER,
    REMOVING,
    CopyRecord,
    copies_of_user,
    forget,
    known_copies,
    read_record,
    write_record,
)  # fmt: skip
from prefeed.errors import CopyError, NotACopyError
from prefeed.sources.urls import canonical_url
from prefeed.system.removing import remove_tree


def list_copies(config: Config) -> list[CopyRecord]:
    """Return every copy that is known, with the state that it is in now."""
    return [replace(record, state=_state_of(record)) for record in known_copies(config)]


def _state_of(record: CopyRecord) -> str:
    directory = Path(record.directory)
    if not directory.is_dir():
        return GONE  # a tmpfs does not outlive the machine's restart
    if record.state in (COPYING, REMOVING):
        return record.state if is_held(directory) else INTERRUPTED
    return record.state


def find_copies(text: str, config: Config) -> list[CopyRecord]:
    """Return the copies that a URL of an origin, or the path of a copy, names.

    Raises:
        NotACopyError: There is none; nothing that prefeed did not make is ever removed.
    """
    url = canonical_url(text)
    by_path = _at(Path(url)) if url.startswith("/") else None
    found = [by_path] if by_path else [record for record in known_copies(config) if record.source == url]
    if not found:
        raise NotACopyError(
            f"{url} is neither a copy that prefeed made nor the origin of one; `prefeed stage --list` shows them",
            path=url,
        )
    return found


def _at(path: Path) -> CopyRecord | None:
    directory = path.parent if path.name == DATA else path
    return read_record(directory) if directory.parent.name == copies_of_user(Path("/")).name else None


def unstage(record: CopyRecord, config: Config) -> None:
    """The copy is gone, and so is what the home knew of it; one that was gone already is forgotten.

    Links in it are removed and never followed. Files that somebody reads are theirs until they close them.

    Raises:
        CopyInUseError: A process is copying.
        CopyError: Something of it cannot be removed; the next call goes on.
    """
    directory = Path(record.directory)
    try:
        with held(directory):
            if read_record(directory) is not None:
                with contextlib.suppress(OSError):  # a full disk; the record only tells lists what is going on
                    write_record(replace(record, state=REMOVING), config)
                remove_held(directory, config)
    except FileNotFoundError:
        pass
    except OSError as err:
        raise CopyError(f"{err.filename or directory} cannot be removed: {err.strerror}", path=str(directory)) from err
    forget(record.directory, config)


def remove_held(directory: Path, config: Config) -> None:
    """Nothing that prefeed made is left of a copy that the caller holds.

    Raises:
        OSError: Something of it cannot be removed.
    """
    for name in (DATA, INCOMING):
        if os.path.lexists(directory / name):
            remove_tree(directory / name)
    (directory / MARKER).unlink()
    forget(str(directory), config)
    with contextlib.suppress(OSError):  # files that prefeed did not make stay, and other copies
        directory.rmdir()
        directory.parent.rmdir()
