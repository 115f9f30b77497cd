"""The programs of ``examples/`` run as they stand there, on pictures that they make up."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.parity import caches_of, make_session
from servers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*line: str, cwd: Path, **environment: str) -> str:
    """Return what a program prints; it must end well."""
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        line, cwd=cwd, env={**os.environ, "PATH": scripts, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def evaluations(printed: str) -> list[str]:
    """Return the accuracy of each evaluation."""
    return re.findall(r"^epoch: \d+, acc: ([0-9.]+), eval_cost:\d+\.\d\d$", printed, re.MULTILINE)


def test_evaluate_while_training(tmp_path: Path) -> None:
    """The same accuracies with the cache and without; with it each picture is prepared once."""
    session = make_session()
    line = [sys.executable, str(EXAMPLES / "evaluate_while_training.py"), "--made_up", "12"]
    plain = run(*line, cwd=tmp_path)
    cached = run(*line, "--enable_cache", "True", "--cache_session_id", str(session), cwd=tmp_path)
    assert len(evaluations(plain)) == 3
    assert evaluations(cached) == evaluations(plain)
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (12, 24, 12)
    assert found.memory_bytes >= 12 * 4 * 3 * 224 * 224


def test_evaluation_may_begin_late(tmp_path: Path) -> None:
    line = [sys.executable, str(EXAMPLES / "evaluate_while_training.py"), "--made_up", "4", "--num_workers", "0"]
    assert len(evaluations(run(*line, "--eval_start_epoch", "2", "--eval_interval", "2", cwd=tmp_path))) == 1
    assert evaluations(run(*line, "--run_eval", "False", cwd=tmp_path)) == []


def test_cache_without_a_session_is_an_error(tmp_path: Path) -> None:
    line = [sys.executable, str(EXAMPLES / "evaluate_while_training.py"), "--made_up", "4", "--enable_cache", "True"]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "session_id must be provided" in ran.stderr


def losses(printed: str) -> list[str]:
    return re.findall(r"avg loss: ([0-9.]+)$", printed, re.MULTILINE)


def test_train_from_network_storage(tmp_path: Path) -> None:
    """The same losses with the cache and without: augmentation draws as it does without one."""
    session = make_session()
    line = [sys.executable, str(EXAMPLES / "train_from_network_storage.py"), "--made_up", "16"]
    plain = run(*line, cwd=tmp_path)
    cached = run(*line, "--enable_cache", "True", "--cache_session_id", str(session), cwd=tmp_path)
    assert len(losses(plain)) == 3
    assert losses(cached) == losses(plain)
    assert len(set(losses(plain))) == 3
    (found,) = caches_of(session)
    assert (found.memory_entries, found.hits, found.misses) == (16, 32, 16)


@pytest.mark.parametrize("script", ["run_evaluate_while_training.sh", "run_train_nfs_cache.sh"])
def test_shell_scripts(tmp_path: Path, script: str) -> None:
    """They start a server, make a session, train, and leave nothing behind."""
    printed = run("bash", str(EXAMPLES / script), cwd=tmp_path, MS_CACHE_PORT=str(free_port()))
    assert "Cache server startup completed successfully!" in printed
    assert re.search(r"^cache: \d+ rows of \d+ bytes, (\d+) hits, \d+ misses$", printed, re.MULTILINE)
    assert "Drop session" in printed
    assert "has been stopped successfully" in printed


def test_evaluation_of_a_folder_that_is_given(tmp_path: Path) -> None:
    """A second run in the same session prepares nothing."""
    session = make_session()
    runpy.run_path(str(EXAMPLES / "evaluate_while_training.py"))["make_pictures"](tmp_path / "data", count=6)
    line = [
        sys.executable, str(EXAMPLES / "evaluate_while_training.py"), "--dataset_path", str(tmp_path / "data"),
        "--epoch_size", "1", "--enable_cache", "True", "--cache_session_id", str(session),
    ]  # fmt: skip
    for _ in range(2):
        run(*line, cwd=tmp_path)
    (found,) = caches_of(session)
    assert (found.hits, found.misses) == (6, 6)
