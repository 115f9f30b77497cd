# ruff: noqa: SIM115 - an open call is what is tested
"""Large files that are lent: reads cost what they read, and go on when the cache has let go of the bytes."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prefeed.interception import answer_everywhere, install, reads_from
from prefeed.interception.asking import asking

from .conftest import KeptFiles, LendingFiles

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def path(tmp_path: Path, lending: LendingFiles) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    lending.keep(path)
    return path


def test_a_slice_copies_a_slice(path: Path, lending: LendingFiles) -> None:
    with reads_from(lending), open(path, "rb") as file:
        file.seek(50_000)
        assert file.read(16) == CONTENT[50_000:50_016]
        assert lending.lent[0].copied == 16
        for start in range(50_016, 50_160, 16):  # what follows comes out of a buffer
            assert file.read(16) == CONTENT[start : start + 16]
        assert lending.lent[0].copied == 16 + io.DEFAULT_BUFFER_SIZE


def test_all_of_it_is_copied_once(path: Path, lending: LendingFiles) -> None:
    with reads_from(lending), open(path, "rb") as file:
        assert file.read() == CONTENT
    assert lending.lent[0].copied == len(CONTENT)


def test_numpy_reads_a_part_without_a_descriptor(path: Path, lending: LendingFiles) -> None:
    lending.keep_and_remove(path)
    with reads_from(lending):
        assert np.fromfile(path, np.uint8, 10, offset=1000).tobytes() == CONTENT[1000:1010]
        with open(path, "rb") as file:
            file.seek(300)
            assert np.fromfile(file, np.uint16, 4).tobytes() == CONTENT[300:308]
    assert lending.lent[0].copied < 20_000


def test_an_array_in_a_file_is_loaded_without_a_descriptor(tmp_path: Path, lending: LendingFiles) -> None:
    array = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    np.save(tmp_path / "array.npy", array)
    lending.keep_and_remove(tmp_path / "array.npy")
    with reads_from(lending):
        assert (np.load(tmp_path / "array.npy") == array).all()


def test_a_picture_that_is_opened_in_a_sample_is_decoded_after_it(tmp_path: Path, lending: LendingFiles) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    lending.keep_and_remove(tmp_path / "picture.png")
    with reads_from(lending):
        image = Image.open(tmp_path / "picture.png")
    assert (np.asarray(image) == pixels).all()


@pytest.mark.parametrize("num_read", [0, 10, 40_000, len(CONTENT)])
def test_it_continues_in_the_real_file(path: Path, lending: LendingFiles, num_read: int) -> None:
    with reads_from(lending):
        file = open(path, "rb")
    assert file.read(num_read) == CONTENT[:num_read]
    lending.lent[0].is_gone = True
    assert file.read(9000) == CONTENT[num_read : num_read + 9000]
    assert file.seek(-5, os.SEEK_END) == len(CONTENT) - 5
    assert file.read() == CONTENT[-5:]
    file.close()


def test_it_continues_in_a_changed_file_when_nothing_was_read(path: Path, lending: LendingFiles) -> None:
    with reads_from(lending):
        file = open(path, "rb")
    lending.lent[0].is_gone = True
    path.write_bytes(b"other")
    assert file.read(3) + file.read() == b"other"
    file.close()


def test_two_versions_are_never_mixed(path: Path, lending: LendingFiles) -> None:
    with reads_from(lending):
        file = open(path, "rb")
    assert file.read(10) == CONTENT[:10]
    lending.lent[0].is_gone = True
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(OSError, match="changed while it was open") as raised:
        file.read()
    assert (raised.value.errno, raised.value.filename) == (errno.ESTALE, str(path))
    file.close()


@pytest.mark.parametrize("num_reads", [1, 2])
def test_a_descriptor_is_never_of_another_version_than_what_was_read(
    num_reads: int, path: Path, lending: LendingFiles
) -> None:
    with reads_from(lending):
        file = open(path, "rb")
    for _ in range(num_reads):
        file.read(10)
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(OSError, match="changed while it was open") as raised:
        file.fileno()
    assert (raised.value.errno, raised.value.filename) == (errno.ESTALE, str(path))
    file.close()


def test_a_descriptor_is_of_the_file_that_is_read(path: Path, lending: LendingFiles) -> None:
    with reads_from(lending):
        file = open(path, "rb")
    lending.lent[0].is_gone = True
    path.write_bytes(b"other")
    assert file.read(3) == b"oth"
    path.rename(path.with_name("moved"))
    path.write_bytes(b"third")
    assert os.pread(file.fileno(), 5, 0) == b"other"
    file.close()


# ---------------------------------------------------------------- whoever is asked outside of every scope


@pytest.fixture
def everywhere(reader: KeptFiles, path: Path) -> KeptFiles:
    reader.keep(path)
    install()
    answer_everywhere(reader)
    return reader


def test_the_reader_that_is_asked_everywhere(path: Path, everywhere: KeptFiles, lending: LendingFiles) -> None:
    try:
        assert path.read_bytes() == CONTENT
        with reads_from(lending):
            assert path.read_bytes() == CONTENT
        assert path.read_bytes() == CONTENT
        assert (len(everywhere.asked), len(lending.asked)) == (2, 1)
        assert np.fromfile(path, np.uint8).tobytes() == CONTENT
        assert len(everywhere.asked) == 3
    finally:
        answer_everywhere(None)
    assert path.read_bytes() == CONTENT
    assert len(everywhere.asked) == 3
    assert "reader" not in vars(asking), "this thread would never hear of the next one"


def test_a_scope_that_was_entered_before_hides_no_other(path: Path, reader: KeptFiles, lending: LendingFiles) -> None:
    reader.keep(path)
    install()
    with reads_from(lending):
        answer_everywhere(reader)
        open(path, "rb").close()
    try:
        open(path, "rb").close()
    finally:
        answer_everywhere(None)
    assert (len(lending.asked), len(reader.asked)) == (1, 1)
