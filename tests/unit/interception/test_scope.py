# ruff: noqa: SIM115 - an open call is what is tested
from __future__ import annotations

import builtins
import bz2
import copyreg
import functools
import io
import multiprocessing
import os
import pickle
import sys
import tarfile
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision.io.image  # noqa: F401

from prefeed.interception import (
    answer_everywhere,
    carrying,
    install,
    kept_in_place,
    original_open,
    reads_from,
    uninstall,
)

from .conftest import KeptFiles

pytestmark = pytest.mark.usefixtures("sandbox")


def everything() -> list[Any]:
    return [
        builtins.open,
        io.open,
        bz2._builtin_open,  # type: ignore[attr-defined]
        tarfile.bltn_open,  # type: ignore[attr-defined]
        np.fromfile,
        cv2.imread,
        torch.ops.image.read_file,
    ]


@pytest.fixture
def path(tmp_path: Path, reader: KeptFiles) -> Path:
    path = tmp_path / "data"
    path.write_bytes(b"kept")
    reader.keep_and_remove(path)
    return path


def all_the_same(some: list[Any], others: list[Any]) -> bool:
    return all(a is b for a, b in zip(some, others, strict=True))


def none_the_same(some: list[Any], others: list[Any]) -> bool:
    return all(a is not b for a, b in zip(some, others, strict=True))


def test_a_scope_puts_everything_back(reader: KeptFiles) -> None:
    before = everything()
    for _ in range(2):
        with reads_from(reader):
            assert none_the_same(everything(), before)
            with reads_from(reader):
                pass
            assert none_the_same(everything(), before)
        assert all_the_same(everything(), before)


EARLY: dict[str, Any] = {"open": open, "fromfile": np.fromfile, "imread": cv2.imread, "remove": os.remove, "len": len}
"""References that are bound before anything is replaced."""


def test_functions_are_pickled_whenever_a_reference_to_them_was_bound(reader: KeptFiles) -> None:
    table = dict(copyreg.dispatch_table)
    now = {
        "open": lambda: builtins.open,
        "fromfile": lambda: np.fromfile,
        "imread": lambda: cv2.imread,
        "remove": lambda: os.remove,
        "len": lambda: len,
    }
    with reads_from(reader):
        data = {name: pickle.dumps(function) for name, function in EARLY.items()}
        late = {name: pickle.dumps(now[name]()) for name in EARLY}
        for name in EARLY:
            assert pickle.loads(data[name]) is pickle.loads(late[name])
            assert pickle.loads(data[name]) == now[name]()
        assert pickle.loads(pickle.dumps([].append)) is not None  # a method of an object
    assert dict(copyreg.dispatch_table) == table
    for name, function in EARLY.items():
        assert pickle.loads(data[name]) is function
        assert pickle.loads(late[name]) is function


def read_in_child(functions: dict[str, Any], path: Path) -> None:
    with functions["open"](path, "rb") as file:
        assert file.read() == b"abc"
    assert functions["fromfile"](path, dtype=np.uint8).tobytes() == b"abc"


