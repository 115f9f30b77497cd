from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefeed.sources.listing import LeftOut
from prefeed.sources.store_listing import parse_index, parse_line
from prefeed.types import ObjectInfo


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"a/b.jpg\t123", ("a/b.jpg", 123)),
        (b"a/b.jpg\t123\r", ("a/b.jpg", 123)),
        (b"a b.jpg   45", ("a b.jpg", 45)),
        (b"a/b.jpg", ("a/b.jpg", -1)),
        (b"a b c.jpg", ("a b c.jpg", -1)),
        (b"a/b.jpg\t", ("a/b.jpg", -1)),
        (b"tab\tin name 7\t9", ("tab\tin name 7", 9)),
        (b"./a.jpg\t1", ("a.jpg", 1)),
        (b"/a.jpg\t1", ("a.jpg", 1)),
        (b"./#a.jpg", ("#a.jpg", -1)),
        (b"100%25 real.jpg\t1", ("100%25 real.jpg", 1)),
        ("größe.jpg\t1".encode(), ("größe.jpg", 1)),
        (b"# comment", None),
        (b"", None),
        (b"   ", None),
        (b"./index.txt\t5", None),
    ],
)
def test_lines(line: bytes, expected: tuple[str, int] | None) -> None:
    info = parse_line(line, 1, "http://host/index.txt")
    assert (None if info is None else (info.path, info.size_bytes)) == expected


def test_lines_that_are_no_objects_are_left_out_and_named() -> None:
    left_out = LeftOut()
    lines = [b"a\t1\n\nb\t12x\n../c\t1\nd/./e\t1\n", b"f//g\t1"]
    found = [info.path for batch in parse_index(lines, name="http://h/index.txt", left_out=left_out) for info in batch]
    assert found == ["a", "f//g"]
    assert left_out.count == 3
    assert "line 3 of http://h/index.txt: '12x'" in left_out.described()
    assert "'../c'" in left_out.described()


@given(
    sizes=st.lists(st.integers(0, 10**12), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 500), max_size=8),
    newline=st.booleans(),
)
def test_it_does_not_matter_where_the_pieces_are_cut(sizes: list[int], cuts: list[int], newline: bool) -> None:
    text = "\n".join(f"dir/{i}ü.bin\t{size}" for i, size in enumerate(sizes)).encode() + (b"\n" if newline else b"")
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    infos = [info for batch in parse_index(pieces, name="i", left_out=LeftOut()) for info in batch]
    assert infos == [ObjectInfo(path=f"dir/{i}ü.bin", size_bytes=n, version="") for i, n in enumerate(sizes)]
