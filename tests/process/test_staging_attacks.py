"""What is outside of a copy stays as it is, whatever others put into the copy while it is made, renewed or removed."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cover import crossed
from mounting import bind, needs_root, obey_modes, tmpfs, unmount, with_own_mounts
from prefeed.config import resolve
from prefeed.copying import staging
from prefeed.copying.copies import find_copies, unstage
from prefeed.copying.space import footprint
from prefeed.copying.staging import StageRequest, StageResult, stage
from prefeed.errors import CopyError, EmptyListingError, SourceError
from prefeed.system.machine import mount_number
from prefeed.transfer.directory import DirectorySink
from process.children import child_running
from sandbox import Sandbox
from unit.jobs.trees import make, tree

FILES = {"a/b/c": b"one", "a/d": b"two", "e": b"three"}
OUTSIDE = {"b/c": b"ONE", "d": b"TWO", "x": b"X"}


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return make(sandbox.root / "origin", FILES)


@pytest.fixture
def outside(sandbox: Sandbox, origin: Path) -> Path:
    return _like(origin, make(sandbox.root / "outside", OUTSIDE))


def _like(origin: Path, outside: Path) -> Path:
    """Files of other bytes that look like the copies: the same sizes and times."""
    for path in (path for path in ("b/c", "d") if (origin / "a" / path).exists()):
        os.utime(outside / path, ns=((origin / "a" / path).stat().st_mtime_ns,) * 2)
    return outside


def staged(origin: Path, place: Path, **more: object) -> StageResult:
    return stage(StageRequest(url=str(origin), place=place, **more), resolve())  # type: ignore[arg-type]


def swapped(path: Path, outside: Path) -> None:
    """Somebody puts a link in the place of a directory."""
    path.rename(path.parent.parent / "moved")
    path.symlink_to(outside)


def after_the_scan(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    scan = staging._scan

    def then_act(*arguments: object) -> object:
        found = scan(*arguments)  # type: ignore[arg-type]
        act()
        return found

    monkeypatch.setattr(staging, "_scan", then_act)


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("what", ["dropped for room", "gone at the origin"])
def test_a_link_that_comes_behind_the_scan_is_not_followed_by_what_is_removed(
    what: str, origin: Path, outside: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = staged(origin, sandbox.memory_dir).record.data
    after_the_scan(monkeypatch, lambda: swapped(data / "a", outside))
    if what == "gone at the origin":
        (origin / "a/d").unlink()
        with pytest.raises(CopyError, match=r"a/d cannot be removed: .* goes through 'a', which is a link"):
            staged(origin, sandbox.memory_dir)
    else:
        with pytest.raises(CopyError, match=r"goes through 'a', which is a link"):
            staged(origin, sandbox.memory_dir, size_bytes=footprint(5))
    assert tree(outside) == OUTSIDE
    assert not [path for path in outside.rglob("*") if path.is_symlink()]


def test_an_old_file_that_is_not_what_was_looked_at_is_not_removed(
    origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = staged(origin, sandbox.memory_dir).record.data
    (origin / "e").unlink()
    with monkeypatch.context() as patched:
        after_the_scan(patched, lambda: (data / "e").write_bytes(b"of another program"))
        with pytest.raises(CopyError, match="e cannot be removed: has changed since it was listed"):
            staged(origin, sandbox.memory_dir)
    assert (data / "e").read_bytes() == b"of another program"
    assert staged(origin, sandbox.memory_dir).is_usable
    assert tree(data) == {path: FILES[path] for path in ("a/b/c", "a/d")}


def test_a_link_that_comes_while_files_are_made_is_not_written_through(
    origin: Path, outside: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = staged(origin, sandbox.memory_dir).record.data
    publish = DirectorySink._publish

    once = threading.Lock()  # several threads publish

    def swap_then_publish(self: DirectorySink, temporary: str, path: str) -> None:
        with once:
            if not (data / "a").is_symlink():
                swapped(data / "a", outside)
        publish(self, temporary, path)

    make(origin, {"a/b/c": b"changed", "a/d": b"changed", "a/new/one": b"new"})
    with monkeypatch.context() as patched:
        patched.setattr(DirectorySink, "_publish", swap_then_publish)
        result = staged(origin, sandbox.memory_dir)

    assert {failure.path for failure in result.failures} == {"a/b/c", "a/d", "a/new/one"}
    assert "is a link and is not followed" in result.failures[0].message
    assert not result.is_usable
    assert tree(outside) == OUTSIDE
    assert staged(origin, sandbox.memory_dir).is_usable  # the link is removed: the origin does not have it
    assert tree(data) == tree(origin)
    assert tree(outside) == OUTSIDE


@pytest.mark.parametrize("name", ["data", "a", "b"])
def test_a_link_that_comes_while_a_copy_is_removed_is_not_followed(
    name: str, origin: Path, outside: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a directory and its opening somebody puts a link in its place."""
    record = staged(origin, sandbox.memory_dir).record
    there = {"data": record.data, "a": record.data / "a", "b": record.data / "a/b"}[name]
    real_open = os.open

    def swap_then_open(path: object, flags: int, *more: object, **named: object) -> int:
        if path == name and named.get("dir_fd") is not None and not there.is_symlink():
            there.rename(sandbox.memory_dir / "moved")
            there.symlink_to(outside)
        return real_open(path, flags, *more, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", swap_then_open)
        with pytest.raises(CopyError, match="cannot be removed"):
            unstage(record, resolve())
    assert there.is_symlink()
    assert tree(outside) == OUTSIDE
    if name != "data":  # else it is no copy any more that a program may remove
        unstage(record, resolve())
        assert not Path(record.directory).exists()
    assert tree(outside) == OUTSIDE


# ---------------------------------------------------------------- mounts


def _mounts(kind: str, sandbox_root: Path, place: Path) -> None:
    origin = make(sandbox_root / "origin", FILES)
    outside = _like(origin, make(sandbox_root / "outside", OUTSIDE))

    def mount(point: Path) -> Path:
        return bind(outside, point) if kind == "bind" else _like(origin, make(tmpfs(point), OUTSIDE))

    record = staged(origin, place).record
    data = record.data
    with pytest.MonkeyPatch.context() as patched:  # mounted after the scan: neither removed in, nor written to
        after_the_scan(patched, lambda: mount(data / "a"))
        make(origin, {"a/b/c": b"changed", "a/new/one": b"new"})
        with pytest.raises(CopyError, match=f"{data}/a is in a mount"):
            staged(origin, place)
        assert tree(data / "a") == OUTSIDE
        assert set(os.listdir(data / "a")) == {"b", "d", "x"}
        unmount(data / "a")
        (origin / "a/d").unlink()
        with pytest.raises(CopyError, match=f"{data}/a: it is a mount, which is not entered; stage again"):
            staged(origin, place)
        assert tree(data / "a") == OUTSIDE
    for act in (lambda: staged(origin, place), lambda: unstage(record, resolve())):
        with pytest.raises(CopyError, match=f"{data}/a"):
            act()
        assert tree(data / "a") == OUTSIDE
    unmount(data / "a")
    for name in ("data", "incoming"):
        point = mount(Path(record.directory) / name)
        for act in (lambda: staged(origin, place), lambda: unstage(record, resolve())):
            with pytest.raises(CopyError, match=f"{record.directory}.*mount"):
                act()
            assert tree(point) == OUTSIDE
        unmount(point)
    assert staged(origin, place).is_usable
    [copy] = find_copies(str(origin), resolve())
    unstage(copy, resolve())
    assert not Path(record.directory).exists()
    assert tree(outside) == OUTSIDE


@needs_root
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_nothing_is_done_behind_a_mount_in_a_copy(kind: str, sandbox: Sandbox) -> None:
    with_own_mounts(_mounts, kind, sandbox.root, sandbox.memory_dir)


def _untold(sandbox_root: Path, place: Path) -> None:
    origin = make(sandbox_root / "origin", FILES)
    from prefeed.system import removing
    from prefeed.transfer import ordered_walk

    with pytest.MonkeyPatch.context() as patched:
        for module in (removing, ordered_walk):
            patched.setattr(module, "mount_number", lambda _: None)
        record = staged(origin, place).record
        make(tmpfs(record.data / "a/point"), OUTSIDE)
        with pytest.raises(CopyError, match="is a mount"):
            staged(origin, place)
        with pytest.raises(CopyError, match="it is a mount, which is not entered"):
            unstage(record, resolve())
        assert tree(record.data / "a/point") == OUTSIDE
        unmount(record.data / "a/point")
        unstage(record, resolve())
    assert not Path(record.directory).exists()
    assert mount_number(origin) is not None


@needs_root
def test_where_mounts_have_no_numbers_copies_are_made_and_removed_by_file_system(sandbox: Sandbox) -> None:
    with_own_mounts(_untold, sandbox.root, sandbox.memory_dir)


# ---------------------------------------------------------------- what cannot be looked at


def _unsearchable(sandbox_root: Path, place: Path) -> None:
    origin = make(sandbox_root / "origin", FILES)
    data = staged(origin, place).record.data
    (origin / "e").unlink()
    obey_modes()
    for mode in (0o400, 0o000):
        (origin / "a").chmod(mode)
        with pytest.raises(EmptyListingError, match="a/"):
            staged(origin, place)
        (origin / "a").chmod(0o700)
        assert tree(data) == FILES
    (data / "a").chmod(0)  # of the copy itself
    with pytest.raises(CopyError, match=f"{data}/a"):
        staged(origin, place)
    (data / "a").chmod(0o700)
    assert tree(data) == FILES
    assert staged(origin, place).plan.num_removed == 1


@needs_root
def test_what_may_not_be_looked_at_at_the_origin_is_not_removed_from_the_copy(sandbox: Sandbox) -> None:
    with_own_mounts(_unsearchable, sandbox.root, sandbox.memory_dir)


@pytest.mark.parametrize(("number", "side"), crossed([errno.EIO, errno.ESTALE, errno.ENOTCONN], ["origin", "copy"]))
def test_what_answers_with_an_error_is_not_taken_for_gone(
    side: str, number: int, origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = staged(origin, sandbox.memory_dir).record.data
    (origin / "e").unlink()
    scandir, broken = os.scandir, os.stat((origin if side == "origin" else data) / "a").st_ino

    def fail(directory: str | bytes | int) -> object:
        if os.stat(directory).st_ino == broken:
            raise OSError(number, os.strerror(number))
        return scandir(directory)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", fail)
        with pytest.raises((SourceError, CopyError), match="a/"):
            staged(origin, sandbox.memory_dir)
    assert tree(data) == FILES
    assert staged(origin, sandbox.memory_dir).plan.num_removed == 1


# ---------------------------------------------------------------- killed

MANY = {f"c{number % 4}/{number}": bytes([number]) * (number * 700) for number in range(40)}
POINTS = ("write", "rename", "unlink", "utime", "mkdir", "rmdir", "symlink")


def _die_at(seed: int, origin: Path, place: Path, pipe: Connection) -> None:
    """Die at the n-th call of a random step of those that change something, while a copy is renewed or removed."""
    chance = random.Random(seed)
    point, left = POINTS[seed % len(POINTS)], chance.randrange(1, 25)
    real = getattr(os, point)

    def call(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left <= 0 and chance.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*arguments, **named)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, point, call)
    staged(origin, place, size_bytes=sum(footprint(len(data)) for data in MANY.values()) // 2)
    for copy in find_copies(str(origin), resolve()):
        unstage(copy, resolve())


@pytest.mark.parametrize("seed", [*range(7), *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(7, 21))])
def test_killed_anywhere_a_copy_has_whole_files_and_the_origin_all_of_its_own(seed: int, sandbox: Sandbox) -> None:
    origin = make(sandbox.root / "origin", {**MANY, "gone/1": b"g"})
    staged(origin, sandbox.memory_dir)
    (origin / "gone/1").unlink()
    (origin / "gone").rmdir()
    changed = {path: data[::-1] + b"!" for path, data in MANY.items() if path.startswith("c1/")}
    make(origin, changed)
    expected = MANY | changed
    with child_running(_die_at, seed, origin, sandbox.memory_dir) as (process, _):
        process.join(60)

    assert tree(origin) == expected
    for data in sandbox.memory_dir.glob("prefeed-staged-*/*/data"):
        for path, content in tree(data).items():
            assert content in (MANY.get(path), expected.get(path), b"g" if path == "gone/1" else None), path
    result = staged(origin, sandbox.memory_dir)
    assert tree(result.record.data) == expected
    assert sorted(os.listdir(result.record.directory)) == ["copy.json", "data"]
    unstage(result.record, resolve())
    assert list(sandbox.memory_dir.iterdir()) == []
    assert tree(origin) == expected
