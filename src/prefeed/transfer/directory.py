"""Lists a directory, writes files to it, and removes files from it.

``DirectoryPlace`` implements ``places.Root`` and ``places.Target``. ``DirectorySink`` creates each file in a work directory, reads it back and
renames it to its path, so that readers see the whole file or none.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prefeed.errors import CopyError, JobConflictError, JobError, PrefeedError, TruncatedBodyError
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import RangeSource
from prefeed.system.locks import is_named, open_locked
from prefeed.system.machine import process_mark
from prefeed.system.removing import Boundary, empty_directory
from prefeed.transfer.engine import Body
from prefeed.transfer.entries import Entry, is_copy, parents_of, stamp_of, why_unsafe
from prefeed.transfer.mounted import MountTracker, is_below
from prefeed.transfer.ordered_walk import OrderedWalk, Problem, WalkEvents
from prefeed.transfer.patterns import WORK_NAME, Rules
from prefeed.transfer.rooted_dir import NO_ROOM, RootedDir, raise_translated

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_RESERVED_FROM_BYTES: Final = 1024**2
"""Size from which disk blocks are allocated before writing, so that a file that does not fit fails at once."""

_MODE_BITS: Final = 0o7777
_MAX_PROBLEMS: Final = 10_000
"""Maximum number of problems that are reported one by one."""

_SYNC_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Error codes of file systems that cannot sync a single directory."""

_PROBED_TIME: Final = 1_700_000_001_123_456_789
_TIME_STEPS: Final = (1, 100, 1000, 10**6, 10**9)
"""Time resolutions of file systems, in nanoseconds, smallest first."""

_COARSEST_STEP: Final = 2 * 10**9


