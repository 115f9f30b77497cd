"""Functions that change files, replaced by such as say which file it is, before it changes and after.

``open`` says so itself (``reading.py``). Here are those of ``os``, on which ``pathlib``, ``shutil`` and ``tempfile``
stand, ``io.FileIO``, and functions of libraries that open their files in C++.
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
    """Is told of files that this process changes.

    **Threads and processes.** Called in the thread that changes the file; goes with a fork. Must not raise.
    """

    def changing(self, path: str, *, below: bool) -> Any:
        """A file is about to change.

        Args:
            path: Absolute; not normalized.
            below: It may be a directory, and all that lies below it goes with it.

        Returns:
            What ``changed`` is given; None: no call of it.
        """
        ...

    def changed(self, told: Any) -> None:
        """The file has changed, or the attempt failed."""
        ...


class Named(NamedTuple):
    """A file as an argument names it.

    Attributes:
        file: Path or descriptor.
        directory: Descriptor that the path is relative to.
        below: As for ``WriteObserver``.
    """

    file: Any
    directory: int | None = None
    below: bool = False

    @property
    def path(self) -> str | None:
        """Absolute, or None where that cannot be told; not normalized."""
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
        """True for a directory, and for a link, which may lead to one."""
        with suppress(OSError, ValueError):
            return not stat.S_ISREG(os.lstat(self.path or "").st_mode)
        return False


observers: list[WriteObserver] = []
"""Who is told, in this process; ``scope`` adds and removes them."""


class Telling:
    """Inside it, these files change: the observers are told before and after."""

    __slots__ = ("_names", "_told")

    def __init__(self, *names: Named) -> None:
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


class Changing(Replacement):
    """In place of a function that changes files.

    Attributes:
        find: Takes the function's arguments; returns the files that it changes.
    """

    find: Callable[..., Iterable[Named]]


def changing_in_place_of(home: str, name: str, find: Callable[..., Iterable[Named]]) -> Callable[[Any], Any]:
    """Return what makes the replacement of a function of that name in that module."""

    def make(original: Any) -> Any:
        def call(self: Changing, /, *args: Any, **kwargs: Any) -> Any:
            if not observers:
                return self.original(*args, **kwargs)
            try:
                names = tuple(find(*args, **kwargs))
            except TypeError:
                names = ()  # a call that the function itself refuses
            if not names:
                return self.original(*args, **kwargs)
            with Telling(*names):
                return self.original(*args, **kwargs)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = getattr(original, "__doc__", None)
        call.__module__ = getattr(original, "__module__", None) or home
        call.__annotations__.clear()
        return getattr(type("Changing", (Changing,), {name: call, "home": home})(original), name)

    return make


def file_io_in_place_of(original: Any) -> Any:
    """Return a class in place of ``io.FileIO``, that has every file of the original as an instance."""

    class Type(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original) if cls is FileIO else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, original) if cls is FileIO else super().__subclasscheck__(subclass)

    class FileIO(original, metaclass=Type):  # type: ignore[misc]
        def __init__(self, file: Any, mode: Any = "r", closefd: Any = True, opener: Any = None) -> None:
            if observers and is_writing(mode) and not isinstance(file, int):
                with Telling(Named(file)):
                    super().__init__(file, mode, closefd, opener)
            else:
                super().__init__(file, mode, closefd, opener)

        __init__.__qualname__ = "FileIO.__init__"

    FileIO.__doc__, FileIO.__module__, FileIO.__qualname__ = original.__doc__, original.__module__, "FileIO"
    FileIO.original = original

    def reduced(cls: Any) -> Any:
        return (pkgutil.resolve_name, ("io:FileIO",)) if cls is FileIO else cls.__qualname__  # a class derived from it

    copyreg.pickle(Type, reduced)
    return FileIO


def _open(path: Any, flags: Any, mode: Any = 0, *, dir_fd: Any = None) -> Iterable[Named]:
    return (Named(path, dir_fd),) if flags & _WRITING else ()


def _rename(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> Iterable[Named]:
    names = Named(src, src_dir_fd), Named(dst, dst_dir_fd)
    below = any(name.may_hold_files for name in names)
    return tuple(name._replace(below=below) for name in names)


def _remove(path: Any, *, dir_fd: Any = None) -> Iterable[Named]:
    name = Named(path, dir_fd)
    return (name._replace(below=name.may_hold_files),)


def _truncate(path: Any, length: Any) -> Iterable[Named]:
    return (Named(path),)


def _link(
    src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, follow_symlinks: Any = True
) -> Iterable[Named]:
    return (Named(dst, dst_dir_fd),)


def _symlink(src: Any, dst: Any, target_is_directory: Any = False, *, dir_fd: Any = None) -> Iterable[Named]:
    return (Named(dst, dir_fd),)


def _first(*args: Any, **kwargs: Any) -> Iterable[Named]:
    """Find the file in the first argument, however it is called."""
    file = args[0] if args else next(iter(kwargs.values()), None)
    return (Named(file),) if isinstance(file, str | bytes | os.PathLike) else ()


FUNCTIONS: Final[tuple[tuple[str, str, Callable[..., Iterable[Named]]], ...]] = (
    # module, name, how its files are found among the arguments
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
