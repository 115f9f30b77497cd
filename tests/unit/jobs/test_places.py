from __future__ import annotations

import pytest

from prefeed.errors import JobSpecError
from prefeed.jobs.places import root_of


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
    """``prefeed job rmr "$DATA" train`` with a variable that is not set."""
    with pytest.raises(JobSpecError, match="a place is empty"):
        root_of(url)