class DirectoryPlace:
    """A directory that a job lists, writes to or removes from. See ``places.Root`` and ``places.Target``."""

    has_times = True

    def __init__(self, root: str, *, make: bool = False) -> None:
        """Use the absolute path ``root``. With ``make``, create the directory if it does not exist.

        Raises:
            JobError: The directory cannot be created.
        """
        self.url = root
        self.one_file_system: bool | None = None
        self.excluded_ids: frozenset[tuple[int, int]] = frozenset()
        self.directories: list[str] = []
        self.broken_links: list[str] = []
        self.problems: list[Problem] = []
        self.num_problems = 0
        self._hidden: set[str] = set()
        self.on_mount: Callable[[str, str], None] = lambda _path, _point: None
        self._step_ns = _TIME_STEPS[0]
        self._rooted: RootedDir | None = None
        self._base = _nearest_existing_ancestor(root)
        try:
            if make:
                os.makedirs(root, exist_ok=True)
        except OSError as err:
            raise JobError(f"{root} cannot be made: {err.strerror}", path=root) from err
        self.mounts: MountTracker = MountTracker(root)

    @property
    def rooted(self) -> RootedDir:
        """The directory, opened at the first use.

        Raises:
            JobError: The directory cannot be opened.
        """
        if self._rooted is None:
            try:
                self._rooted = RootedDir(self.url)
            except OSError as err:
                raise JobError(f"{self.url} cannot be used: {err.strerror}", path=self.url) from err
            self._rooted.one_file_system = self.one_file_system is not False
        return self._rooted

    def list_in_order(self, rules: Rules) -> Iterator[Entry]:
        """See ``Root.list_in_order``. Links are followed, except into ``excluded_ids``.

        Broken links are added to ``broken_links`` and unreadable paths to ``problems``, because such files may still exist. With
        ``one_file_system``, mounts below the root or on the way of a link are not entered.
        """

        def on_broken(path: str) -> None:
            if self._may_include(rules, path):
                self.broken_links.append(path)

        def on_mount(path: str, number: int | None) -> bool:
            self._record_mount(path, number)
            return not path or not self.one_file_system

        tree = OrderedWalk(
            self.url,
            follow=True,
            never=self.excluded_ids,
            enters=rules.takes_below,
            events=WalkEvents(
                directory=self.directories.append,
                broken=on_broken,
                problem=self._record_problems(rules),
                link=self.mounts.record_link,
                mount=on_mount,
            ),
        )
        return _filter_entries(tree, rules, self.mounts)

    def list_target(self, rules: Rules) -> Iterator[Entry]:
        """See ``Target.list_target``. Mounts are entered, too. Unreadable paths are added to ``problems``."""
        if not os.path.isdir(self.url):  # a dry run has created no directory
            return iter(())

        def on_mount(path: str, number: int | None) -> bool:
            self._record_mount(path, number)
            return True

        tree = OrderedWalk(
            self.url,
            follow=False,
            never=self.excluded_ids,
            enters=rules.takes_below,
            events=WalkEvents(problem=self._record_problems(rules), mount=on_mount),
        )
        return _filter_entries(tree, rules)

    def _record_mount(self, path: str, number: int | None) -> None:
        self.mounts.record_mount(path, number)
        if path in self.mounts.points:
            self.on_mount(path, self.mounts.points[path])

    @staticmethod
    def _may_include(rules: Rules, path: str) -> bool:
        """Return whether the rules may include a path, which is a file or a directory."""
        return not path or rules.takes(path) or rules.takes_below(path)

    def _record_problems(self, rules: Rules) -> Callable[[Problem], None]:
        def note(problem: Problem) -> None:
            if self._may_include(rules, problem.path):
                self.num_problems += 1
                self._hidden.add(problem.path if self.num_problems <= _MAX_PROBLEMS else "")
                if self.num_problems <= _MAX_PROBLEMS:
                    self.problems.append(problem)

        return note

    def was_removed(self, path: str) -> bool:
        """Return whether a listed file was removed: its directory is readable and no longer contains it."""
        for above in parents_of(path):
            try:
                return path[len(above) :].strip("/") not in os.listdir(f"{self.url}/{above}")
            except FileNotFoundError:
                path = above  # perhaps removed together with its directory
            except OSError:
                return False
        return False

    def hides(self, path: str) -> bool:
        """Return whether a file may exist at a path without being listed, because the path or a parent was unreadable."""
        return not self._hidden.isdisjoint((path, *parents_of(path)))

    def list_directories(self, rules: Rules) -> list[str]:
        """Return the directories that are not excluded, parents first. Links are not followed."""
        found: list[str] = []
        events = WalkEvents(
            directory=found.append, mount=lambda path, _: not path or self.one_file_system is False
        )  # fmt: skip
        for _ in OrderedWalk(self.url, follow=False, never=self.excluded_ids, enters=rules.takes_below, events=events):
            pass
        return found

    def source(self) -> RangeSource:
        """See ``Root.source``."""
        return PosixSource(self.url)

    def describe_left_out(self, entries: Iterable[Entry]) -> str:
        """See ``Root.describe_left_out``. Empty, because ``problems`` and ``broken_links`` contain these paths."""
        return ""

    def why_unwritable(self, path: str) -> str | None:
        """See ``Target.why_unwritable``."""
        return why_unsafe(path)

    def is_same(self, source: Entry, found: Entry) -> bool:
        """See ``Target.is_same``."""
        return is_copy(source, found, step_ns=self._step_ns)

    def open_sink(self, origin: RangeSource, *, perms: bool, durable: bool = False) -> DirectorySink:
        """See ``Target.open_sink``."""
        try:
            sink = DirectorySink(
                self.rooted, modes_of=origin if perms else None, durable_up_to=self._base if durable else None
            )
        except OSError as err:
            raise JobError(f"{self.url} cannot be written to: {err.strerror}", path=self.url) from err
        self._step_ns = sink.step_ns
        return sink

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
        """See ``Root.remove_unchanged``. Files that are reached through a link stay, because they are not below the root."""
        for one in entries:
            yield one, self.rooted.remove_unchanged(one)

    def close(self) -> None:
        """See ``Root.close``."""
        if self._rooted is not None:
            self._rooted.close()

    def status(self, path: str) -> os.stat_result | None:
        """Stat a path, following links. Return None if it does not exist.

        Raises:
            OSError: The path cannot be read.
        """
        try:
            return os.stat(f"{self.url}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def why_not_copied(self, one: Entry, original: os.stat_result | None, *, folds_case: bool) -> str:
        """Return why no copy would remain here after its original is removed; empty if one would.

        Args:
            one: The object as the source listed it.
            original: Current status of the original, if it is a file.
            folds_case: True if the copy may exist in different upper and lower case.
        """
        try:
            found = self.rooted.status(one.path)
        except (OSError, PrefeedError) as err:
            return f"its copy cannot be looked at: {err}"
        if found is None and folds_case:
            return ""
        if found is None or not stat.S_ISREG(found.st_mode) or found.st_size != one.size_bytes >= 0:
            return "its copy is gone, or is another file now"
        in_mount = is_below(one.path, self.mounts.points.keys() - {""})
        if original is not None and os.path.samestat(found, original) and (found.st_nlink == 1 or in_mount):
            return f"{self.url}/{one.path} is the same file, by another mount"
        return ""


def _filter_entries(tree: Iterable[Entry], rules: Rules, mounts: MountTracker | None = None) -> Iterator[Entry]:
    for one in tree:
        if mounts is not None and mounts.empty:
            mounts.record_file(one.path)
        if rules.is_past_end(one.path):
            return
        if rules.takes(one.path):
            yield one


class DirectorySink:
    """Creates files in a work directory, verifies them, and renames them to their paths.

    Files that a killed process left in the work directory are removed by the next sink. See ``places.TargetSink``.

    **Threads**: ``write`` and ``link`` may be called by many threads, for different paths.

    Args:
        root: Directory for the files.
        work: Directory above the work directory, and the name of the work directory; by default a directory in the root. Both must be
            on one file system.
        mode: Mode of new files, before the umask.
        modes_of: Source whose files' mode and owner are copied.
        durable_up_to: If given, each file is synced before it gets its name, and ``make_durable`` syncs the directories up to this
            one.

    Attributes:
        step_ns: Resolution of file times, in nanoseconds.
        folds_case: True if ``A`` and ``a`` are the same name.
        num_same: See ``TargetSink``.
        bytes_same: See ``TargetSink``.

    Raises:
        JobConflictError: Another process writes there.
        OSError: The directory is not writable.
    """

    num_same: int
    bytes_same: int
    step_ns: int
    folds_case: bool

    def __init__(
        self,
        root: RootedDir,
        *,
        work: tuple[RootedDir, str] | None = None,
        mode: int = 0o666,
        modes_of: RangeSource | None = None,
        durable_up_to: str | None = None,
    ) -> None:
        self.num_same = self.bytes_same = 0
        self._lock = threading.Lock()
        self._root, self._mode = root, mode
        self._modes_of = modes_of
        self._durable_up_to = durable_up_to
        self._changed_directories = {""}
        self._compared: set[str] = set()
        self._names = itertools.count()
        self._mark = process_mark()
        self._holder, self._work_name = work or (root, WORK_NAME)
        made = _lock_work_directory(self._holder, self._work_name)
        self._work = RootedDir(self._holder.locate(self._work_name), descriptor=made)
        try:
            self.step_ns, self.folds_case = _probe(made)
        except BaseException:
            self._work.close()
            raise

    def expect_same(self, path: str) -> None:
        """See ``TargetSink.expect_same``."""
        self._compared.add(path)

    def write(self, entry: Entry, body: Body) -> None:
        """See ``Sink.write``."""
        path = entry.path
        try:
            if path in self._compared and self._has_same_bytes(path, body):
                self._set_time(path, stamp_of(entry, body.version))
                with self._lock:
                    self.num_same += 1
                    self.bytes_same += body.size_bytes
            else:
                self._create(entry, body)
        except OSError as err:
            if isinstance(err, PrefeedError):  # some errors of origins are also OSErrors
                raise
            raise_translated(err, self._root.locate(path))
        if self._durable_up_to is not None:
            with self._lock:
                self._changed_directories.update(parents_of(path))

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link, replacing a file or link of this path."""
        temporary = self._new_name()
        try:
            os.symlink(target, temporary, dir_fd=self._work.descriptor)
            self._publish(temporary, path)
        except OSError as err:
            self._discard(temporary)
            raise_translated(err, self._root.locate(path))
        except PrefeedError:
            self._discard(temporary)
            raise

    def make_directory(self, path: str) -> None:
        """See ``TargetSink.make_directory``."""
        try:
            with self._root.directory(path, make=True):
                pass
        except OSError as err:
            raise_translated(err, self._root.locate(path))

    def make_durable(self) -> None:
        """See ``TargetSink.make_durable``. Directories are synced from the lowest to the first that existed before."""
        assert self._durable_up_to is not None, "files were not written so"
        where = self._root.root
        try:
            for path in sorted(self._changed_directories, key=len, reverse=True):
                where = self._root.locate(path)
                with self._root.directory(path) as descriptor:
                    _sync_directory(descriptor)
            for where in _ancestors_up_to(self._root.root, self._durable_up_to):
                try:
                    descriptor = os.open(where, _DIRECTORY)
                except PermissionError:
                    os.sync()  # this user may not open the directory and therefore cannot sync it alone
                    break
                try:
                    _sync_directory(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as err:
            raise JobError(
                f"{where} cannot be written to its disk: {err.strerror}; nothing was deleted", path=where
            ) from err

    def close(self) -> None:
        """See ``TargetSink.close``."""
        _empty(self._work.descriptor)
        with contextlib.suppress(OSError):
            os.rmdir(self._work_name, dir_fd=self._holder.descriptor)
        self._work.close()  # also releases the lock

    def _create(self, entry: Entry, body: Body) -> None:
        temporary = self._new_name()
        try:
            self._write(temporary, entry, body)
            self._publish(temporary, entry.path)
        except BaseException:
            self._discard(temporary)
            raise

    def _new_name(self) -> str:
        # The lock may not reach another node, which then empties the directory. The mark keeps names of two processes apart.
        return f"{self._mark}-{next(self._names)}"

    def _publish(self, temporary: str, path: str) -> None:
        with self._root.parent_of(path, make=True) as (parent, name):
            os.rename(temporary, name, src_dir_fd=self._work.descriptor, dst_dir_fd=parent)

    def _discard(self, temporary: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=self._work.descriptor)

    def _write(self, temporary: str, entry: Entry, body: Body) -> None:
        where = self._root.locate(entry.path)
        file = os.open(temporary, _FLAGS, self._mode, dir_fd=self._work.descriptor)
        try:
            if body.size_bytes >= _RESERVED_FROM_BYTES:
                _reserve(file, body.size_bytes)
            written = 0
            for chunk in body.chunks():
                view = memoryview(chunk).cast("B")
                _write_all(file, view)
                if not _reads_back(file, written, view):
                    raise CopyError(f"{where}: the bytes read back are not the bytes written", path=where)
                written += len(view)
            if written != body.size_bytes:
                raise TruncatedBodyError(f"{where}: received {written} of {body.size_bytes} bytes", path=where)
            if self._modes_of is not None:
                _copy_owner_and_mode(file, self._modes_of.locate(entry.path))
            stamp = stamp_of(entry, body.version)
            if stamp is not None:
                os.utime(file, ns=(stamp, stamp))
            if self._durable_up_to is not None:
                os.fsync(file)
        finally:
            os.close(file)

    def _has_same_bytes(self, path: str, body: Body) -> bool:
        try:
            with self._root.parent_of(path) as (parent, name):
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
            if self._durable_up_to is not None:
                os.fsync(file)  # an earlier sync may have written it without syncing
            return offset == body.size_bytes
        finally:
            os.close(file)

    def _set_time(self, path: str, stamp: int | None) -> None:
        if stamp is not None:
            with self._root.parent_of(path) as (parent, name):
                os.utime(name, ns=(stamp, stamp), dir_fd=parent, follow_symlinks=False)


def _write_all(file: int, view: memoryview) -> None:
    while len(view):
        view = view[os.write(file, view) :]


def _reads_back(file: int, offset: int, view: memoryview) -> bool:
    """Return whether the file contains these bytes at the offset."""
    while len(view):
        found = os.pread(file, min(len(view), 1 << 20), offset)
        if not found or found != bytes(view[: len(found)]):  # comparing views is 20 times slower
            return False
        offset += len(found)
        view = view[len(found) :]
    return True


def _copy_owner_and_mode(file: int, original: str) -> None:
    status = os.stat(original)
    if os.geteuid() == 0:
        os.chown(file, status.st_uid, status.st_gid)
    os.chmod(file, status.st_mode & _MODE_BITS)  # after chown, which clears set-id bits


def _reserve(file: int, size_bytes: int) -> None:
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError as err:
        if err.errno in NO_ROOM:
            raise
        # Some file systems do not support allocation. There a full disk is detected by the write.


def _sync_directory(descriptor: int) -> None:
    """Sync a directory, or everything if the file system cannot sync a single directory."""
    try:
        os.fsync(descriptor)
    except OSError as err:
        if err.errno not in _SYNC_UNSUPPORTED:
            raise
        os.sync()


def _nearest_existing_ancestor(root: str) -> str:
    """Return the nearest directory above ``root`` that exists."""
    above = os.path.dirname(root)
    while above != "/" and not os.path.isdir(above):
        above = os.path.dirname(above)
    return above


def _ancestors_up_to(root: str, last: str) -> Iterator[str]:
    """Yield the directories above ``root``, up to ``last``."""
    while root not in (last, "/"):
        root = os.path.dirname(root)
        yield root


def _lock_work_directory(holder: RootedDir, name: str) -> int:
    """Create and lock an empty work directory. Return its descriptor, which holds the lock."""

    def opened() -> int:
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=holder.descriptor)
            try:
                return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=holder.descriptor)
            except FileNotFoundError:
                continue  # another process removed it in between
            except OSError as err:
                raise OSError(err.errno, f"{name} in it cannot be used: {err.strerror}; remove it") from err

    try:
        work = open_locked(opened, lambda work: is_named(work, name, within=holder.descriptor))
    except BlockingIOError as err:
        raise JobConflictError(
            f"another sync writes to {holder.root}; wait until it is done, or stop it", path=holder.root
        ) from err
    if Boundary.of(work) != Boundary.of(holder.descriptor):
        os.close(work)
        raise OSError(errno.EXDEV, f"{name} in it is a mount; unmount that")
    _empty(work)
    return work


def _empty(work: int) -> None:
    # We create no directories here. Those of others are removed, too, except mounts.
    for _ in empty_directory(work, WORK_NAME, within=Boundary.of(work), failed=lambda _where, _err: None):
        pass


def _probe(work: int) -> tuple[int, bool]:
    """Return the resolution of file times in nanoseconds, and whether ``A`` and ``a`` are the same name."""
    name = "probe"
    os.close(os.open(name, _FLAGS, 0o600, dir_fd=work))
    os.utime(name, ns=(_PROBED_TIME, _PROBED_TIME), dir_fd=work)
    seen = os.stat(name, dir_fd=work).st_mtime_ns
    folds_case = _exists(work, name.upper())
    os.unlink(name, dir_fd=work)
    return next((step for step in _TIME_STEPS if _PROBED_TIME // step * step == seen), _COARSEST_STEP), folds_case


def _exists(directory: int, name: str) -> bool:
    return os.access(name, os.F_OK, dir_fd=directory)
