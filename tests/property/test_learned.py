"""What samples open, against a dict: recorded, opened again, read meanwhile, and read from a damaged file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.sources import learned as learned_module
from prefeed.sources.learned import FILE, LearnedMap, LearnedMapWriter
from profiles import examples

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_SAMPLES = 12
Records = list[tuple[int, list[int]]]

ids = st.integers(0, 2**63 - 1) | st.integers(0, 40)
records = st.lists(st.tuples(st.integers(0, NUM_SAMPLES - 1), st.lists(ids, max_size=9)), max_size=25)


def known_of(learned: LearnedMap, *, damaged: bool = False) -> dict[int, tuple[int, ...]]:
    """Return what is known, asked for one by one and all at once; of a damaged map the latter may know less."""
    known = {
        s: learned.objects_of(s) for s in range(-2, NUM_SAMPLES + 2) if learned.is_known(s) or learned.objects_of(s)
    }
    samples = np.arange(-2, NUM_SAMPLES + 2)
    found, counts = learned.object_ids(samples)
    parts = np.split(found, np.cumsum(counts)[:-1])
    at_once = {s: tuple(part.tolist()) for s, part in zip(samples.tolist(), parts, strict=True) if len(part)}
    if damaged:
        assert at_once.items() <= known.items()
    else:
        assert at_once == {s: opened for s, opened in known.items() if opened}
    return known


@settings(max_examples=examples(150))
@given(runs=st.lists(records, max_size=4), chunk=st.integers(1, 20), smallest=st.sampled_from([1, 40, 8192]))
def test_it_knows_what_a_dict_knows(runs: list[Records], chunk: int, smallest: int) -> None:
    model: dict[int, tuple[int, ...]] = {}
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(learned_module, "_CHUNK", chunk),
        mock.patch.object(learned_module, "_SMALLEST_WORDS", smallest),
    ):
        reader = LearnedMap.open(name, NUM_SAMPLES)
        for run in runs:
            writer = LearnedMapWriter.open_or_create(name, NUM_SAMPLES)
            reader.refresh()
            for sample, opened in run:
                writer.record(sample, opened)
                model[sample] = tuple(opened)
                seen = known_of(reader)  # a file that has grown is seen so far as it is mapped
                assert seen.items() <= model.items()
            assert known_of(writer) == model
            reader.refresh()
            assert known_of(reader) == model
            assert writer.num_known == reader.num_known == len(model)
            writer.close()


@settings(max_examples=examples(100))
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, NUM_SAMPLES - 1), st.lists(ids, max_size=4)), max_size=25)
)
def test_a_guess_serves_until_the_sample_is_seen(steps: list[tuple[bool, int, list[int]]]) -> None:
    """It takes the place of nothing, survives the next server, and gives way to what was seen, the same or other."""
    guessed: dict[int, tuple[int, ...]] = {}
    seen: dict[int, tuple[int, ...]] = {}
    samples = np.arange(NUM_SAMPLES)
    with tempfile.TemporaryDirectory() as name, mock.patch.object(learned_module, "_SMALLEST_WORDS", 1):
        for is_guess, sample, opened in steps:
            writer = LearnedMapWriter.open_or_create(name, NUM_SAMPLES)
            if is_guess:
                writer.suppose(sample, opened)
                guessed.setdefault(sample, tuple(opened))
            else:
                writer.record(sample, opened)
                seen[sample] = tuple(opened)
            writer.close()
        reader = LearnedMap.open(name, NUM_SAMPLES)
        assert known_of(reader) == {s: opened for s, opened in (guessed | seen).items() if s in seen or opened}
        assert [reader.seen(s) for s in range(NUM_SAMPLES)] == [seen.get(s) for s in range(NUM_SAMPLES)]
        assert reader.are_seen(samples).tolist() == [s in seen for s in range(NUM_SAMPLES)]
        assert reader.have_records(samples).tolist() == [s in guessed or s in seen for s in range(NUM_SAMPLES)]
        assert reader.opens_nothing() == (bool(seen) and not any(seen.values()))


@settings(max_examples=examples(300))
@given(recorded=records, data=st.data())
def test_a_damaged_record_is_unknown_or_was_recorded(recorded: Records, data: st.DataObject) -> None:
    model: dict[int, tuple[int, ...]] = {}
    once: set[tuple[int, tuple[int, ...]]] = set()
    with tempfile.TemporaryDirectory() as name, mock.patch.object(learned_module, "_SMALLEST_WORDS", 1):
        writer = LearnedMapWriter.open_or_create(name, NUM_SAMPLES)
        for sample, opened in recorded:
            writer.record(sample, opened)
            model[sample] = tuple(opened)
            once.add((sample, tuple(opened)))
        writer.close()
        words = np.fromfile(Path(name) / FILE, np.int64)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(words) - 1))
            words[at] = data.draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, len(words) + 2))
        words.tofile(Path(name) / FILE)
        assert set(known_of(LearnedMap.open(name, NUM_SAMPLES), damaged=True).items()) <= once
        writer = LearnedMapWriter.open_or_create(name, NUM_SAMPLES)
        assert set(known_of(writer, damaged=True).items()) <= once
        for sample, opened in model.items():  # learned again
            writer.record(sample, opened)
        assert known_of(writer, damaged=True).items() >= model.items()
        writer.close()


@settings(max_examples=examples(200))
@given(before=st.lists(ids, min_size=1, max_size=9), data=st.data())
def test_a_record_that_is_being_written_over_is_whole_or_unknown(before: list[int], data: st.DataObject) -> None:
    after = data.draw(st.lists(ids, max_size=len(before)))
    with tempfile.TemporaryDirectory() as name:
        writer = LearnedMapWriter.open_or_create(name, NUM_SAMPLES)
        writer.record(3, before)
        path = Path(name) / FILE
        old = np.fromfile(path, np.int64)
        writer.record(3, after)
        new = np.fromfile(path, np.int64)
        writer.close()
        differing = np.flatnonzero(old != new)
        taken = data.draw(st.lists(st.sampled_from(differing.tolist()), unique=True)) if len(differing) else []
        torn = old.copy()
        torn[taken] = new[taken]
        torn.tofile(path)
        seen = LearnedMap.open(name, NUM_SAMPLES)
        assert not seen.is_known(3) or seen.objects_of(3) in (tuple(before), tuple(after))
