"""Files in memory against the real file: the same operations in the same order, and the same answers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefeed.interception.files import PartlyReadFile, ServedFile
from profiles import examples
from unit.interception.conftest import LentBytes

BUFFER_BYTES = 8192
_numbers = itertools.count()

sizes = st.integers(-1, 60) | st.sampled_from([None, 4000, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 30_000])
offsets = st.integers(-40, 80) | st.sampled_from([-30_000, 4000, 12_000, 30_000])
everywhere = st.one_of(
    st.tuples(st.sampled_from(["read", "readline"]), sizes),
    st.tuples(st.sampled_from(["readinto"]), st.integers(0, 60) | st.just(20_000)),
    st.tuples(st.just("seek"), offsets, st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END, 9])),
    st.tuples(
        st.sampled_from(["tell", "next", "readable", "seekable", "writable", "isatty", "flush", "closed", "enter"])
    ),
    st.tuples(st.just("readlines"), st.sampled_from([-1, 0, 10, 5000])),
    st.tuples(st.sampled_from(["write", "writelines"]), st.just(b"x")),
    st.tuples(st.just("truncate")),
)
of_buffers = st.one_of(
    st.tuples(st.sampled_from(["read1", "peek"]), st.integers(-1, 60) | st.just(20_000)),
    st.tuples(st.just("readinto1"), st.integers(0, 60)),
)
"""What they give depends on how much is buffered."""

others = st.sampled_from([("close",), ("forget",)])
contents = st.binary(max_size=300) | st.builds(
    lambda line, count: (line + b"\n") * count, st.binary(max_size=40), st.integers(0, 900)
)


def done(file: Any, name: str, *arguments: Any) -> Any:
    """Result of one operation, or what kind of error it is."""
    try:
        if name in ("readinto", "readinto1"):
            target = bytearray(arguments[0])
            return getattr(file, name)(target), bytes(target)
        if name == "closed":
            return file.closed
        if name == "next":
            return next(file)
        if name == "enter":
            return file.__enter__() is file
        return getattr(file, name)(*arguments)
    except (OSError, ValueError, TypeError, StopIteration) as error:
        return type(error), getattr(error, "errno", None)


def follow(made: Any, real: Any, steps: list[tuple[Any, ...]], forget: Any) -> None:
    with real, made:
        for step in steps:
            if step == ("forget",):
                forget()
            else:
                assert done(made, *step) == done(real, *step), step
        if not real.closed:
            assert (made.tell(), made.read()) == (real.tell(), real.read())


def written(folder: Path, content: bytes) -> Path:
    path = folder / f"{next(_numbers)}.bin"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("is_lost", [False, True])
@settings(max_examples=examples(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents, steps=st.lists(everywhere | of_buffers | others, max_size=25))
def test_a_lent_file_does_as_the_real_one(
    tmp_path: Path, is_lost: bool, content: bytes, steps: list[tuple[Any, ...]]
) -> None:
    path = written(tmp_path, content)
    lent = LentBytes(content)
    made = PartlyReadFile(lent, str(path), str(path))

    def forget() -> None:
        lent.is_gone = is_lost

    follow(made, open(path, "rb", buffering=BUFFER_BYTES), steps, forget)  # noqa: SIM115
    path.unlink()


IN_CLOSED_FILES = [
    ("read", 3), ("read", -1), ("readline", -1), ("readlines", -1), ("read1", 3), ("peek", 3), ("readinto", 3), ("readinto1", 3),
    ("next",), ("seek", 0, os.SEEK_SET), ("seek", -1, os.SEEK_SET), ("seek", -1000, os.SEEK_CUR), ("seek", -1000, os.SEEK_END),
    ("seek", 0, os.SEEK_DATA), ("seek", 0, 9), ("tell",), ("readable",), ("seekable",), ("writable",), ("isatty",), ("flush",),
    ("enter",), ("closed",), ("close",), ("fileno",), ("detach",), ("write", b"x"), ("writelines", b"x"), ("truncate",),
]  # fmt: skip


@pytest.mark.parametrize("before", [(), ("read", 3), ("readline",)], ids=str)
@pytest.mark.parametrize("step", IN_CLOSED_FILES, ids=str)
def test_closed_files_do_as_the_real_one(tmp_path: Path, before: tuple[Any, ...], step: tuple[Any, ...]) -> None:
    content = b"a line\n" * 100
    path = str(written(tmp_path, content))
    real, *made = [
        open(path, "rb", buffering=BUFFER_BYTES),  # noqa: SIM115
        ServedFile(content, path, path),
        PartlyReadFile(LentBytes(content), path, path),
    ]
    for file in (real, *made):
        if before:
            done(file, *before)
        file.close()
    assert [done(file, *step) for file in made] == [done(real, *step)] * 2


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents, steps=st.lists(everywhere | st.just(("close",)), max_size=25))
def test_a_given_file_does_as_the_real_one(tmp_path: Path, content: bytes, steps: list[tuple[Any, ...]]) -> None:
    path = written(tmp_path, content)
    follow(ServedFile(content, str(path), str(path)), open(path, "rb"), steps, None)  # noqa: SIM115
    path.unlink()
