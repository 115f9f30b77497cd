"""``prefeed job`` on real directories and real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from leaks import wait_until
from prefeed.config import resolve
from prefeed.jobs import running
from prefeed.jobs.records import FAILED, RUNNING, SUCCEEDED, JobRecord, JobRecords, all_jobs
from prefeed.system.machine import Process
from servers import http_server, silent, write_index
from unit.jobs.trees import make, names, tree

pytestmark = pytest.mark.usefixtures("sandbox")

Run = Callable[..., Result]
FILES = {f"c{number % 3}/{number}.jpg": bytes([number]) * 1000 for number in range(30)}
HEAD = "apiVersion: batch.paddlepaddle.org/v1alpha1\nkind: SampleJob\nmetadata: {name: NAME}\nspec:\n"


@pytest.fixture(autouse=True)
def _detached_jobs_are_collected() -> Iterator[None]:
    yield

    def have_ended() -> bool:
        running.reap_ended()
        return not running._children

    assert wait_until(have_ended, timeout_seconds=60)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "source", FILES)


def job_file(tmp_path: Path, spec: str, name: str = "one") -> str:
    file = tmp_path / f"{name}.yaml"
    file.write_text(HEAD.replace("NAME", name) + spec)
    return str(file)


def sync_spec(source: object, target: object, more: str = "") -> str:
    return f"  type: sync\n  syncOptions: {{source: '{source}', destination: '{target}'{more}}}\n"


# ---------------------------------------------------------------- at once


def test_sync_prints_what_it_did_and_continues(run: Run, source: Path, tmp_path: Path) -> None:
    first = run(None, "sync", str(source), str(tmp_path / "t"), "--exclude", "*.tmp")
    second = run(None, "sync", str(source), str(tmp_path / "t"), "--json")

    assert first.exit_code == 0
    assert first.stdout.startswith("30 objects, 29.3 KiB copied in ")
    assert json.loads(second.stdout)["num_skipped"] == 30
    assert tree(tmp_path / "t") == FILES


def test_exclude_and_include_count_in_their_order(run: Run, source: Path, tmp_path: Path) -> None:
    one = run(None, "sync", str(source), str(tmp_path / "1"), "--exclude=c0/", "--include", "c0/3.jpg")
    two = run(None, "sync", str(source), str(tmp_path / "2"), "--include=3.jpg", "--exclude", "*.jpg")

    assert (one.exit_code, two.exit_code) == (0, 0)
    assert set(tree(tmp_path / "1")) == {path for path in FILES if not path.startswith("c0/")}
    assert set(tree(tmp_path / "2")) == {"c0/3.jpg"}


def test_a_failure_ends_with_1(run: Run, source: Path, tmp_path: Path) -> None:
    make(tmp_path / "t", {"c0": b"in the way"})

    result = run(None, "sync", str(source), str(tmp_path / "t"))

    assert result.exit_code == 1
    assert "10 objects failed; run the same command to try again" in result.stdout


def test_a_dry_run_says_what_it_would_do(run: Run, source: Path, tmp_path: Path) -> None:
    result = run(None, "sync", str(source), str(tmp_path / "t"), "--dry-run")

    assert f"copy {source}/c0/0.jpg\n" in result.stdout
    assert "30 objects, 29.3 KiB would be copied" in result.stdout


def test_warm_up_fills_in_order_and_clear_frees_part_of_it(run: Run, source: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("c2/2.jpg\n./c0/0.jpg\n\nc2/2.jpg\n")

    by_file = json.loads(run(None, "warm", str(source), "--file", str(listed), "--json").stdout)
    parts = [
        json.loads(
            run(None, "warm", str(source), "c1", "--strategy", "random", "--partitions", "3",
                "--partition", str(part), "--json").stdout
        )["objects"]
        for part in range(3)
    ]  # fmt: skip
    cleared = json.loads(run(None, "clear", str(source), "c1", "--json").stdout)
    rest = json.loads(run(None, "clear", str(source), "--json").stdout)

    assert (by_file["objects"], by_file["fetched"]) == (2, 2)
    assert (sum(parts), max(parts)) == (10, 4)
    assert (cleared["entries"], rest["entries"]) == (10, 2)
    assert tree(source) == FILES


def test_removed_data_is_not_served_any_more(run: Run, source: Path, tmp_path: Path) -> None:
    run(None, "warm", str(source))
    file = job_file(tmp_path, f"  type: rmr\n  rmrOptions: {{paths: [c0], url: '{source}'}}\n")
    assert run(None, "job", "apply", "-f", file, "--yes").exit_code == 0

    warmed = json.loads(run(None, "warm", str(source), "--json").stdout)

    assert (warmed["objects"], warmed["resident"], warmed["failed"]) == (20, 20, 0)


# ---------------------------------------------------------------- recorded


def test_a_job_is_recorded_and_done_once(run: Run, source: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, sync_spec(source, tmp_path / "t"))

    first = run(None, "job", "apply", "-f", file)
    (source / "new").write_bytes(b"n")
    again = run(None, "job", "apply", "-f", file)
    other = run(None, "job", "apply", "-f", job_file(tmp_path, sync_spec(source, tmp_path / "u")))

    assert (first.exit_code, first.stdout) == (0, "one: Succeeded\n")
    assert (again.exit_code, tree(tmp_path / "t")) == (0, FILES)
    assert again.stdout.startswith("one: Succeeded earlier, and was not run again")
    assert other.exit_code == 1
    assert "give the new job another name" in other.stderr
    assert "sync  -    Succeeded" in run(None, "job", "list").stdout
    assert json.loads(run(None, "job", "describe", "one", "--json").stdout)["result"]["num_copied"] == 30


def test_a_failed_job_runs_again(run: Run, source: Path, tmp_path: Path) -> None:
    make(tmp_path / "t", {"c0": b"in the way"})
    file = job_file(tmp_path, sync_spec(source, tmp_path / "t"))

    failed = run(None, "job", "apply", "-f", file)
    (tmp_path / "t/c0").unlink()
    again = run(None, "job", "apply", "-f", file)

    assert (failed.exit_code, again.exit_code) == (1, 0)
    assert "Failed: 10 of 30 objects failed" in failed.stdout
    assert tree(tmp_path / "t") == FILES


def test_jobs_that_remove_want_a_yes(run: Run, source: Path, tmp_path: Path) -> None:
    file = job_file(tmp_path, f"  type: rmr\n  rmrOptions: {{paths: [c0], url: '{source}'}}\n")

    asked = run(None, "job", "apply", "-f", file)
    assert (asked.exit_code, tree(source)) == (2, FILES)
    assert "10 files, 9.8 KiB will be deleted permanently at the origin" in asked.stderr
    assert run(None, "job", "apply", "-f", file, "--yes").exit_code == 0
    assert len(tree(source)) == 20


def test_a_job_whose_process_is_gone_has_failed(run: Run) -> None:
    records = JobRecords.of("", resolve())
    with records.lock():
        records.write(JobRecord(id="lost", type="sync", phase=RUNNING, process=replace(Process.of(1), pid=2**22 + 1)))

    found = records.read("lost")

    assert found is not None
    assert found.phase == FAILED
    assert "run it again" in found.message
    assert "has ended already" in run(None, "job", "stop", "lost").stdout


def test_a_process_number_that_was_given_again_is_not_hit() -> None:
    own = Process.of(os.getpid())

    assert own.is_alive
    assert not Process(pid=own.pid, started=own.started + 1, boot=own.boot).is_alive
    assert not Process(pid=own.pid, started=own.started, boot="another").is_alive


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_detached_jobs_run_one_by_one_and_can_be_ended(run: Run, source: Path, tmp_path: Path, how: str) -> None:
    write_index(source)
    with http_server(source) as server:
        server.answers["/c0/3.jpg"] = silent
        spec = sync_spec(server.url, tmp_path / "t")
        first = run(None, "job", "apply", "--detach", "-f", job_file(tmp_path, spec, "first"), "--json")
        [started] = json.loads(first.stdout)["jobs"]
        second = run(
            None, "job", "apply", "--detach", "-f", job_file(tmp_path, sync_spec(source, tmp_path / "u"), "second")
        )
        assert second.stdout == "second: Pending\n"
        assert wait_until(lambda: len(names(tmp_path / "t")) >= 29, timeout_seconds=60)
        assert not (tmp_path / "u").exists()

        busy = run(None, "job", "apply", "-f", job_file(tmp_path, spec, "first"))
        assert busy.exit_code == 1
        assert f"is Running as process {started['process']['pid']}" in busy.stderr
        if how == "terminate":
            said = run(None, "job", "stop", "first").stdout
            assert f"first: running as process {started['process']['pid']}, ended" in said
        else:
            os.kill(started["process"]["pid"], signal.SIGKILL)
        server.released.set()

        phases = lambda: {record.id: record.phase for _, record in all_jobs(resolve())}  # noqa: E731
        assert wait_until(lambda: phases() == {"first": FAILED, "second": SUCCEEDED}, timeout_seconds=60), phases()
    assert tree(tmp_path / "u") == tree(source)


def test_terminate_in_a_document_ends_those_before_it(run: Run, source: Path, tmp_path: Path) -> None:
    write_index(source)
    with http_server(source) as server:
        server.answers["/c0/3.jpg"] = silent
        run(None, "job", "apply", "--detach", "-f", job_file(tmp_path, sync_spec(server.url, tmp_path / "t"), "first"))
        spec = "  terminate: true\n" + sync_spec(source, tmp_path / "u")
        result = run(None, "job", "apply", "-f", job_file(tmp_path, spec, "second"))
        server.released.set()

    assert (result.exit_code, result.stdout) == (0, "second: Succeeded\n")
    assert "first: " in result.stderr
    assert "ended" in result.stderr


def test_what_is_terminated_ends_and_begins_no_other_job_of_its_file(source: Path, tmp_path: Path, run: Run) -> None:
    """Whoever terminates waits for the process, and would kill whatever job it has gone on to."""
    write_index(source)
    with http_server(source) as server:
        server.answers["/c0/3.jpg"] = silent
        first, second = (
            Path(job_file(tmp_path, sync_spec(place, tmp_path / name), name)).read_text()
            for name, place in (("first", server.url), ("second", source))
        )
        file = tmp_path / "both.yaml"
        file.write_text(f"{first}---\n{second}")
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed", "job", "apply", "-f", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )  # fmt: skip
        assert wait_until(lambda: len(names(tmp_path / "first")) >= 29, timeout_seconds=60)
        said = run(None, "job", "stop", "first").stdout
        server.released.set()
        _, err = process.communicate(timeout=60)

    assert said == f"first: running as process {process.pid}, ended\n"
    assert process.returncode == 143
    assert b"the remaining jobs of the file were not started" in err
    assert [(record.id, record.phase, record.message) for _, record in all_jobs(resolve())] == [
        ("first", FAILED, "terminated")
    ]
    assert not (tmp_path / "second").exists()


# ---------------------------------------------------------------- secrets


def test_no_secret_is_seen_anywhere(source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["PREFEED_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    secret = "s3cr3t-of-the-web"
    write_index(source)
    with http_server(source) as server:
        server.answers["/c0/3.jpg"] = silent
        stores = [{"url": server.url, "access-key": "me", "secret-key": secret}]
        (home / "credentials.json").write_text(json.dumps({"format": 1, "stores": stores}))
        (home / "credentials.json").chmod(0o600)
        file = job_file(tmp_path, sync_spec(server.url, tmp_path / "t"))
        [record] = json.loads(run(None, "job", "apply", "--detach", "-f", file, "--json").stdout)["jobs"]
        assert wait_until(lambda: len(names(tmp_path / "t")) >= 29, timeout_seconds=60)
        command = Path(f"/proc/{record['process']['pid']}/cmdline").read_bytes()
        run(None, "job", "stop", "one")
        server.released.set()
    assert all("authorization" in {name.lower() for name in headers} for _, _, headers in server.requests)
    seen = [command, *(path.read_bytes() for path in (home / "jobs").iterdir())]
    seen.append(run(None, "job", "describe", "one").output.encode())
    assert not any(secret.encode() in text for text in seen)

    refused = subprocess.run(
        [sys.executable, "-m", "prefeed", "sync", f"http://me:{secret}@127.0.0.1:1/x", str(tmp_path / "x")],
        capture_output=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert secret.encode() not in refused.stdout + refused.stderr
    assert b"credentials.json" in refused.stderr
