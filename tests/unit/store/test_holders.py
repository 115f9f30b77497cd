"""Who has a store open, and how it is cut when nobody has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cache_user import cache_user, key_of, value_of
from prefeed.config import KIB, MIB
from prefeed.store.directory import allocated_bytes
from prefeed.store.layout import data_path, lock_path
from prefeed.store.namespaces import Holders, is_open_elsewhere, try_trim
from prefeed.store.shared import SharedTier
from prefeed.system.locks import directory_lock
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

LIMIT = 64 * MIB
VALUE = 100 * KIB


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    path = sandbox.memory_dir / "store"
    path.mkdir()
    return path


def test_a_process_that_has_the_store_open_is_seen(directory: Path) -> None:
    assert not is_open_elsewhere(directory)
    with cache_user(directory, LIMIT) as user:
        assert user.put(0, 1, VALUE) == 1
        assert is_open_elsewhere(directory)
        user.let_go()
        assert not is_open_elsewhere(directory)
        assert user.count(1) == 1  # a reader counts too
        assert is_open_elsewhere(directory)
    assert not is_open_elsewhere(directory)


def test_it_is_seen_after_the_files_are_gone(directory: Path) -> None:
    with cache_user(directory, LIMIT) as user:
        assert user.put(0, 1, VALUE) == 1
        holders = Holders.of(directory)
        assert holders is not None
        shutil.rmtree(directory)
        assert holders.are_there()
        user.let_go()
        assert not holders.are_there()
        holders.close()
    assert Holders.of(directory) is None


def test_a_store_that_is_not_open_is_cut_to_what_its_values_take(directory: Path) -> None:
    with cache_user(directory, LIMIT) as user:
        assert user.put(0, 10, VALUE) == 10
        assert not try_trim(directory)
        assert data_path(directory).stat().st_size > LIMIT - MIB
    assert try_trim(directory)
    taken = data_path(directory).stat().st_size + lock_path(directory).stat().st_size
    assert 10 * VALUE < taken < 12 * VALUE
    assert allocated_bytes(directory) <= taken
    tier = SharedTier(directory, limit_bytes=taken)
    assert [tier.get(key_of(i)) for i in range(10)] == [value_of(i, VALUE) for i in range(10)]
    assert tier.put_many([(key_of(i), value_of(i, VALUE)) for i in range(10, 30)]) <= 1
    tier.close()
    tier = SharedTier(directory, limit_bytes=LIMIT)
    assert tier.put_many([(key_of(i), value_of(i, VALUE)) for i in range(10, 30)]) == 20
    assert tier.get(key_of(3)) == value_of(3, VALUE)
    tier.close()


def test_nothing_and_what_is_no_store_are_left_alone(directory: Path) -> None:
    assert try_trim(directory)
    assert try_trim(directory / "nowhere")
    data_path(directory).write_bytes(b"no store" * 4096)
    lock_path(directory).write_bytes(b"")
    assert not try_trim(directory)
    assert data_path(directory).stat().st_size == 8 * 4096


def test_who_has_the_directory_is_not_waited_for(directory: Path) -> None:
    with cache_user(directory, LIMIT) as user:
        assert user.put(0, 1, VALUE) == 1
    size = data_path(directory).stat().st_size
    with directory_lock(directory):
        assert not try_trim(directory)
    assert data_path(directory).stat().st_size == size
    assert try_trim(directory)
    assert data_path(directory).stat().st_size < size
