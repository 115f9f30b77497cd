"""Replacements of functions that change files, which notify observers before and after the change.

Covers functions of ``os``, which ``pathlib``, ``shutil`` and ``tempfile`` call, ``io.FileIO``, and library functions that open files
in C++. ``open`` notifies observers itself (``reading.py``). ``FUNCTIONS`` lists the functions.
"""

from __future__ import annotations

import copyreg
import os
import pkgutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from prefeed.interception.asking import Replacement, path_name

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC


class WriteObserver(Protocol):
    """Observer of the files that this process changes.

    **Threads and processes.** Called in the thread that changes the file; stays registered in forks. Must not raise.
    """

    def changing(self, path: str, *, below: bool) -> Any:
        """Record that a file is about to change.

        Args:
            path: Absolute path, not normalized.
            below: True if the path may be a directory, all of whose files change.

        Returns:
            Argument of the call of ``changed``, or None if it is not to be called.
        """
        ...

    def changed(self, told: Any) -> None:
        """Record that the file has changed, or that the attempt has failed."""
        ...


class FileArgument(NamedTuple):
    """Argument that names a file.

    Attributes:
        file: Path or descriptor.
        directory: Descriptor of the directory that the path is relative to, or None.
        below: As for ``WriteObserver``.
    """

    file: Any
    directory: int | None = None
    below: bool = False

    @property
    def path(self) -> str | None:
        """Absolute path, not normalized; None if it is unknown."""
        try:
            if isinstance(self.file, int):
                return os.readlink(f"/proc/self/fd/{self.file}")
            given = path_name(self.file)
            if not given:
                return None
            path = os.fsdecode(given)
            if path.startswith("/"):
                return path
            directory = os.getcwd() if self.directory is None else os.readlink(f"/proc/self/fd/{self.directory}")
            return f"{directory}/{path}"
        except (OSError, ValueError):
            return None

    @property
    def may_hold_files(self) -> bool:
        """True for a directory, or a link, which may point to one."""
        with suppress(OSError, ValueError):
            return not stat.S_ISREG(os.lstat(self.path or "").st_mode)
        return False


observers: list[WriteObserver] = []
"""Observers of this process. ``scope`` adds and removes them."""


class WriteNotice:
    """Context manager that notifies the observers before and after a change of files."""

    __slots__ = ("_names", "_told")

    def __init__(self, *names: FileArgument) -> None:
        self._names = names

    def __enter__(self) -> None:
        self._told = [
            (observer, told)
            for name in self._names
            if (path := name.path) is not None
            for observer in observers
            if (told := observer.changing(path, below=name.below)) is not None
        ]

    def __exit__(self, *_: object) -> None:
        for observer, told in self._told:
            observer.changed(told)


def is_writing(mode: Any) -> bool:
    """Return True for a mode of ``open`` that may change the file."""
    return isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode)


class WriteReplacement(Replacement):
    """Replacement of a function that changes files.

    Attributes:
        find: Returns the files that a call with these arguments changes.
    """

    find: Callable[..., Iterable[FileArgument]]


def changing_in_place_of(home: str, name: str, find: Callable[..., Iterable[FileArgument]]) -> Callable[[Any], Any]:
    """Create the factory that replaces a function of that name in that module."""

    def make(original: Any) -> Any:
        def call(self: WriteReplacement, /, *args: Any, **kwargs: Any) -> Any:
            if not observers:
                return self.original(*args, **kwargs)
            try:
                names = tuple(find(*args, **kwargs))
            except TypeError:
                names = ()  # Wrong arguments, for which the function itself raises.
            if not names:
                return self.original(*args, **kwargs)
            with WriteNotice(*names):
                return self.original(*args, **kwargs)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = getattr(original, "__doc__", None)
        call.__module__ = getattr(original, "__module__", None) or home
        call.__annotations__.clear()
        return getattr(type("WriteReplacement", (WriteReplacement,), {name: call, "home": home})(original), name)

    return make


def file_io_in_place_of(original: Any) -> Any:
    """Create a replacement of the class ``io.FileIO``, whose instances include those of the original."""

    class Type(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls is FileIO else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, original) if cls is FileIO else super().__subclasscheck__(subclass)

    class FileIO(original, metaclass=Type):  # type: ignore[misc]
        def __init__(self, file: Any, mode: Any = "r", closefd: Any = True, opener: Any = None) -> None:
            if observers and is_writing(mode) and not isinstance(file, int):
                with WriteNotice(FileArgument(file)):
                    super().__init__(file, mode, closefd, opener)
            else:
                super().__init__(file, mode, closefd, opener)

        __init__.__qualname__ = "FileIO.__init__"

    FileIO.__doc__, FileIO.__module__, FileIO.__qualname__ = original.__doc__, original.__module__, "FileIO"
    FileIO.original = original

    def reduced(cls: Any) -> Any:
        return (pkgutil.resolve_name, ("io:FileIO",)) if cls is FileIO else cls.__qualname__  # A derived class.

    copyreg.pickle(Type, reduced)
    return FileIO


def _open(path: Any, flags: Any, mode: Any = 0, *, dir_fd: Any = None) -> Iterable[FileArgument]:
    return (FileArgument(path, dir_fd),) if flags & _WRITING else ()


def _rename(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> Iterable[FileArgument]:
    names = FileArgument(src, src_dir_fd), FileArgument(dst, dst_dir_fd)
    below = any(name.may_hold_files for name in names)
    return tuple(name._replace(below=below) for name in names)


def _remove(path: Any, *, dir_fd: Any = None) -> Iterable[FileArgument]:
    name = FileArgument(path, dir_fd)
    return (name._replace(below=name.may_hold_files),)


def _truncate(path: Any, length: Any) -> Iterable[FileArgument]:
    return (FileArgument(path),)


def _link(
    src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, follow_symlinks: Any = True
) -> Iterable[FileArgument]:
    return (FileArgument(dst, dst_dir_fd),)


def _symlink(src: Any, dst: Any, target_is_directory: Any = False, *, dir_fd: Any = None) -> Iterable[FileArgument]:
    return (FileArgument(dst, dir_fd),)


def _first(*args: Any, **kwargs: Any) -> Iterable[FileArgument]:
    """Find the file in the first argument, positional or by keyword."""
    file = args[0] if args else next(iter(kwargs.values()), None)
    return (FileArgument(file),) if isinstance(file, str | bytes | os.PathLike) else ()


FUNCTIONS: Final[tuple[tuple[str, str, Callable[..., Iterable[FileArgument]]], ...]] = (
    # Module, name, function that finds the changed files in the arguments.
    ("os", "open", _open),
    ("os", "rename", _rename),
    ("os", "replace", _rename),
    ("os", "remove", _remove),
    ("os", "unlink", _remove),
    ("os", "truncate", _truncate),
    ("os", "link", _link),
    ("os", "symlink", _symlink),
    ("cv2", "imwrite", _first),
    ("cv2", "imwritemulti", _first),
    ("torch.serialization", "_open_zipfile_writer", _first),
)
