"""``prefeed stage`` and ``prefeed stage delete``: options, output, exit codes."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import pytest

from prefeed.cli import stage
from prefeed.copying import copies, staging
from prefeed.copying.copies import CopyRecord
from prefeed.copying.staging import StagePlan, StageResult
from prefeed.transfer.engine import CopyFailure, CopyProgress, CopySummary
from sandbox import Sandbox
from slow_files import write_files

FILES = {"a/1": b"x" * 100, "a/2": b"y" * 5000, "b/3": b"z" * 20_000}

PLAN = StagePlan(
    num_objects=1000, total_bytes=2 << 30, num_kept=0, num_to_copy=900, bytes_to_copy=1 << 30, num_left=100,
    left_bytes=1 << 30, num_removed=1, opens_per_gib=900, room_bytes=1 << 30, why="--size allows no more", has_links=True,
)  # fmt: skip
RECORD = CopyRecord(
    source="/mnt/photos", directory="/dev/shm/prefeed-staged-0/photos-1", state="partial", num_files=900, bytes=1 << 30,
    num_linked=100, linked_bytes=1 << 30, started=1.7e9, finished=1.7e9 + 10, pid=7,
)  # fmt: skip
SUMMARY = CopySummary(num_copied=900, bytes_copied=1 << 30, failures=(), full=None, seconds=4.5)
RESULT = StageResult(record=RECORD, plan=PLAN, summary=SUMMARY, failures=(), is_usable=True)


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


def test_the_path_is_all_of_stdout(run, origin: Path, sandbox: Sandbox) -> None:
    result = run(None, "stage", str(origin))

    assert result.exit_code == 0
    path = Path(result.stdout.removesuffix("\n"))
    assert path.is_relative_to(sandbox.memory_dir)
    assert {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()} == FILES
    assert result.stderr.startswith("prefeed: 3 files, 24.5 KiB copied in 0.")
    assert run(None, "stage", str(origin)).stderr == "prefeed: nothing copied; 3 files, 24.5 KiB in the copy\n"


def test_json_is_one_object_on_stdout(run, origin: Path) -> None:
    result = run(None, "stage", str(origin), "--json")

    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert Path(found["path"], "a/1").read_bytes() == FILES["a/1"]
    assert (found["state"], found["copied"], found["kept"], found["failures"]) == ("complete", 3, 0, [])


def test_a_place_on_disk_a_size_and_an_order(run, origin: Path, sandbox: Sandbox) -> None:
    disk = sandbox.root / "disk"
    disk.mkdir()
    order = sandbox.root / "order.txt"
    order.write_text("b/3\n")
    result = run(None, "stage", str(origin), "--to", str(disk), "--size", "21K", "--order", str(order))

    path = Path(result.stdout.removesuffix("\n"))
    assert path.is_relative_to(disk)
    assert [name for name in FILES if not (path / name).is_symlink()] == ["b/3"]
    assert "1 of 3 files" in result.stderr


def test_what_does_not_fit_is_said(run, origin: Path) -> None:
    result = run(None, "stage", str(origin), "--size", "16K")

    assert result.exit_code == 0
    assert "2 of 3 files (5.0 KiB of 24.5 KiB) fit in" in result.stderr
    assert "--size allows no more; the others are links to the origin; each GiB saves" in result.stderr


def test_a_failure_ends_with_1_and_the_path_is_still_there(run, origin: Path) -> None:
    (origin / "made up").symlink_to("/proc/self/status")
    result = run(None, "stage", str(origin))

    assert result.exit_code == 1
    assert (Path(result.stdout.removesuffix("\n")) / "made up").is_symlink()
    assert f"prefeed: {origin}/made up reports a size of 0, and is not empty\n" in result.stderr


def test_what_is_not_there_is_an_error(run, sandbox: Sandbox) -> None:
    result = run(None, "stage", str(sandbox.root / "nothing"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "does not exist" in result.stderr

    result = run(None, "stage", "delete", str(sandbox.root / "nothing"), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "not-a-copy"


@pytest.mark.parametrize(
    "arguments", [["stage"], ["stage", "x", "--list"], ["stage", "delete"], ["stage", "delete", "x", "--all"], ["stage", "x", "--order", "no"]]
)  # fmt: skip
def test_wrong_usage_ends_with_2(run, arguments: list[str]) -> None:
    assert run(None, *arguments).exit_code == 2


def test_a_bad_size_is_an_error(run, origin: Path) -> None:
    result = run(None, "stage", str(origin), "--size", "lots")
    assert result.exit_code == 1
    assert "'lots' is not a size" in result.stderr


def test_a_copy_of_another_node_is_not_gone(run, origin: Path) -> None:
    """Nodes that share the home cannot see each other's memory; one and the same path there is two copies."""
    path = run(None, "stage", str(origin)).stdout.removesuffix("\n")
    shutil.rmtree(Path(path).parent)
    with pytest.MonkeyPatch.context() as patched:
        for module in (copies, staging):
            patched.setattr(module, "host_name", lambda: "other")
        assert run(None, "stage", "list").stdout == "nothing is staged\n"
        run(None, "stage", str(origin))
        assert "complete" in run(None, "stage", "list").stdout
        run(None, "stage", "delete", "--all")
    assert "missing" in run(None, "stage", "list").stdout


