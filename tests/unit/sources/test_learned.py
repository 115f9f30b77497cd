import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from prefeed.errors import TierFullError
from prefeed.sources import learned as learned_module
from prefeed.sources import listing
from prefeed.sources.learned import FILE, LearnedMap, LearnedMapWriter


@contextmanager
def opened(directory: Path, num_samples: int) -> Iterator[LearnedMapWriter]:
    writer = LearnedMapWriter.open_or_create(directory, num_samples)
    try:
        yield writer
    finally:
        writer.close()


def ids_of(learned: LearnedMap, samples: list[int]) -> tuple[list[int], list[int]]:
    ids, counts = learned.object_ids(np.array(samples, np.int64))
    assert (ids.dtype, counts.dtype) == (np.int64, np.int64)
    return ids.tolist(), counts.tolist()


def test_what_samples_open_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path / "m", 5) as writer:
        writer.record(1, [7])
        writer.record(3, [9, 8, 9])
        writer.record(4, [])
    with opened(tmp_path / "m", 5) as writer:
        reader = LearnedMap.open(tmp_path / "m", 5)
        for learned in (writer, reader, pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(writer))):
            assert [learned.objects_of(sample) for sample in range(5)] == [(), (7,), (), (9, 8, 9), ()]
            assert [learned.is_known(sample) for sample in range(-1, 6)] == [
                False,
                False,
                True,
                False,
                True,
                True,
                False,
            ]
            assert learned.num_known == 3
            assert ids_of(learned, [3, 0, 1, 4, 3]) == ([9, 8, 9, 7, 9, 8, 9], [3, 0, 1, 0, 3])
            assert ids_of(learned, [-1, 5, 2**62, -(2**63), 1]) == ([7], [0, 0, 0, 0, 1])
            assert ids_of(learned, []) == ([], [])
    assert "2 of 9" not in repr(reader)


def test_a_guess_is_planned_and_was_not_seen(tmp_path: Path) -> None:
    """It gives way to what a sample really opens, also where that is the same, and takes the place of nothing."""
    samples = np.arange(5)
    with opened(tmp_path / "m", 5) as writer:
        writer.suppose(1, [7])
        writer.suppose(2, [8, 9])
        writer.suppose(3, [5])
        writer.suppose(1, [6])
        writer.record(0, [])
    with opened(tmp_path / "m", 5) as writer:
        reader = LearnedMap.open(tmp_path / "m", 5)
        assert reader.opens_nothing(), "of what was seen; a guess says nothing of what a sample opens"
        assert ids_of(reader, [0, 1, 2, 3, 4]) == ([7, 8, 9, 5], [0, 1, 2, 1, 0])
        assert reader.have_records(samples).tolist() == [True, True, True, True, False]
        assert reader.are_seen(samples).tolist() == [True, False, False, False, False]
        assert [reader.seen(sample) for sample in range(5)] == [(), None, None, None, None]
        writer.record(1, [7])
        writer.record(2, [4])
        for sample in (0, 1, 2):
            writer.suppose(sample, [1])
        reader.refresh()
        assert [reader.seen(sample) for sample in range(5)] == [(), (7,), (4,), None, None]
        assert reader.are_seen(samples).tolist() == [True, True, True, False, False]
        assert ids_of(reader, [0, 1, 2, 3, 4]) == ([7, 4, 5], [0, 1, 1, 1, 0])
        assert not reader.opens_nothing()


def test_a_map_that_is_not_there_is_empty_until_it_is(tmp_path: Path) -> None:
    reader = LearnedMap.open(tmp_path / "m", 3)
    assert not reader.refresh()
    assert (reader.objects_of(1), reader.is_known(1), reader.num_known) == ((), False, 0)
    assert ids_of(reader, [0, 1, 2]) == ([], [0, 0, 0])
    with opened(tmp_path / "m", 3) as writer:
        writer.record(1, [4])
        assert reader.refresh()
        assert not reader.refresh()
        assert reader.objects_of(1) == (4,)
        writer.record(2, [5])
        assert reader.objects_of(2) == (5,), "what fits the file is seen at once"
        writer.record(0, range(20_000))
        assert (reader.is_known(0), ids_of(reader, [0, 1])) == (False, ([4], [0, 1]))
        assert reader.refresh()
        assert reader.objects_of(0) == tuple(range(20_000))


