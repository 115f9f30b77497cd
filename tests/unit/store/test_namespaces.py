"""Whose processes may use LMDB's table of readers: known by comparing, and where that cannot be, not assumed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.store import namespaces
from prefeed.store.namespaces import (
    is_foreign,
    is_of_other_machine,
    namespace_of,
    pid_namespace,
    record_namespace,
    try_take_table,
)


def test_a_namespace_has_one_name() -> None:
    own = pid_namespace()
    assert own == pid_namespace()
    assert own.endswith(f"-{os.stat('/proc/self/ns/pid').st_ino}")
    assert not is_foreign(own)
    assert is_foreign(f"{own}0")
    assert is_foreign("")


def test_one_is_recorded_at_a_time(tmp_path: Path) -> None:
    assert namespace_of(tmp_path) == ""
    (tmp_path / "namespace-another-1").touch()
    assert namespace_of(tmp_path) == "another-1"
    record_namespace(tmp_path)
    record_namespace(tmp_path)
    assert namespace_of(tmp_path) == pid_namespace()
    (tmp_path / "namespace-another-1").touch()
    assert namespace_of(tmp_path) == "", "whoever recorded it was killed over it"


def test_a_table_that_is_unused_may_be_taken(tmp_path: Path) -> None:
    (tmp_path / "namespace-another-1").touch()
    (tmp_path / "lock.mdb").touch()
    assert try_take_table(tmp_path)
    assert namespace_of(tmp_path) == pid_namespace()


def test_where_proc_is_not_its_own_a_process_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_OWN", "/proc/self/ns/none")
    assert pid_namespace() == ""
    record_namespace(tmp_path)
    assert is_foreign(namespace_of(tmp_path)), "also to itself"
    assert not try_take_table(tmp_path)
    assert not is_of_other_machine(tmp_path)


def test_a_store_of_another_machine_is_told_from_that_of_another_namespace(tmp_path: Path) -> None:
    boot = pid_namespace().rpartition("-")[0]
    (tmp_path / f"namespace-{boot}-1").touch()
    assert not is_of_other_machine(tmp_path)
    (tmp_path / f"namespace-{boot}-1").rename(tmp_path / "namespace-another-1")
    assert is_of_other_machine(tmp_path)
