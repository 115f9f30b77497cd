from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefeed.config import Config, resolve
from prefeed.errors import JobSpecError
from prefeed.jobs import running
from prefeed.jobs.records import FAILED, SUCCEEDED, JobRecord, JobRecords
from prefeed.jobs.running import JobEvents, apply_job, work_detached
from prefeed.jobs.spec import parse_spec, resolve_job
from prefeed.sampleset.records import is_being_set_up
from prefeed.sources.credentials import write_credentials
from prefeed.sources.store_access import endpoint_of
from prefeed.system.machine import Process
from prefeed.transfer.mounted import MountRecord
from sandbox import Sandbox
from unit.sampleset.documents import applied, apply, keys, sample_set

BOS = "https://s3.bj.bcebos.com"


@pytest.mark.parametrize("end", ["source", "destination"])
def test_a_place_at_one_provider_is_not_looked_for_at_another(sandbox: Sandbox, tmp_path: Path, end: str) -> None:
    """There are buckets of the same name at Amazon, and they are somebody's."""
    options = {"source": str(tmp_path), "destination": str(tmp_path / "t"), end: "bos://photos.bj.bcebos.com/train"}
    document = {"type": "sync", "syncOptions": options}

    with pytest.raises(JobSpecError, match=rf"is s3://photos/train at {BOS}, but the settings use another endpoint"):
        resolve_job("one", parse_spec(document), document, resolve())


@pytest.mark.usefixtures("sandbox")
def test_a_sync_uses_its_secret_for_the_place_that_is_not_the_sets() -> None:
    of_set, of_job = "http://127.0.0.1:1", "http://127.0.0.1:2"
    apply(keys(endpoint=of_set), keys("copies", endpoint=of_job))
    apply(sample_set(source={"uri": "s3://photos/train", "secretRef": {"name": "keys"}}))
    options = {"source": "s3://photos/train/a", "destination": "s3://copies"}
    document = {"type": "sync", "sampleSetRef": "imagenet", "secretRef": "copies", "syncOptions": options}

    places = resolve_job("one", parse_spec(document), document, resolve()).places

    assert [endpoint_of(place.url, place.settings) for place in places] == [of_set, of_job]


@pytest.mark.usefixtures("sandbox")
def test_a_detached_job_that_cannot_be_done_any_more_has_failed(tmp_path: Path) -> None:
    """It was resolved when it was applied; what its process finds may be another home."""
    records = JobRecords.of("", resolve())
    spec = {"type": "sync", "syncOptions": {"source": "bos://photos.bj.bcebos.com/train", "destination": str(tmp_path)}}
    with records.lock():
        records.write(JobRecord(id="one", type="sync", spec=spec, created=1.0, process=Process.of(os.getpid())))

    record = work_detached("one", "", resolve(), JobEvents())

    assert (record.phase, record == records.read("one")) == (FAILED, True)
    assert f"at {BOS}, but the settings use another endpoint" in record.message


@pytest.mark.usefixtures("sandbox")
def test_every_set_of_a_job_is_held_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is named by its URL alone: it is not deleted, nor brought up, meanwhile."""
    sets = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.bin").write_bytes(b"1")
        sets[name] = applied(sample_set(name, source={"uri": str(tmp_path / name)}), name=name)
    options = {"source": "sampleset://one", "destination": str(tmp_path / "copy")}
    document = {"type": "sync", "sampleSetRef": "two", "syncOptions": options}
    held: list[bool] = []
    do_job = running.do_job
    monkeypatch.setattr(
        running, "do_job", lambda *given: held.extend(map(is_being_set_up, sets.values())) or do_job(*given)
    )

    record = apply_job(resolve_job("copy", parse_spec(document), document, resolve()), resolve(), JobEvents())

    assert (record.phase, record.message, held) == (SUCCEEDED, "", [True, True])
    assert not any(map(is_being_set_up, sets.values()))


@pytest.mark.usefixtures("sandbox")
def test_one_home_remembers_the_mounts_of_two_places_from_any_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of a set would else delete what a sync without it has copied from a mount that is gone now."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.bin").write_bytes(b"1")
    applied(sample_set(source={"uri": str(tmp_path / "data")}))
    document = {"type": "sync", "sampleSetRef": "imagenet", "syncOptions": {"destination": str(tmp_path / "copy")}}
    homes: list[Path] = []

    def recorded(source: str, target: str, config: Config) -> MountRecord:
        homes.append(config.home)
        return MountRecord(source, target, config)

    monkeypatch.setattr("prefeed.jobs.sync.MountRecord", recorded)

    record = apply_job(resolve_job("one", parse_spec(document), document, resolve()), resolve(), JobEvents())
    assert (record.phase, homes) == (SUCCEEDED, [resolve().home])


def test_the_endpoint_that_settings_name_counts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert endpoint_of("s3://photos/train", resolve()) == "https://amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert endpoint_of("s3://photos/train", resolve()) == "http://localhost:9000"
    write_credentials(sandbox.home, [{"url": "s3://photos", "endpoint": BOS}])
    assert endpoint_of("s3://photos/train", resolve()) == BOS
