"""A directory as a place of jobs."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from prefeed.copying.engine import Body
from prefeed.copying.versions import COARSEST_STEP, TIME_STEPS
from prefeed.errors import JobConflictError, JobError, PrefeedError, TruncatedBodyError
from prefeed.jobs.beneath import Beneath, raise_translated
from prefeed.jobs.listed import Listed, is_same_in_directory, stamp_of
from prefeed.jobs.patterns import Rules
from prefeed.jobs.trees import WORK_NAME, Tree
from prefeed.machine import process_mark
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import RangeSource

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_PROBED_TIME: Final = 1_700_000_001_123_456_789
_RESERVED_FROM_BYTES: Final = 1024**2
_MODE_BITS: Final = 0o7777


class DirectoryPlace:
    """See ``places.Root`` and ``places.Target``."""

    has_times = True

    def __init__(self, root: str, *, make: bool = False) -> None:
        """Use ``root``, an absolute path; ``make``: it is made if it is not there.

        Raises:
            JobError: It cannot be made.
        """
        self.url = root
        self.enters_not: frozenset[tuple[int, int]] = frozenset()
        self.directories: list[str] = []
        self.broken_links: list[str] = []
        self._step_ns = TIME_STEPS[0]
        self._beneath: Beneath | None = None
        try:
            if make:
                os.makedirs(root, exist_ok=True)
        except OSError as err:
            raise JobError(f"{root} cannot be made: {err.strerror}", path=root) from err

    @property
    def beneath(self) -> Beneath:
        """The directory, open from now on.

        Raises:
            JobError: It cannot be opened.
        """
        if self._beneath is None:
            try:
                self._beneath = Beneath(self.url)
            except OSError as err:
                raise JobError(f"{self.url} cannot be used: {err.strerror}", path=self.url) from err
        return self._beneath

    def list_in_order(self, rules: Rules) -> Iterator[Listed]:
        """See ``Root.list_in_order``. Links are followed, but into the places of ``enters_not``.

        What leads nowhere is put by in ``broken_links``: what was behind it is not known to be gone.
        """

        def on_broken(path: str) -> None:
            if rules.takes(path) or rules.takes_below(path):
                self.broken_links.append(path)

        tree = Tree(
            self.url,
            follow=True,
            never=self.enters_not,
            enters=rules.takes_below,
            on_directory=self.directories.append,
            on_broken=on_broken,
        )
        return _taken(tree, rules)

    def list_target(self, rules: Rules) -> Iterator[Listed]:
        """See ``Target.list_target``."""
        if not os.path.isdir(self.url):  # a dry run makes nothing
            return iter(())
        return _taken(Tree(self.url, follow=False, never=self.enters_not, enters=rules.takes_below), rules)

    def directories_there(self, rules: Rules) -> list[str]:
        """Return the directories that are not excluded, those above before those below; links are not followed."""
        found: list[str] = []
        for _ in Tree(self.url, follow=False, enters=rules.takes_below, on_directory=found.append):
            pass
        return found

    def source(self) -> RangeSource:
        """See ``Root.source``."""
        return PosixSource(self.url)

    def is_same(self, source: Listed, found: Listed) -> bool:
        """See ``Target.is_same``."""
        return is_same_in_directory(source, found, step_ns=self._step_ns)

    def open_sink(self, origin: RangeSource, *, perms: bool) -> DirectorySink:
        """See ``Target.open_sink``."""
        sink = DirectorySink(self.beneath, modes_of=origin if perms else None)
        self._step_ns = sink.step_ns
        return sink

    def remove_unchanged(self, listed: Iterable[Listed]) -> Iterator[tuple[Listed, str]]:
        """See ``Root.remove_unchanged``. What lies behind a link stays: it is not below the root."""
        for one in listed:
            yield one, self._remove_unchanged(one)

    def close(self) -> None:
        """See ``Root.close``."""
        if self._beneath is not None:
            self._beneath.close()

    def _remove_unchanged(self, one: Listed) -> str:
        try:
            with self.beneath.parent_of(one.path) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if one.is_file and not stat.S_ISREG(status.st_mode):
                    return "is a link, which is left alone"
                if (status.st_size, status.st_mtime_ns) != (one.size_bytes, one.mtime_ns):
                    return "has changed since it was listed"
                os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return ""
        except PrefeedError as err:
            return str(err)
        except OSError as err:
            return err.strerror or str(err)
        return ""


def _taken(tree: Iterable[Listed], rules: Rules) -> Iterator[Listed]:
    for one in tree:
        if rules.is_past_end(one.path):
            return
        if rules.takes(one.path):
            yield one


class DirectorySink:
    """Makes files in a directory of its own below the destination, reads them back, and renames them.

    What a killed one left there is removed by the next. See ``places.TargetSink``.
    """

    def __init__(self, beneath: Beneath, *, modes_of: RangeSource | None) -> None:
        self.num_same = self.bytes_same = 0
        self._lock = threading.Lock()
        self._beneath = beneath
        self._modes_of = modes_of
        self._expected: dict[str, tuple[Listed, bool]] = {}
        self._names = itertools.count()
        self._mark = process_mark()
        try:
            self._work = _made_and_held(beneath)
        except OSError as err:
            raise JobError(f"{beneath.root} cannot be written to: {err.strerror}", path=beneath.root) from err
        try:
            self.step_ns, self.folds_case = _probe(self._work)
        except OSError as err:
            os.close(self._work)
            raise JobError(f"{beneath.root} cannot be written to: {err.strerror}", path=beneath.root) from err

    def expect(self, listed: Listed, *, compare: bool) -> None:
        """See ``TargetSink.expect``."""
        self._expected[listed.path] = (listed, compare)

    def write(self, path: str, body: Body) -> None:
        """See ``Sink.write``."""
        listed, compare = self._expected[path]
        where = f"{self._beneath.root}/{path}"
        try:
            if compare and self._holds(path, body):
                self._stamp_there(path, listed)
                with self._lock:
                    self.num_same += 1
                    self.bytes_same += body.size_bytes
            else:
                self._make(path, listed, body)
        except OSError as err:
            if isinstance(err, PrefeedError):  # some of the origin's are OSErrors too
                raise
            raise_translated(err, where)
        self._expected.pop(path, None)  # kept for another try when this one failed

    def make_directory(self, path: str) -> None:
        """See ``TargetSink.make_directory``."""
        try:
            with self._beneath.directory(path, make=True):
                pass
        except OSError as err:
            raise_translated(err, f"{self._beneath.root}/{path}")

    def close(self) -> None:
        """See ``TargetSink.close``."""
        _empty(self._work)
        with contextlib.suppress(OSError):
            os.rmdir(WORK_NAME, dir_fd=self._beneath.descriptor)
        os.close(self._work)  # and with it the lock

    def _make(self, path: str, listed: Listed, body: Body) -> None:
        temporary = (
            f"{self._mark}-{next(self._names)}"  # the lock may not reach another node, which empties the directory
        )
        try:
            self._write(temporary, path, listed, body)
            with self._beneath.parent_of(path, make=True) as (parent, name):
                os.rename(temporary, name, src_dir_fd=self._work, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._work)
            raise

    def _write(self, temporary: str, path: str, listed: Listed, body: Body) -> None:
        file = os.open(temporary, _FLAGS, 0o666, dir_fd=self._work)
        try:
            if body.size_bytes >= _RESERVED_FROM_BYTES:
                _reserve(file, body.size_bytes)
            written = 0
            for chunk in body.chunks():
                view = memoryview(chunk).cast("B")
                _write_all(file, view)
                if not _reads_back(file, written, view):
                    raise JobError(f"{self._beneath.root}/{path}: what was read back is not what was written")
                written += len(view)
            if written != body.size_bytes:
                raise TruncatedBodyError(f"{path}: {written} bytes came, {body.size_bytes} were announced", path=path)
            if self._modes_of is not None:
                _take_over(file, self._modes_of.locate(path))
            _stamp(file, listed)
        finally:
            os.close(file)

    def _holds(self, path: str, body: Body) -> bool:
        try:
            with self._beneath.parent_of(path) as (parent, name):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=parent)
        except OSError:
            return False
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size != body.size_bytes:
                return False
            offset = 0
            for chunk in body.chunks():
                view = memoryview(chunk).cast("B")
                if not _reads_back(file, offset, view):
                    return False
                offset += len(view)
            return offset == body.size_bytes
        finally:
            os.close(file)

    def _stamp_there(self, path: str, listed: Listed) -> None:
        with self._beneath.parent_of(path) as (parent, name):
            stamp = stamp_of(listed)
            if stamp is not None:
                os.utime(name, ns=(stamp, stamp), dir_fd=parent, follow_symlinks=False)


def _write_all(file: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(file, view) :]


def _reads_back(file: int, offset: int, view: memoryview) -> bool:
    """Return whether the file has these bytes there."""
    while len(view):
        found = os.pread(file, min(len(view), 1 << 20), offset)
        if not found or found != bytes(
            view[: len(found)]
        ):  # views are compared one byte after the other, 20 times slower
            return False
        offset += len(found)
        view = view[len(found) :]
    return True


def _stamp(file: int, listed: Listed) -> None:
    stamp = stamp_of(listed)
    if stamp is not None:
        os.utime(file, ns=(stamp, stamp))


def _take_over(file: int, original: str) -> None:
    status = os.stat(original)
    if os.geteuid() == 0:
        os.chown(file, status.st_uid, status.st_gid)
    os.chmod(file, status.st_mode & _MODE_BITS)  # after chown, which takes set-id bits away


def _reserve(file: int, size_bytes: int) -> None:
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError as err:
        if err.errno in (28, 122):  # ENOSPC, EDQUOT: found out at the begin
            raise


def _made_and_held(beneath: Beneath) -> int:
    """Return the open directory for files being made, empty, this process's alone until it is closed."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(WORK_NAME, 0o700, dir_fd=beneath.descriptor)
        try:
            work = os.open(
                WORK_NAME, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=beneath.descriptor
            )
        except FileNotFoundError:
            continue  # another one removes it at this moment
        except OSError as err:
            raise JobError(f"{beneath.root}/{WORK_NAME} cannot be used: {err.strerror}; remove it") from err
        try:
            fcntl.flock(work, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(work), os.stat(WORK_NAME, dir_fd=beneath.descriptor, follow_symlinks=False)):
                _empty(work)
                return work
        except FileNotFoundError:
            pass
        except BlockingIOError as err:
            os.close(work)
            raise JobConflictError(
                f"another sync writes to {beneath.root}; wait until it is done, or stop it", path=beneath.root
            ) from err
        except OSError:
            os.close(work)
            raise
        os.close(work)


def _empty(work: int) -> None:
    for name in os.listdir(work):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=work)
    for name in os.listdir(work):  # nobody makes directories here; a stranger's go too
        shutil.rmtree(name, dir_fd=work, ignore_errors=True)


def _probe(work: int) -> tuple[int, bool]:
    """Return the smallest difference in time, in nanoseconds, that files there keep; and whether ``A`` and ``a`` are one name."""
    name = "probe"
    os.close(os.open(name, _FLAGS, 0o600, dir_fd=work))
    os.utime(name, ns=(_PROBED_TIME, _PROBED_TIME), dir_fd=work)
    seen = os.stat(name, dir_fd=work).st_mtime_ns
    folds_case = _is_there(work, name.upper())
    os.unlink(name, dir_fd=work)
    return next((step for step in TIME_STEPS if _PROBED_TIME // step * step == seen), COARSEST_STEP), folds_case


def _is_there(directory: int, name: str) -> bool:
    return os.access(name, os.F_OK, dir_fd=directory)
