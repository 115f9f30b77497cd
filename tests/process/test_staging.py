"""SIGKILL, Ctrl-C and company while a data set is copied: no half file in the copy, and the next run goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.copying import staging as staging_module
from prefeed.copying.copies import INTERRUPTED, find_copies, list_copies, unstage
from prefeed.copying.staging import StageRequest, StageResult, stage
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.entries import Entry
from prefeed.transfer.rooted_dir import RootedDir
from process.children import child_running
from process.conditions import wait_for
from sandbox import Sandbox
from servers import S3_ENVIRONMENT, FileServer, http_server, moto_server, silent, write_index
from slow_files import write_files

FILES = {f"class {number % 3}/{number}.jpg": bytes([number]) * (number * 500) for number in range(40)}
DIE_AT = 20


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


@pytest.fixture
def server(origin: Path) -> Iterator[FileServer]:
    write_index(origin)
    with http_server(origin) as server:
        yield server


def staged(origin: Path, sandbox: Sandbox) -> StageResult:
    return stage(StageRequest(url=str(origin), place=sandbox.memory_dir), resolve())


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------- killed


def _stage_and_die(origin: Path, sandbox: Sandbox, step: str, pipe: Connection) -> None:
    place, write_record = DirectorySink._publish, staging_module.write_record
    placed, counting = 0, threading.Lock()

    class HalfBody:
        version = "v"
        size_bytes = 1 << 20

        def chunks(self) -> Iterator[bytes]:
            yield b"half"
            die()

    def dying_place(self: DirectorySink, temporary: str, path: str) -> None:
        nonlocal placed
        with counting:  # several threads place files
            placed += 1
            number = placed
        if number == DIE_AT and step == "a file is half written":
            self._write(f"{temporary}-half", Entry("half", HalfBody.size_bytes), HalfBody())
        if number == DIE_AT and step == "a file is written":
            die()
        place(self, temporary, path)
        if number == DIE_AT and step == "a file has its name":
            die()

    def dying_write_record(record: object, config: object) -> None:
        if step == "the first record" or (step == "the last record" and placed == len(FILES)):
            die()
        write_record(record, config)  # type: ignore[arg-type]

    DirectorySink._publish = dying_place  # type: ignore[method-assign]
    staging_module.write_record = dying_write_record
    staged(origin, sandbox)


STEPS = ["the first record", "a file is half written", "a file is written", "a file has its name", "the last record"]


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_leaves_whole_files_and_the_next_continues(origin: Path, sandbox: Sandbox, step: str) -> None:
    with child_running(_stage_and_die, origin, sandbox, step) as (process, _):
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    [directory] = sandbox.memory_dir.glob("prefeed-staged-*/*")
    there = tree(directory / "data")
    assert there.items() <= FILES.items()
    if step != "the first record":
        assert [copy.state for copy in list_copies(resolve())] == [INTERRUPTED]

    result = staged(origin, sandbox)

    assert result.summary.num_copied == len(FILES) - len(there)
    assert tree(result.record.data) == FILES
    assert sorted(os.listdir(directory)) == ["copy.json", "data"]


def _unstage_and_die(origin: Path, pipe: Connection) -> None:
    def removing_some(self: RootedDir, path: str, *, failed: object) -> None:
        for file in sorted(Path(self.root, path).rglob("*.jpg"))[:DIE_AT]:
            file.unlink()
        die()

    RootedDir.remove = removing_some  # type: ignore[method-assign, assignment]
    for copy in find_copies(str(origin), resolve()):
        unstage(copy, resolve())


@pytest.mark.parametrize("then", ["unstage", "stage"])
def test_a_killed_removal_is_finished_or_made_up_for(origin: Path, sandbox: Sandbox, then: str) -> None:
    staged(origin, sandbox)
    with child_running(_unstage_and_die, origin) as (process, _):
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    assert [copy.state for copy in list_copies(resolve())] == [INTERRUPTED]

    if then == "stage":
        assert staged(origin, sandbox).summary.num_copied == DIE_AT
    for copy in find_copies(str(origin), resolve()):
        unstage(copy, resolve())
    assert list(sandbox.memory_dir.iterdir()) == []


# ---------------------------------------------------------------- the command


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``prefeed`` in a process of its own; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "prefeed", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def copied_to(sandbox: Sandbox) -> dict[str, bytes]:
    return {
        path: data for found in sandbox.memory_dir.glob("prefeed-staged-*/*/data") for path, data in tree(found).items()
    }


def test_ctrl_c_says_how_to_resume(server: FileServer, sandbox: Sandbox) -> None:
    server.answers["/class%201/1.jpg"] = silent
    with command("stage", server.url) as first:
        wait_for(lambda: len(copied_to(sandbox)) == len(FILES) - 1, "all files but one are copied")
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (130, "")
    assert err == "prefeed: interrupted; copied objects are kept, and the same command resumes\n"

    server.answers.clear()
    server.requests.clear()
    with command("stage", server.url) as second:
        out, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert tree(Path(out.removesuffix("\n"))) == FILES
    assert [path for _, path, _ in server.requests] == ["/index.txt", "/class%201/1.jpg"]


def test_a_second_run_waits_for_the_first_and_copies_nothing_again(server: FileServer, sandbox: Sandbox) -> None:
    server.answers["/class%201/1.jpg"] = lambda handler: (
        handler.server.released.wait(), handler.reply(200, FILES["class 1/1.jpg"]),
    )  # fmt: skip
    with command("stage", server.url) as first:
        wait_for(lambda: len(copied_to(sandbox)) == len(FILES) - 1, "all files but one are copied")
        with command("stage", server.url) as second:
            assert second.stderr is not None
            assert second.stderr.readline() == f"prefeed: process {first.pid} is making the same copy; waiting for it\n"
            with command("stage", "delete", server.url) as third:
                _, err = third.communicate(timeout=60)
            assert third.returncode == 1
            assert f"process {first.pid} is using" in err
            server.released.set()
            outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert outputs[0] == outputs[1]
    assert tree(Path(outputs[0].removesuffix("\n"))) == FILES
    assert sorted(path for _, path, _ in server.requests if path != "/index.txt") == sorted(
        f"/{path.replace(' ', '%20')}" for path in FILES
    )


def test_the_path_alone_is_on_stdout_so_that_a_shell_can_use_it(origin: Path, sandbox: Sandbox) -> None:
    prefeed = f"{sys.executable} -m prefeed"
    line = f"{sys.executable} -c 'import os, sys; print(len(sys.argv), sorted(os.listdir(sys.argv[1])))' $({prefeed} stage {origin})"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)

    assert ran.stdout == "2 ['class 0', 'class 1', 'class 2']\n"
    assert "40 files" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user")
def test_a_file_that_may_not_be_read_is_reported(sandbox: Sandbox) -> None:
    """As a user without rights, from a directory open to all."""
    for path in (sandbox.root, sandbox.home, sandbox.memory_dir, sandbox.runtime_dir):
        path.chmod(0o777)
    origin = write_files(sandbox.root / "origin", {"a": b"open", "b": b"closed"})
    (origin / "b").chmod(0o600)
    line = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", sys.executable, "-m", "prefeed", "stage"]
    ran = subprocess.run([*line, str(origin), "--json"], capture_output=True, text=True, check=False, cwd="/")

    if "Permission denied" in ran.stderr and not ran.stdout:
        pytest.skip(f"the interpreter is not open to other users: {ran.stderr.strip()[-200:]}")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert [failure["code"] for failure in found["failures"]] == ["access-denied"]
    assert (found["num_files"], found["num_linked"]) == (1, 1)
    assert "may not be read by user 12345" in ran.stderr


def test_a_bucket_is_copied_by_its_etags(origin: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with moto_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket="photos")
        for path, data in FILES.items():
            client.put_object(Bucket="photos", Key=f"train/{path}", Body=data)

        def run() -> dict[str, object]:
            line = [sys.executable, "-m", "prefeed", "stage", "s3://photos/train", "--json"]
            ran = subprocess.run(line, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr
            return dict(json.loads(ran.stdout))

        first = run()
        assert tree(Path(str(first["path"]))) == FILES
        client.put_object(Bucket="photos", Key="train/class 1/1.jpg", Body=b"!" * 500)
        client.delete_object(Bucket="photos", Key="train/class 2/2.jpg")
        second = run()
        client.close()

    assert (first["copied"], second["copied"], second["removed"]) == (40, 1, 1)
    expected = FILES | {"class 1/1.jpg": b"!" * 500}
    del expected["class 2/2.jpg"]
    assert tree(Path(str(second["path"]))) == expected
