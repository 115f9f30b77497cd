from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import JobSpecError
from prefeed.jobs.spec import parse_spec, resolve_job
from prefeed.sources.credentials import write_credentials
from prefeed.sources.objectstore import endpoint_of
from sandbox import Sandbox

BOS = "https://s3.bj.bcebos.com"


@pytest.mark.parametrize("end", ["source", "destination"])
def test_a_place_at_one_provider_is_not_looked_for_at_another(sandbox: Sandbox, tmp_path: Path, end: str) -> None:
    """There are buckets of the same name at Amazon, and they are somebody's."""
    options = {"source": str(tmp_path), "destination": str(tmp_path / "t"), end: "bos://photos.bj.bcebos.com/train"}
    request = parse_spec("one", {"type": "sync", "syncOptions": options})

    with pytest.raises(JobSpecError, match=rf"is s3://photos/train at {BOS}, which is not where"):
        resolve_job(request, resolve())


def test_the_endpoint_that_settings_name_counts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert endpoint_of("s3://photos/train", resolve()) == "https://amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert endpoint_of("s3://photos/train", resolve()) == "http://localhost:9000"
    write_credentials(sandbox.home, [{"url": "s3://photos", "endpoint": BOS}])
    assert endpoint_of("s3://photos/train", resolve()) == BOS