def test_a_map_of_another_dataset_is_empty_and_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path / "m", 3) as writer:
        writer.record(1, [4])
        for other in (2, 4, 100_000):
            assert LearnedMap.open(tmp_path / "m", other).num_known == 0
    with opened(tmp_path / "m", 4) as writer:
        assert writer.num_known == 0
        writer.record(3, [1])
        assert LearnedMap.open(tmp_path / "m", 4).objects_of(3) == (1,)


def test_records_that_fit_stay_in_their_place(tmp_path: Path) -> None:
    with opened(tmp_path / "m", 2) as writer:
        writer.record(0, [1, 2, 3])
        end = writer._scalars[2]
        for ids in ([1, 2, 3], [3, 2, 1], [5], [], [7]):
            writer.record(0, ids)
            assert writer.objects_of(0) == tuple(ids)
        assert writer._scalars[2] == end + 3, "only the last one did not fit"
        writer.record(1, [9])
        assert writer.objects_of(1) == (9,)


@pytest.mark.parametrize(("sample", "ids"), [(-1, [1]), (2, [1]), (0, [1, -1])])
def test_what_cannot_be_is_refused(tmp_path: Path, sample: int, ids: list[int]) -> None:
    with opened(tmp_path / "m", 2) as writer:
        with pytest.raises(ValueError, match=f"sample {sample} of 2"):
            writer.record(sample, ids)
        assert writer.num_known == 0


def grown(writer: LearnedMapWriter, times: int) -> dict[int, tuple[int, ...]]:
    """Let every record grow so that all but the last ones are garbage; return what is known then."""
    for length in range(1, times + 1):
        for sample in range(0, writer.num_samples, 2):
            writer.record(sample, range(sample, sample + length))
    return {sample: tuple(range(sample, sample + times)) for sample in range(0, writer.num_samples, 2)}


def test_garbage_is_left_behind_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_module, "_CHUNK", 7)
    with opened(tmp_path / "m", 1000) as writer:
        known = grown(writer, 12)
        reader = LearnedMap.open(tmp_path / "m", 1000)
    large = (tmp_path / "m" / FILE).stat().st_size
    with opened(tmp_path / "m", 1000) as writer:
        assert (tmp_path / "m" / FILE).stat().st_size < large / 2
        for learned in (reader, writer):
            assert {s: learned.objects_of(s) for s in range(1000) if learned.is_known(s)} == known
        writer.record(1, [5])
        assert not reader.is_known(1), "the old file is what it has"
        assert reader.refresh()
        assert reader.objects_of(1) == (5,)
        inode = (tmp_path / "m" / FILE).stat().st_ino
    with opened(tmp_path / "m", 1000):
        assert (tmp_path / "m" / FILE).stat().st_ino == inode
    assert os.listdir(tmp_path / "m") == [FILE]


def test_a_full_disk_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path / "m", 100) as writer:
        known = grown(writer, 12)
        with monkeypatch.context() as patched:
            patched.setattr(listing.os, "posix_fallocate", refuse)
            with pytest.raises(TierFullError, match="no room"):
                writer.record(0, range(50_000))
            assert writer.objects_of(0) == known[0]
            with opened(tmp_path / "m", 100) as again:  # with its garbage
                assert again.num_known == 50
            with pytest.raises(TierFullError, match="no room"):
                LearnedMapWriter.open_or_create(tmp_path / "n", 5)
        assert os.listdir(tmp_path / "n") == []


def test_a_dataset_without_samples(tmp_path: Path) -> None:
    with opened(tmp_path / "m", 0) as writer:
        assert (writer.num_known, ids_of(writer, [0])) == (0, ([], [0]))


@pytest.mark.parametrize("size", [0, 8, 24, 63, 64, 4096])
def test_a_file_of_another_length_is_no_map(tmp_path: Path, size: int) -> None:
    with opened(tmp_path / "m", 1000) as writer:
        writer.record(0, [1])
    os.truncate(tmp_path / "m" / FILE, size)
    assert not LearnedMap.open(tmp_path / "m", 1000).is_known(0)
    with opened(tmp_path / "m", 1000) as writer:
        assert writer.num_known == 0
        writer.record(0, [1])
        assert writer.objects_of(0) == (1,)


def test_records_of_absurd_lengths_do_not_fill_the_memory(tmp_path: Path) -> None:
    with opened(tmp_path / "m", 60_000) as writer:
        writer.record(0, range(300_000))
        head = writer._scalars[4]
        writer._words[4 : 4 + 60_000] = head
        assert ids_of(writer, list(range(60_000)))[1] == [0] * 60_000
        assert ids_of(writer, [0, 0, 0])[1] == [300_000] * 3
