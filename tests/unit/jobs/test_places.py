from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import JobSpecError, SampleSetNotFoundError
from prefeed.jobs.places import locate_place, lock_job_sets, root_of
from prefeed.sampleset import records
from prefeed.sampleset.records import SampleSet, remove_record
from unit.sampleset.documents import applied, sample_set


@pytest.mark.parametrize("url", ["s3://b//x", "s3://b/x//y", "gs://b/./x", "az://b/y/../x"])
def test_second_spellings_of_a_place_in_a_store_are_refused(url: str) -> None:
    """Clients read some of them as ``s3://b/x``, and a sync of it with itself would not be seen."""
    with pytest.raises(JobSpecError, match="the path in the bucket"):
        root_of(url)


@pytest.mark.parametrize(
    "url", ["s3://key:hu/sh@b/x", "https://me:hush@h/x", "https://h/x?sig=hush", "s3://key:hush@b"]
)
def test_keys_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(JobSpecError, match=r"credentials\.json") as caught:
        root_of(url)
    assert not any(part in str(caught.value) for part in ("hu/sh", "hush", "key:"))


@pytest.mark.parametrize("url", ["s3://b", "s3://b/x/", "https://h//x", "data@v1", "/a?b"])
def test_other_places_are_taken(url: str) -> None:
    assert root_of(url)


@pytest.mark.parametrize("url", ["", " "])
def test_an_empty_place_is_not_the_directory_one_is_in(url: str) -> None:
    """``prefeed sync "$DATA" train`` with a variable that is not set."""
    with pytest.raises(JobSpecError, match="a place is empty"):
        root_of(url)


def _delete_and_apply_again(found: SampleSet) -> None:
    remove_record(found)
    other = found.directory.parents[2] / "other"
    other.mkdir()
    (other / "1.bin").write_bytes(b"1")
    applied(sample_set(source={"uri": str(other)}))


def _delete_but_for_the_home(found: SampleSet) -> None:
    remove_record(found, keep_home=True)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("lose", [remove_record, _delete_but_for_the_home, _delete_and_apply_again])
def test_a_set_that_is_deleted_while_its_turn_is_waited_for_is_not_worked_at(
    lose: Callable[[SampleSet], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place was looked up before: what lies there is not the set's any more."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.bin").write_bytes(b"1")
    found = applied(sample_set(source={"uri": str(tmp_path / "data")}))
    place = locate_place("sampleset://imagenet", resolve())
    with lock_job_sets(place):
        pass

    def wait(*_: object, **__: object) -> None:
        waiting.undo()
        lose(found)

    with monkeypatch.context() as waiting:
        waiting.setattr(records, "flock_within", wait)
        with pytest.raises(SampleSetNotFoundError, match="deleted in the meantime"), lock_job_sets(place):
            pytest.fail("it was worked at")
    shutil.rmtree(found.directory, ignore_errors=True)
    with pytest.raises(SampleSetNotFoundError), lock_job_sets(place):
        pytest.fail("it was worked at")
