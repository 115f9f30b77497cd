from __future__ import annotations

import datetime as dt
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from prefeed.config import resolve
from prefeed.errors import CannotChangeError, SampleSetError, SpecError
from prefeed.sampleset.applying import KINDS, apply_documents
from prefeed.sampleset.records import find, names
from prefeed.sampleset.yaml_files import load_documents
from prefeed.sources.credentials import options_for
from sandbox import Sandbox
from unit.sampleset.documents import ACCESS, SECRET, applied, apply, files_below, keys, sample_set, secret

DATA = {"source": {"uri": "/data/photos"}}
KEYS = {"secretRef": {"name": "keys"}}


def test_a_set_is_recorded_whole(sandbox: Sandbox) -> None:
    document = sample_set(**DATA)
    document["metadata"] = {"name": "imagenet", "namespace": "paddle-system", "labels": {"a": "b"}}
    found = applied(document)
    assert (found.name, found.namespace) == ("imagenet", "paddle-system")
    assert (found.source_url, found.origin_url, found.read_url) == ("/data/photos",) * 3
    assert found.directory == sandbox.home / "samplesets" / "imagenet"
    assert names(resolve()) == ["imagenet"]
    assert {path.stat().st_mode & 0o077 for path in (sandbox.home / "samplesets").rglob("*")} == {0}


