"""A program that is forked from a warm process is like one that a new interpreter runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import warm

pytestmark = pytest.mark.usefixtures("sandbox")

PROGRAM = """
import json, os, select, signal, sys, threading

def everything():
    return {
        "arguments": sys.argv, "directory": os.getcwd(), "first path": sys.path[0], "environment": dict(os.environ),
        "shown": open("/proc/self/cmdline", "rb").read().rstrip(b"\\0").decode(),
        "shown variable": b"GIVEN=yes\\0" in open("/proc/self/environ", "rb").read(),
        "name": __name__, "file": __file__, "globals": sorted(globals()),
        "input": sys.stdin.read(), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
        "threads": threading.active_count(), "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "descriptors": [n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and os.path.exists(f"/proc/self/fd/{n}")],
        "streams": [(s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)],
    }

what = sys.argv[1]
if what == "tell":
    print(json.dumps(everything()))
elif what == "fail":
    raise ValueError("no")
elif what == "exit":
    sys.exit(int(sys.argv[2]))
elif what == "wait":
    print("waits", flush=True)
    select.select([], [], [])
"""


@pytest.fixture(params=["cold", "warm"])
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    programs = {str(path): ("json",)} if request.param == "warm" else {}
    monkeypatch.setattr(warm, "PROGRAMS", programs)
    return path


def start(program: Path, *arguments: str, **how: Any) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(program), *arguments], **{**pipes, **how})


def told(program: Path, **how: Any) -> dict[str, Any]:
    with start(program, "tell", "an argument", **how) as process:
        said, errors = process.communicate("asked", timeout=60)
    assert (process.returncode, errors) == (0, "")
    return dict(json.loads(said))


def test_it_has_what_it_was_given(program: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "GIVEN": "yes"}
    environment.pop("PYTHONUNBUFFERED", None)
    seen = told(program, env=environment, cwd="/usr")
    assert seen["arguments"] == [str(program), "tell", "an argument"]
    assert (seen["directory"], seen["first path"], seen["input"]) == ("/usr", str(tmp_path), "asked")
    assert seen["environment"].items() >= {**environment, "GIVEN": "yes"}.items()
    assert seen["environment"].keys() - environment.keys() <= {"LC_CTYPE"}
    assert seen["shown"] == "\0".join([sys.executable, str(program), "tell", "an argument"])
    assert seen["shown variable"]
    assert (seen["name"], seen["file"], seen["parent"], seen["threads"]) == ("__main__", str(program), os.getpid(), 1)
    assert (seen["leads"], seen["interrupt"], seen["descriptors"]) == (False, True, [])
    assert [stream[2] for stream in seen["streams"]] == [False, False, True]
    assert [stream[1] for stream in seen["streams"]][2] == "backslashreplace"
    assert not {"warm", "Job", "serve"} & set(seen["globals"])


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_a_program_may_be_given_as_text(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print(sys.argv, repr(sys.path[0]), __name__, '__file__' in globals(), 'json' in sys.modules)"
    monkeypatch.setattr(warm, "PROGRAMS", {f"-c {code}": ("json",)} if how == "warm" else {})
    ran = subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"['-c', 'x'] '' __main__ False {how == 'warm'}\n"


def tell_and_exit(pipe: Connection, ends: str) -> None:
    pipe.send((os.getppid(), multiprocessing.get_start_method(), "torch" in sys.modules, os.environ.get("GIVEN")))
    if ends == "exit":
        sys.exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["cold", "warm"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_multiprocessing(how: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have what they were given, their parent and their end; only that torch is there already is different."""
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setattr(warm, "_SPAWNED", warm._SPAWNED if how == "warm" else ())
    context: Any = multiprocessing.get_context(method)
    for ends, status in (("exit", 7), ("killed", -signal.SIGKILL)):
        receiving, sending = context.Pipe(duplex=False)
        with receiving, sending:
            process = context.Process(target=tell_and_exit, args=(sending, ends))
            process.start()
            parent, used, has_torch, given = receiving.recv()
            process.join()
        assert process.exitcode == status
        process.close()
        assert (parent == os.getpid(), used, has_torch, given) == (method == "spawn", method, how == "warm", "yes")


def test_a_session_and_descriptors_of_its_own(program: Path) -> None:
    reading, writing = os.pipe()
    try:
        seen = told(program, start_new_session=True, pass_fds=[writing])
    finally:
        os.close(reading)
        os.close(writing)
    assert (seen["leads"], seen["descriptors"]) == (True, [writing])


@pytest.mark.parametrize(("arguments", "status"), [(["exit", "7"], 7), (["fail"], 1)])
def test_it_ends_as_it_would(program: Path, arguments: list[str], status: int) -> None:
    with start(program, *arguments) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors.endswith("ValueError: no\n" if status == 1 else "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(program: Path, number: signal.Signals) -> None:
    with start(program, "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