def test_spawned_workers_get_functions_that_were_bound_before(reader: KeptFiles, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    with reads_from(reader):
        process = multiprocessing.get_context("spawn").Process(target=read_in_child, args=(EARLY, path))
        process.start()
    process.join()
    assert process.exitcode == 0
    process.close()


def test_what_a_scope_has_put_in_place_may_stay_for_the_next_one(reader: KeptFiles, path: Path) -> None:
    before = everything()
    with pytest.raises(RuntimeError), kept_in_place(), kept_in_place():
        assert all_the_same(everything(), before)
        with reads_from(reader):
            inside = everything()
        assert none_the_same(inside, before)
        assert all_the_same(everything(), inside)
        assert not path.exists()  # no reader is asked
        with reads_from(reader):
            assert all_the_same(everything(), inside)
            assert path.read_bytes() == b"kept"
        raise RuntimeError
    assert all_the_same(everything(), before)


def test_a_scope_left_by_an_error_puts_everything_back(reader: KeptFiles) -> None:
    before = everything()
    with pytest.raises(RuntimeError), reads_from(reader):
        raise RuntimeError
    assert all_the_same(everything(), before)


def test_installed_for_good_until_uninstalled(reader: KeptFiles, path: Path) -> None:
    before = everything()
    install()
    install()
    installed = everything()
    assert none_the_same(installed, before)
    with reads_from(reader):
        assert path.read_bytes() == b"kept"
    assert all_the_same(everything(), installed)
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    uninstall()
    uninstall()
    assert all_the_same(everything(), before)


def test_the_original_open_for_a_while(reader: KeptFiles, path: Path) -> None:
    before = everything()
    with original_open():
        assert all_the_same(everything(), before)
    install()
    installed = everything()
    with original_open():
        assert builtins.open is before[0]
        assert io.open is before[1]
        assert all_the_same(everything()[2:], installed[2:])
        with reads_from(reader):  # somebody is asked: ours is there
            assert all_the_same(everything(), installed)
            assert path.read_bytes() == b"kept"
            with original_open():
                assert all_the_same(everything(), installed)
    assert all_the_same(everything(), installed)
    with pytest.raises(ZeroDivisionError), original_open():
        raise ZeroDivisionError
    assert all_the_same(everything(), installed)
    with original_open():
        uninstall()
    assert all_the_same(everything(), before)


def test_the_original_open_is_not_for_threads_that_are_answered(reader: KeptFiles, path: Path) -> None:
    install()
    answer_everywhere(reader)
    try:
        with original_open():
            assert path.read_bytes() == b"kept"
    finally:
        answer_everywhere(None)
        uninstall()


def test_what_someone_put_there_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything()
    install()
    with original_open():
        monkeypatch.setattr(builtins, "open", len)
    assert builtins.open is len  # type: ignore[comparison-overlap]
    assert io.open is not before[1]
    monkeypatch.undo()
    uninstall()
    assert all_the_same(everything(), before)


def test_uninstalled_inside_a_scope(reader: KeptFiles, path: Path) -> None:
    before = everything()
    install()
    with reads_from(reader):
        uninstall()
        assert path.read_bytes() == b"kept"
    assert all_the_same(everything(), before)


def test_installed_inside_a_scope(reader: KeptFiles) -> None:
    before = everything()
    with reads_from(reader):
        install()
    assert none_the_same(everything(), before)


def over(original: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    return theirs


def test_what_someone_put_over_ours_stays_and_works(
    reader: KeptFiles, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.open
    monkeypatch.setattr(builtins, "open", real)  # put back whatever happens
    calls: list[Any] = []
    install()
    ours = builtins.open
    builtins.open = theirs = over(ours, calls)
    uninstall()
    assert builtins.open is theirs
    assert io.open is real
    (tmp_path / "other").write_bytes(b"other")
    with open(tmp_path / "other", "rb") as file:
        assert file.read() == b"other"
    for _ in range(3):  # once more over theirs, without a ring
        with reads_from(reader), open(path, "rb") as file:
            assert file.read() == b"kept"
        assert builtins.open is theirs
    builtins.open = ours  # they leave after us
    install()
    uninstall()
    assert builtins.open is real


def test_someone_was_there_before(reader: KeptFiles, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    theirs = over(builtins.open, calls)
    monkeypatch.setattr(builtins, "open", theirs)
    with reads_from(reader):
        with open(path, "rb") as file:
            assert file.read() == b"kept"
        assert not calls
        with pytest.raises(FileNotFoundError):
            open("/no/such")
        assert calls
    assert builtins.open is theirs


def test_someone_put_the_original_back_over_ours(
    reader: KeptFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.open
    install()
    builtins.open = real
    install()
    with reads_from(reader), open(path, "rb") as file:
        assert file.read() == b"kept"
    uninstall()
    assert builtins.open is real


def test_a_module_imported_later_is_found(reader: KeptFiles, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = types.ModuleType("cv2")
    original = late.imread = lambda *args: "original"  # type: ignore[attr-defined]
    late.imdecode = lambda data, flags: bytes(data)  # type: ignore[attr-defined]
    late.error = RuntimeError  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "cv2")
    install()
    with reads_from(reader):
        pass
    monkeypatch.setitem(sys.modules, "cv2", late)
    with reads_from(reader):
        assert late.imread(str(path)) == b"kept"
    uninstall()
    assert late.imread is original


def test_a_module_that_is_being_imported_is_left_until_it_is_there(
    reader: KeptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cv2.imread
    install()
    uninstall()
    monkeypatch.setattr(cv2.__spec__, "_initializing", True, raising=False)
    install()
    assert cv2.imread is original
    monkeypatch.setattr(cv2.__spec__, "_initializing", False, raising=False)
    with reads_from(reader):
        assert cv2.imread is not original


def test_threads_come_and_go(reader: KeptFiles, path: Path) -> None:
    before = everything()
    wrong: list[Any] = []

    def read_often() -> None:
        for _ in range(200):
            with reads_from(reader), open(path, "rb") as file:
                if file.read() != b"kept":
                    wrong.append(file)

    threads = [threading.Thread(target=read_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all_the_same(everything(), before)


# Python 3.12 and later warn of what is tested here.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_a_fork(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@forks
def test_a_fork_inside_a_scope_is_inside(reader: KeptFiles, path: Path) -> None:
    before = everything()
    with reads_from(reader):
        assert in_a_fork(lambda: path.read_bytes() == b"kept")
        assert path.read_bytes() == b"kept"
    assert in_a_fork(lambda: all_the_same(everything(), before) and not path.exists())


@forks
def test_a_fork_where_replacements_stay(reader: KeptFiles) -> None:
    before = everything()

    def leaves() -> bool:
        block.close()
        return all_the_same(everything(), before)

    with ExitStack() as block:
        block.enter_context(kept_in_place())
        with reads_from(reader):
            pass
        assert in_a_fork(lambda: none_the_same(everything(), before))
        assert in_a_fork(leaves)
        assert none_the_same(everything(), before)
    assert all_the_same(everything(), before)


@forks
def test_a_fork_beside_a_thread_that_is_inside(reader: KeptFiles) -> None:
    before = everything()
    inside, go_on = threading.Event(), threading.Event()

    def stay() -> None:
        with reads_from(reader):
            inside.set()
            go_on.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert inside.wait(60)
        assert none_the_same(everything(), before)
        assert in_a_fork(lambda: all_the_same(everything(), before))
    finally:
        go_on.set()
        thread.join()
    assert all_the_same(everything(), before)


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    assert "run" not in vars(thread)
    return found


def test_a_wrapper_of_start_stays_when_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """``functools.wraps`` passes on what a replacement has as attributes."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    calls: list[Any] = []
    install()
    for owner, name in ((threading.Thread, "start"), (ThreadPoolExecutor, "submit")):
        ours = getattr(owner, name)
        monkeypatch.setattr(owner, name, functools.wraps(ours)(over(ours, calls)))
    for _ in range(3):
        uninstall()
        install()
        calls.clear()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(len, "abc").result() == 3
        assert len(calls) == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_threads_of_a_sample_whose_start_and_run_a_library_wraps(
    reader: KeptFiles, path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """As Sentry does: the function of ``run`` is called with the thread."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    if not is_first:
        install()
    start = threading.Thread.start
    calls: list[Any] = []

    @functools.wraps(start)
    def wrapped_start(self: threading.Thread) -> None:
        run = getattr(self.run, "__func__", self.run)

        @functools.wraps(run)
        def wrapped_run(*args: Any) -> Any:
            calls.append(args)
            vars(threading.current_thread()).pop("run", None)
            return run(threading.current_thread(), *args[1:])

        self.run = wrapped_run  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = wrapped_start  # type: ignore[method-assign]
    install()
    with carrying(reader):
        assert in_thread(path.read_bytes) == [b"kept"]
    assert len(calls) == 1