def test_a_document_that_a_cluster_wrote_out_is_taken(sandbox: Sandbox) -> None:
    document = sample_set(**DATA, nodeAffinity={"since": dt.date(2026, 1, 1)})
    document["metadata"] |= {
        "uid": "a-b",
        "resourceVersion": "12",
        "generation": 2,
        "managedFields": [{"manager": "kubectl"}],
    }
    document["metadata"] |= {"creationTimestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "finalizers": ["x"]}
    document["status"] = {"phase": "Ready"}

    assert applied(document).source_url == "/data/photos"
    assert [a.action for a in apply(sample_set(**DATA, nodeAffinity={}))] == ["unchanged"]


def test_no_other_user_looks_into_the_directory_of_a_set(sandbox: Sandbox) -> None:
    directory = applied(keys(), sample_set(source={"uri": "s3://photos", "secretRef": {"name": "keys"}})).directory
    assert {path.stat().st_mode & 0o077 for path in (directory, *directory.rglob("*"))} == {0}


def test_applied_again_it_says_what_was_done() -> None:
    assert [a.action for a in apply(sample_set(**DATA))] == ["created"]
    assert [a.action for a in apply(sample_set(**DATA))] == ["unchanged"]
    created = find("imagenet", resolve()).created
    assert [a.action for a in apply(sample_set(partitions=3, **DATA))] == ["configured"]
    found = find("imagenet", resolve())
    assert (found.spec.partitions, found.created) == (3, created)


def test_nothing_is_written_when_one_of_several_cannot_be(sandbox: Sandbox) -> None:
    with pytest.raises(SpecError, match=r"spec\.source\.uri is missing"):
        apply(keys(), sample_set("good", **DATA), sample_set("bad"))
    assert names(resolve()) == []
    assert set(files_below(sandbox.home)) <= {"samplesets/.lock"}


# ---------------------------------------------------------------- where the data is


@pytest.mark.parametrize(
    ("spec", "values", "source", "origin"),
    [
        ({**KEYS, "source": {"uri": "/data"}}, {"bucket": "s3://copies/all"}, "/data", "s3://copies/all/imagenet"),
        ({**KEYS, "source": {"uri": "/data"}, "noSync": True}, {"bucket": "s3://copies"}, "/data", "/data"),
        ({**KEYS, "source": {"uri": "s3://photos"}}, {}, "s3://photos", "s3://photos"),
        ({**KEYS, "noSync": True}, {"bucket": "s3://copies/all"}, "s3://copies/all", "s3://copies/all"),
        ({**KEYS, "source": {"uri": "/data"}}, {"storage": "file", "bucket": "/copies"}, "/data", "/copies/imagenet"),
    ],
)
def test_what_is_copied_and_where_it_is_read(
    spec: dict[str, Any], values: dict[str, Any], source: str, origin: str
) -> None:
    found = applied(keys(**values), sample_set(**spec))
    assert (found.source_url, found.origin_url, found.needs_sync) == (source, origin, source != origin)


@pytest.mark.parametrize(
    ("spec", "values", "said"),
    [
        ({}, {}, r"spec\.source\.uri is missing"),
        (KEYS, {}, r"spec\.source\.uri is missing, and there is no bucket"),
        ({**DATA, "secretRef": {"name": "other"}}, {}, "there is no secret other"),
        (
            {**KEYS, "source": {"uri": "s3://c"}},
            {"bucket": "s3://c"},
            "one of them contains the other; write noSync: true",
        ),
        ({**KEYS, "source": {"uri": "s3://c/imagenet/a"}}, {"bucket": "s3://c"}, "one of them contains the other"),
    ],
)
def test_places_that_cannot_be(spec: dict[str, Any], values: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        apply(keys(**values), sample_set(**spec))


def test_who_speaks_to_each_place() -> None:
    found = applied(
        keys(bucket="http://127.0.0.1:9000/copies", storage="s3"),
        keys("other", region="eu-1", endpoint="http://127.0.0.1:9001"),
        sample_set(source={"uri": "bos://photos.hkg.bcebos.com/a", "secretRef": {"name": "other"}}, **KEYS),
    )
    settings = found.settings(resolve())
    pair = {"access_key_id": ACCESS, "secret_access_key": SECRET}
    assert options_for("s3://photos/a/train", settings) == {
        **pair,
        "endpoint": "http://127.0.0.1:9001",
        "region": "eu-1",
    }
    assert options_for("s3://copies/imagenet", settings) == {**pair, "endpoint": "http://127.0.0.1:9000"}
    assert options_for("s3://others", settings) == {}


def test_a_public_place_of_another_provider_does_not_get_amazons_keys() -> None:
    found = applied(sample_set(source={"uri": "bos://photos.hkg.bcebos.com/a"}))
    assert options_for("s3://photos/a", found.settings(resolve())) == {
        "endpoint": "https://s3.hkg.bcebos.com", "region": "hkg", "skip_signature": "true",
    }  # fmt: skip


def test_credentials_are_in_private_files_alone(sandbox: Sandbox) -> None:
    apply(keys(bucket="s3://copies"), sample_set(**DATA, **KEYS))
    holding = {
        name for name, data in files_below(sandbox.home).items() if SECRET.encode() in data or ACCESS.encode() in data
    }
    assert holding == {"secrets/keys.json", "samplesets/imagenet/node/credentials.json"}
    assert {(sandbox.home / name).stat().st_mode & 0o777 for name in holding} == {0o600}


# ---------------------------------------------------------------- changes


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            DATA,
            {"source": {"uri": "/other"}},
            r"spec\.source, which was /data/photos and is /other, of the sample set imagenet",
        ),
        ({**DATA, **KEYS, "noSync": True}, {**DATA, **KEYS}, "the secret's bucket, which was /data/photos"),
        (DATA, {**DATA, "cache": {"levels": [{"mediumType": "SSD", "path": "/x"}]}}, "a level's mediumType or path"),
        (DATA, {**DATA, "csi": {"juiceFSMountOptions": {"sub-dir": "a"}}}, "sub-dir"),
        ({**DATA, **KEYS, "noSync": True}, {**DATA, "noSync": True}, r"spec\.secretRef"),
    ],
)
def test_what_a_set_keeps_for_its_life(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    apply(keys(bucket="s3://copies"), sample_set(**before))
    record = find("imagenet", resolve())
    with pytest.raises(CannotChangeError, match=f"{said}.* cannot change.*prefeed sampleset delete imagenet"):
        apply(sample_set(**after))
    assert find("imagenet", resolve()) == record


@pytest.mark.parametrize(
    "after",
    [
        {"partitions": 4},
        {"cache": {"levels": [{"mediumType": "MEM", "cacheSize": 99}]}},
        {"csi": {"juiceFSMountOptions": {"get-timeout": 5, "cache-size": 9}}},
    ],
)
def test_what_may_change(after: dict[str, Any]) -> None:
    before = {"cache": {"levels": [{"mediumType": "MEM", "cacheSize": 10}]}}
    apply(sample_set(**{**DATA, **before}))
    assert [a.action for a in apply(sample_set(**{**DATA, **before, **after}))] == ["configured"]


def test_another_namespace_is_another_set() -> None:
    apply(sample_set(**DATA))
    document = sample_set(**DATA)
    document["metadata"]["namespace"] = "other"
    with pytest.raises(CannotChangeError, match="is in the namespace default, and names are unique"):
        apply(document)


def test_a_secret_that_changes_reaches_the_sets_that_have_it() -> None:
    found = applied(keys(bucket="s3://copies"), sample_set(**DATA, **KEYS))
    results = apply(secret("keys", **{"access-key": "new", "secret-key": "new", "bucket": "s3://copies"}))
    assert [(a.kind, a.name, a.action) for a in results] == [
        ("Secret", "keys", "configured"),
        ("SampleSet", "imagenet", "configured"),
    ]
    assert options_for("s3://copies/imagenet", found.settings(resolve()))["access_key_id"] == "new"


def test_a_secret_cannot_move_the_data_of_a_set() -> None:
    apply(keys(bucket="s3://copies"), sample_set(**DATA, **KEYS))
    with pytest.raises(CannotChangeError, match="the secret's bucket, which was s3://copies/imagenet"):
        apply(keys(bucket="s3://elsewhere"))
    apply(sample_set(**DATA, **KEYS))  # the bucket is the one it was


def test_many_at_once(sandbox: Sandbox) -> None:
    threads = [
        threading.Thread(target=apply, args=(sample_set(f"set-{i % 3}", partitions=i + 1, **DATA),)) for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(resolve()) == ["set-0", "set-1", "set-2"]
    leftovers = [path for path in (sandbox.home / "samplesets").rglob(".*") if path.name != ".lock"]
    assert leftovers == []


def test_a_record_that_is_cut_off_is_said() -> None:
    record = applied(sample_set(**DATA)).directory / "sampleset.json"
    for size in (record.stat().st_size // 2, 1, 0):
        os.truncate(record, size)
        with pytest.raises(SampleSetError, match=r"is damaged; apply the sample set imagenet again"):
            find("imagenet", resolve())
    assert names(resolve()) == ["imagenet"]


# ---------------------------------------------------------------- what is shown elsewhere

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "sampleset").glob("*.yaml"))
BLOCKS = re.findall(r"^```yaml\n(.+?)^```", (ROOT / "docs" / "guide" / "sample-sets.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("text", [*(path.read_text() for path in EXAMPLES), *BLOCKS], ids=lambda text: str(len(text)))
def test_documents_of_the_guide_and_the_examples_can_be_applied(text: str) -> None:
    documents = [document for document in load_documents(text, "example") if document["kind"] in KINDS]
    if documents:
        assert {a.action for a in apply_documents(documents, resolve())} == {"created"}
