"""``prefeed doctor`` on programs that know nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefeed.diagnose.search import WORTHWHILE

PROGRAM = '''
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    """Waits as long for a sample as a remote file would take."""
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return torch.full((4,), float(index))

if __name__ == "__main__":
    print("begins")
    is_one_of_many = "RANK" in os.environ
    if is_one_of_many:
        torch.distributed.init_process_group("gloo")
    with torch.no_grad():
        for batch in DataLoader(Slow(), batch_size=4):
            break  # a look at the data, before training
    for epoch in range(int(sys.argv[3])):
        for batch in DataLoader(Slow(), batch_size=4, shuffle=True):
            time.sleep(float(sys.argv[2]))
            if is_one_of_many:
                torch.distributed.all_reduce(batch)  # a rank that takes more steps than another waits for ever
    print("ends")
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


IMPATIENT = "from prefeed.cli import doctor, main; doctor._LEAVE_SECONDS = 0.5; main.main()"
"""The command, for programs that do not end by themselves."""


def run(
    program: Path, *arguments: object, options: tuple[str, ...] = ("--steps", "3"), is_impatient: bool = False
) -> subprocess.CompletedProcess[str]:
    how = ["-c", IMPATIENT] if is_impatient else ["-m", "prefeed"]
    line = [sys.executable, *how, "doctor", *options, str(program), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=program.parent, env=os.environ)


def verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_program_that_computes(program: Path) -> None:
    found = verdict(run(program, 0, 0.1, 1, options=("--steps", "3", "--json")))
    assert found["waiting"] < 0.5
    is_waiting = found["perfect_speedup"] >= WORTHWHILE  # on a slow or busy machine making samples takes time too
    assert is_waiting or found["best"] is None
    assert ("no cache can help" in found["text"]) is not is_waiting


def test_shown_to_a_person(program: Path) -> None:
    done = run(program, 0.01, 0, 1)
    lines = done.stdout.splitlines()
    assert lines[0] == "begins"
    assert lines[1].startswith("This job waits for data")
    assert "ends" not in lines
    for name in (
        "as it is",
        "computing alone",
        "one batch in one thread, ms: decoding",
        "remedy           times as fast",
    ):
        assert any(line.strip().startswith(name) for line in lines), name
    (cache,) = (line.split() for line in lines if line.strip().startswith("cache "))
    assert cache[:3] == ["cache", "not", "tried:"]
    assert "prefeed doctor: as it is" in done.stderr


def test_a_program_that_ends_too_soon(program: Path) -> None:
    program.write_text("print('begins and ends')")
    done = run(program)
    assert done.returncode == 1
    assert done.stdout == "begins and ends\n"
    assert "prefeed: the program ended before it was measured" in done.stderr
    assert "--steps with less than 3" in done.stderr


def test_a_program_that_fails(program: Path) -> None:
    program.write_text("float('what')")
    done = run(program)
    assert done.returncode == 1
    assert "ValueError: could not convert string to float" in done.stderr
    assert "prefeed: the program ended with status 1 before it was measured" in done.stderr


def test_two_ranks_are_examined_and_one_speaks(program: Path) -> None:
    many = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = run(program, 0.01, 0, 1, options=("--steps", "2", "--json", *many))
    assert verdict(done)["waiting"] > 0.5
    assert done.stderr.count("prefeed doctor: as it is") == 1


UNUSUAL = '''
import glob, json, os, queue, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Labelled(Dataset):
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        time.sleep(0.005)
        with open(__file__) as file:
            file.read(10)
        return {"image": torch.full((4,), float(index)), "label": torch.tensor(1)}

def train(batch):
    label = batch.pop("label").sub_(1)
    assert not label.any(), label

class Threaded(DataLoader):
    """As the package prefetch_generator has it: what ends the thread is never heard of."""
    def __iter__(self):
        batches = queue.Queue(1)
        threading.Thread(target=lambda: [batches.put(batch) for batch in super(Threaded, self).__iter__()], daemon=True).start()
        return iter(batches.get, None)

def short_epochs():
    for epoch in range(60):
        for number, batch in enumerate(DataLoader(Labelled(48), batch_size=4, shuffle=True)):
            train(batch)
            if number == 4:
                break

def looks_first():
    iter(DataLoader(Labelled(600), batch_size=4, shuffle=True))
    with torch.no_grad():
        validation = Labelled(800)
        for batch in DataLoader(validation, sampler=DistributedSampler(validation, 1, 0, shuffle=False)):
            pass
    for batch in Threaded(Labelled(600), batch_size=4, shuffle=True):
        train(batch)

def is_killed():
    home = os.path.dirname(os.environ["PREFEED_DOCTOR"].partition(":")[2])
    for batch in DataLoader(Labelled(600), batch_size=4, shuffle=True):
        train(batch)
        if glob.glob(home + "/*/home/*"):
            print(home)
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

globals()[sys.argv[1]]()
print("ends")
'''


@pytest.fixture
def unusual(tmp_path: Path) -> Path:
    path = tmp_path / "unusual.py"
    path.write_text(UNUSUAL)
    return path


@pytest.mark.parametrize("name", ["short_epochs", "looks_first"])
def test_loops_of_many_kinds(unusual: Path, name: str) -> None:
    done = run(unusual, name, options=("--steps", "2", "--json"), is_impatient=name == "looks_first")
    found = verdict(done)
    assert found["waiting"] > 0.5  # it does nothing else
    assert found["perfect_speedup"] > 2
    assert found["loader"]["dataset"] == "Labelled"
    assert found["loader"]["samples"] == {"short_epochs": 48}.get(name, 600)
    assert found["text"].startswith("This job waits for data")
    assert found["best"] in {finding["name"] for finding in found["findings"]}
    assert "Traceback" not in done.stderr


def test_nothing_is_left_of_a_program_that_is_killed(unusual: Path, sandbox: Any) -> None:
    done = run(unusual, "is_killed")
    assert done.returncode == 1
    assert "ended with status -9" in done.stderr
    assert not os.path.exists(done.stdout.strip())
    assert not list(sandbox.memory_dir.glob("*"))