def test_list_and_unstage(run, origin: Path, sandbox: Sandbox) -> None:
    assert run(None, "stage", "list").stdout == "nothing is staged\n"
    assert run(None, "stage", "delete", "--all").stdout == "nothing is staged\n"
    path = run(None, "stage", str(origin)).stdout.removesuffix("\n")

    header, line = run(None, "stage", "list").stdout.splitlines()
    assert header.split() == ["source", "path", "state", "files", "size", "when"]
    assert line.split()[:6] == [str(origin), path, "complete", "3", "24.5", "KiB"]
    [copy] = json.loads(run(None, "stage", "list", "--json").stdout)["copies"]
    assert (copy["path"], copy["num_files"], copy["state"]) == (path, 3, "complete")

    assert run(None, "stage", "delete", path).stdout == f"{path}: 3 files, 24.5 KiB freed\n"
    assert list(sandbox.memory_dir.iterdir()) == []
    run(None, "stage", str(origin))
    assert json.loads(run(None, "stage", "delete", "--all", "--json").stdout)["deleted"][0]["path"] == path
    assert run(None, "stage", "list").stdout == "nothing is staged\n"


def test_a_copy_that_is_gone_is_listed_so(run, origin: Path) -> None:
    path = Path(run(None, "stage", str(origin)).stdout.removesuffix("\n"))
    shutil.rmtree(path.parent)

    assert "missing; stage it again, or delete it to remove this line" in run(None, "stage", "list").stdout


def test_a_memory_directory_on_disk_is_said(
    run, origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = sandbox.root / "disk"
    disk.mkdir()
    monkeypatch.setenv("PREFEED_MEMORY_DIR", str(disk))

    assert f"prefeed: {disk} is not a tmpfs: the copy will be on disk\n" in run(None, "stage", str(origin)).stderr


def test_names_with_odd_bytes_are_printed_as_they_are(run, origin: Path, sandbox: Sandbox) -> None:
    disk = sandbox.root / os.fsdecode(b"d\xff")
    disk.mkdir()
    result = run(None, "stage", str(origin), "--to", str(disk))

    assert result.stdout_bytes.removesuffix(b"\n").startswith(os.fsencode(disk))
    assert run(None, "stage", "delete", "--all").exit_code == 0


# ---------------------------------------------------------------- the views


def test_nothing_is_said_of_a_plan_in_which_all_fits() -> None:
    plan = StagePlan(**{**{name: getattr(PLAN, name) for name in PLAN.__slots__}, "num_left": 0, "num_removed": 0})
    assert stage.plan_lines(plan, place="/dev/shm") == []


def test_a_plan_in_words() -> None:
    assert stage.plan_lines(PLAN, place="/dev/shm") == [
        "900 of 1,000 files (1.0 GiB of 2.0 GiB) fit in /dev/shm: --size allows no more; the others are links to the origin; each GiB saves 900 opens per epoch",
        "1 file removed from the copy: the origin no longer has them",
    ]


def test_a_result_in_words() -> None:
    assert stage.result_lines(RESULT) == [
        "900 files, 1.0 GiB copied in 4.5 s (200 files/s, 227.6 MiB/s); 900 files, 1.0 GiB in the copy, 100 links to the origin"
    ]
    failures = tuple(CopyFailure(path=str(n), code="c", message=f"{n} is bad") for n in range(7))
    bad = StageResult(record=RECORD, plan=PLAN, summary=SUMMARY, failures=failures, is_usable=False)
    assert stage.result_lines(bad)[1:] == [
        "0 is bad", "1 is bad", "2 is bad", "3 is bad", "4 is bad", "and 2 more could not be copied",
        "0 files missing, so the copy cannot be used; run the same command to try again",
    ]  # fmt: skip


@pytest.mark.usefixtures("sandbox")
def test_the_bar_shows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    bar = stage.StageBar()
    with bar.progress:
        bar.listing(10, 1000)
        bar.planned(PLAN)
        bar.copying(CopyProgress(num_copied=450, bytes_copied=1 << 29, seconds=1.0))
    [task] = bar.progress.tasks

    assert (task.completed, task.total, task.fields["note"]) == (1 << 29, 1 << 30, "450 of 900 files")
