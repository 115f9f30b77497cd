"""Catalogues of a home: their names, where they lie, and what is known of a new one."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prefeed.errors import PrefeedError, StoreFormatError
from prefeed.sources import catalogue_writer
from prefeed.sources.catalogue import name_of_learned, name_of_list
from prefeed.sources.catalogue_writer import CatalogueWriter, directory_of, is_catalogue, open_catalogue, remove_unused

HOME = Path("/home/prefeed")


@contextmanager
def opened(directory: Path, paths: Any) -> Iterator[tuple[CatalogueWriter, int | None]]:
    catalogue, mean_bytes = open_catalogue(directory, paths)
    try:
        yield catalogue, mean_bytes
    finally:
        catalogue.close()


def write_files(directory: Path, sizes: list[int]) -> list[str]:
    paths = [directory / f"{index}.bin" for index in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(b"x" * size)
    return [str(path) for path in paths]


# ------------------------------------------------------------ names


def test_lists_are_told_apart_by_their_files_and_order() -> None:
    names = {name_of_list(paths) for paths in (["/a", "/b"], ["/b", "/a"], ["/a"], ["/a", "/b", "/b"], ["/ab"], [])}
    assert len(names) == 6
    assert name_of_list(["/a", "/caf\udce9"]) == name_of_list(("/a", "/caf\udce9"))


def test_names_are_directories_of_the_home() -> None:
    for name in (name_of_list(["/a"]), name_of_learned("0123456789abcdef")):
        directory = directory_of(HOME, name)
        assert directory == HOME / "catalogues" / name
        assert is_catalogue(HOME, directory)


@pytest.mark.parametrize(
    "name",
    ["", "files-", "files-0123456", "files-0123456G", "other-01234567", "files-01234567/x", "../files-01234567",
     "files-01234567\n", "learned-" + "0" * 65, "FILES-01234567"],
)  # fmt: skip
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(PrefeedError, match="is not the name of a catalogue"):
        directory_of(HOME, name)


@pytest.mark.parametrize(
    "directory",
    [HOME, HOME / "catalogues", HOME / "manifests" / "files-01234567", HOME / "catalogues/files-01234567/x", Path("/")],
)
def test_other_directories_are_none_of_catalogues(directory: Path) -> None:
    assert not is_catalogue(HOME, directory)


# ------------------------------------------------------------ opening


@pytest.mark.usefixtures("sandbox")
def test_the_directory_of_catalogues_is_made(tmp_path: Path) -> None:
    with opened(tmp_path / "home" / "catalogues" / "files-0", ["/a"]) as (catalogue, mean_bytes):
        assert (len(catalogue), mean_bytes) == (1, None)  # nobody could be asked


@pytest.mark.usefixtures("sandbox")
def test_a_new_catalogue_knows_about_how_large_its_files_are(tmp_path: Path) -> None:
    paths = write_files(tmp_path, [100, 200, 300])
    with opened(tmp_path / "c" / "files-0", [*paths, f"{tmp_path}/missing"]) as (_, mean_bytes):
        assert mean_bytes == 200


@pytest.mark.usefixtures("sandbox")
def test_few_of_many_files_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stat_paths(paths: list[str], *, batch: int) -> Any:
        asked.extend(paths)
        return original(paths, batch=batch)

    original = catalogue_writer.stat_paths
    monkeypatch.setattr(catalogue_writer, "stat_paths", stat_paths)
    paths = write_files(tmp_path, [10])
    with opened(tmp_path / "c" / "files-0", paths * 100_000) as (_, mean_bytes):
        assert mean_bytes == 10
    assert 256 <= len(asked) <= 512


@pytest.mark.usefixtures("sandbox")
def test_a_catalogue_whose_files_were_read_asks_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_files(tmp_path, [100, 200])
    with opened(tmp_path / "c" / "files-0", paths) as (catalogue, _):
        catalogue.observe(0, "1-100", 100)
    monkeypatch.setattr(catalogue_writer, "stat_paths", None)
    with opened(tmp_path / "c" / "files-0", paths) as (catalogue, mean_bytes):
        assert (mean_bytes, catalogue.size(0)) == (None, 100)


def test_a_learned_catalogue_begins_empty_and_is_found_again(tmp_path: Path) -> None:
    for before in (0, 2):
        with opened(tmp_path / "c" / "learned-0", []) as (catalogue, mean_bytes):
            assert (len(catalogue), mean_bytes) == (before, None)
            catalogue.append(["/a", "/b"])


def test_looking_paths_up_costs_the_server_s_loop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue that has grown will be asked for paths: its index is made where it is opened, in a thread."""
    with opened(tmp_path / "c" / "learned-0", []) as (catalogue, _):
        catalogue.append(["/a", "/b"])
    made: list[str] = []
    original = catalogue_writer.CatalogueWriter.index_of

    def index_of(self: CatalogueWriter, path: str) -> int | None:
        if self._index is None:
            made.append(threading.current_thread().name)
        return original(self, path)

    monkeypatch.setattr(catalogue_writer.CatalogueWriter, "index_of", index_of)
    with opened(tmp_path / "c" / "learned-0", []) as (catalogue, _):
        assert made == [threading.current_thread().name]
        assert catalogue.index_of("/b") == 1
        assert len(made) == 1


def test_one_that_is_not_there_is_not_made_for_who_holds_ids_of_it(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="holds no catalogue"):
        open_catalogue(tmp_path / "c" / "learned-0", None)
    assert not (tmp_path / "c" / "learned-0").exists()


def test_data_not_opened_for_a_month_is_removed(tmp_path: Path) -> None:
    """Nor wrote to: another node's server of an earlier version may have had one open for longer."""
    ages = {"files-11111111": 31, "files-22222222": 29, "learned-33333333": 400, "learned-44444444": 400}
    for name, days in ages.items():
        catalogue, _ = open_catalogue(directory_of(tmp_path, name), [])
        catalogue.close()
        before = time.time() - days * 24 * 3600
        for path in (directory_of(tmp_path, name), *directory_of(tmp_path, name).iterdir()):
            os.utime(path, (before, before))
    open_catalogue(directory_of(tmp_path, "learned-33333333"), [])[0].close()
    os.utime(directory_of(tmp_path, "learned-44444444") / "keys")
    remove_unused(tmp_path)
    left = sorted(path.name for path in (tmp_path / "catalogues").iterdir())
    assert left == ["files-22222222", "learned-33333333", "learned-44444444"]
    remove_unused(tmp_path / "no home")
