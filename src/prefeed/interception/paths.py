"""Names of files as users write them, made absolute without touching the disk."""

from __future__ import annotations

import os
from typing import Any

from prefeed.system.machine import OF_PROCESS


def path_name(file: Any) -> str | bytes | None:
    """Return the name that an open file would have, or None for what is no path: a descriptor, a wrong type."""
    if type(file) is str:
        return file
    try:
        return os.fspath(file)  # type: ignore[no-any-return]
    except TypeError:
        return None


def absolute_path(name: str | bytes) -> str | None:
    """Return the path that a reader is asked for, or None: only the kernel can tell which file is meant.

    ``..`` after a named directory is not resolved: the directory may be a symbolic link. Leading ones are, since
    the working directory is a physical path.
    """
    text = name if isinstance(name, str) else os.fsdecode(name)
    if "\0" in text or not text or text[-1] == "/":
        return None
    if text[0] != "/":
        return _below_working_directory(text)
    if text.startswith(OF_PROCESS):
        return None
    if "/." in text or "//" in text:
        return _normal(text)
    return text


def _normal(text: str) -> str | None:
    parts = text.split("/")
    if ".." in parts or parts[-1] == "." or text.startswith("//"):
        return None
    return "/" + "/".join(part for part in parts if part not in ("", "."))


def _below_working_directory(text: str) -> str | None:
    try:
        directory = os.getcwd()
    except OSError:
        return None
    if not directory.startswith("/") or directory.startswith("//"):  # "(unreachable)/…": outside this root
        return None
    if text[0] != "." and "/." not in text and "//" not in text and directory != "/":
        return f"{directory}/{text}"
    if text.endswith("/."):
        return None
    parts = [part for part in text.split("/") if part not in ("", ".")]
    num_up = 0
    while num_up < len(parts) and parts[num_up] == "..":
        num_up += 1
    named = parts[num_up:]
    if not named or ".." in named:
        return None
    above = directory.split("/")[1:] if directory != "/" else []
    return "/" + "/".join(above[: max(0, len(above) - num_up)] + named)
