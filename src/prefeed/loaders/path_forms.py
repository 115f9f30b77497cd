"""How the texts that a dataset keeps become the paths of files: as they are, joined with a directory, or completed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

from prefeed.loaders.declared import absolute

Form = Callable[[str], str]
"""Makes the absolute path of a text."""

_MOST_TEXT: Final = 4096
_MOST_ASKED: Final = 64
"""Files that are asked whether they are there."""

_MOST_LISTED: Final = 1 << 16
_MOST_DIRECTORIES: Final = 24
_MOST_SUFFIXES: Final = 2
_MOST_WORDS: Final = 3
_MOST_VALUES: Final = 64

_NAMES_OF_DIRECTORIES: Final = ("root", "dir", "path", "folder", "base", "home", "prefix")


def text_of(value: Any) -> str | None:
    """Return the text of what may be a path; None when it is of another type."""
    kind = type(value)
    if kind is str:
        return str(value)
    if issubclass(kind, str):
        return str.__str__(value)
    try:
        return os.fsdecode(value) if issubclass(kind, (bytes, PurePath)) or hasattr(kind, "__fspath__") else None
    except Exception:  # noqa: BLE001 - it is the user's
        return None


def directories_of(attributes: Mapping[str, Any]) -> list[str]:
    """Return the directories that attributes name, or values in their dicts; those of files that they name come last."""
    found: list[str] = []
    of_files: list[str] = []
    for name, value in _with_values(attributes):
        text = text_of(value)
        if not text or len(text) > _MOST_TEXT or "\n" in text or "\0" in text:
            continue
        if (
            "/" in text
            or issubclass(type(value), PurePath)
            or any(word in name.lower() for word in _NAMES_OF_DIRECTORIES)
        ):
            found.append(absolute(text))
            if os.path.splitext(text)[1]:
                of_files.append(os.path.dirname(found[-1]))
    return list(dict.fromkeys((*found, *of_files)))


def _with_values(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if type(value) is SimpleNamespace or type(value).__name__ == "Namespace":
            value = vars(value)
        if type(value) is dict:
            if len(value) <= _MOST_VALUES:
                yield from ((str(key), inner) for key, inner in value.items() if type(key) is str)
        else:
            yield name, value


class PathForms:
    """Finds out how texts of a dataset become paths; few files are asked for, and few directories listed, each once.

    Args:
        covers: Whether a file is for the cache, by its absolute path.
        check_time: Raises when all of it takes too long.
    """

    def __init__(self, covers: Callable[[str], bool], check_time: Callable[[], None]) -> None:
        self._covers = covers
        self._check_time = check_time
        self._are_files: dict[str, bool] = {}
        self._listings: dict[str, list[tuple[str, bool]]] = {}

    def of(self, texts: Sequence[str], directories: Sequence[str]) -> Iterator[Form]:
        """Yield how texts like these become paths below a root; nothing where they do not.

        Args:
            texts: Some of a column.
            directories: That may hold the files of relative ones.
        """
        texts = [text for text in dict.fromkeys(texts) if text]
        if not texts or any(len(text) > _MOST_TEXT or "\0" in text for text in texts):
            return
        if all(text.startswith("/") for text in texts):
            is_line = len(texts[0].split()) > 1 and not self._is_file(texts[0])
            if not is_line and any(self._covers(absolute(text)) for text in texts):
                yield absolute
                return
        else:
            found = list(self._joined(texts, directories))
            yield from found
            if found:
                return
        if all(len(text.split()) > 1 for text in texts):  # lines of a list: "a.jpg 3"
            for place in range(min(_MOST_WORDS, *(len(text.split()) for text in texts))):
                for form in self.of([text.split()[place] for text in texts], directories):
                    yield partial(_word, form, place)

    def _joined(self, texts: Sequence[str], directories: Sequence[str]) -> Iterator[Form]:
        """Yield the directories that have these files: of those that are named, or else right below them."""
        named = [
            directory for directory in dict.fromkeys((*directories, *_working_directory())) if self._reaches(directory)
        ]
        below: list[str] = []
        for place in (named[:_MOST_DIRECTORIES], below):
            found = [directory for directory in place if self._holds(directory, texts)]
            if found:
                yield from (partial(_join, directory, "", "") for directory in found)
                return
            if place is not below:
                below += [inner for directory in named for inner in self._directories_in(directory)][:_MOST_DIRECTORIES]
        if len(texts) > 1 and not any(text.endswith("\n") or " " in text.strip() for text in texts):
            yield from self._completed(texts, [*named, *below][:_MOST_DIRECTORIES])

    def _completed(self, texts: Sequence[str], directories: Sequence[str]) -> Iterator[Form]:
        """Yield how names without a suffix, or a prefix, become those of the files in a directory."""
        for directory in dict.fromkeys(directories):
            names = [name for name, is_directory in self._list(directory) if not is_directory]
            rests = [_rests(text, names) for text in texts[:4]]
            common = sorted(set.intersection(*rests), key=lambda rest: (len("".join(rest)), rest))
            yield from (partial(_join, directory, *rest) for rest in common[:_MOST_SUFFIXES])

    def _reaches(self, directory: str) -> bool:
        return self._covers(f"{directory.rstrip('/')}/.")

    def _holds(self, directory: str, texts: Sequence[str]) -> bool:
        paths = dict.fromkeys(_join(directory, "", "", text) for text in (texts[0], texts[-1]))
        return all(map(self._is_file, paths))

    def _is_file(self, path: str) -> bool:
        found = self._are_files.get(path)
        if found is None:
            self._check_time()
            if len(self._are_files) >= _MOST_ASKED:
                return False
            try:
                found = stat.S_ISREG(os.stat(path).st_mode)
            except (OSError, ValueError):
                found = False
            self._are_files[path] = found
        return found

    def _directories_in(self, directory: str) -> list[str]:
        return [os.path.join(directory, name) for name, is_directory in self._list(directory) if is_directory]

    def _list(self, directory: str) -> list[tuple[str, bool]]:
        """Return names and whether each is a directory, sorted; of a large one some."""
        found = self._listings.get(directory)
        if found is None:
            found = []
            with contextlib.suppress(OSError, ValueError), os.scandir(directory) as entries:
                for entry in entries:
                    if len(found) % 1024 == 0:
                        self._check_time()
                    if len(found) == _MOST_LISTED:
                        break
                    found.append((entry.name, entry.is_dir()))
            self._listings[directory] = found = sorted(found)
        return found


def _working_directory() -> list[str]:
    try:
        return [os.getcwd()]
    except OSError:  # it is gone
        return []


def _join(directory: str, prefix: str, suffix: str, text: str) -> str:
    return absolute(os.path.join(directory, f"{prefix}{text}{suffix}"))


def _word(form: Form, place: int, text: str) -> str:
    return form(text.split()[place])


def _rests(text: str, names: Sequence[str]) -> set[tuple[str, str]]:
    """Return what the names that contain a text have before and after it."""
    found = set()
    for name in names:
        before, middle, after = name.partition(text)
        if middle:
            found.add((before, after))
    return found
