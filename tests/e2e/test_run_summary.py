"""The run summary of ``prefeed run``: printed however the program ends, unless a signal ends it, and true."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.images import NUM_IMAGES, make_image_folder
from limits import limits_text
from prefeed.config import resolve
from slow_files import write_files

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python in the test's directory and return how it ended."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Any:
    yield
    assert [path for directory in resolve().runtime_dirs for path in directory.glob("run-*")] == []


def written(tmp_path: Path, text: str, name: str = "program.py") -> str:
    (tmp_path / name).write_text(text)
    return name


ENDS = {
    "comes to its end": "",
    "sys.exit": "sys.exit(3)",
    "exception": "raise ValueError('no')",
    "in a thread": "threading.Thread(target=lambda: sys.exit(open(NAME).read()[:0])).start()",
    "os._exit": "os._exit(4)",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT)",
    "becomes Python again": "os.execv(sys.executable, [sys.executable, '-c', 'import sys; open(sys.argv[1]); sys.exit(6)', NAME])",
    "forks": "child = os.fork()\nopen(NAME).close()\nif child:\n    os.wait()\nelse:\n    sys.exit(5)",
    "a dead reader of stderr, and a deadly SIGPIPE": "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "ends = os.pipe(); os.dup2(ends[1], 2); os.close(ends[1]); os.close(ends[0])",
}
MORE = {"in a thread": 1, "becomes Python again": 1, "forks": 2}
SILENT_ENDS = {
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "closes stderr": "os.close(2)",
    "another file is stderr": "os.close(2); assert os.open('other', os.O_WRONLY | os.O_CREAT) == 2; os.write(2, b'own')",
    "becomes another program": "os.execvp('true', ['true'])",
}
NOTHING = "prefeed: no loaders served\n"


@pytest.mark.parametrize("end", ENDS)
def test_printed_however_the_program_ends(run: Run, tmp_path: Path, end: str) -> None:
    file = tmp_path / "data" / "a.txt"
    file.parent.mkdir()
    file.touch()
    start = f"import os, signal, sys, threading\nNAME = {str(file)!r}\nfor _ in range(3): open(NAME).close()\n"
    program = written(tmp_path, f"{start}print('out')\n{ENDS[end]}\n")
    options = ["--explain", "--root", str(file.parent), "--json", "o.json"]
    own, ours = run(program), run("-m", "prefeed", "run", *options, program)

    opens = 3 + MORE.get(end, 0)
    assert (ours.returncode, ours.stdout) == (own.returncode, own.stdout)
    line = f"prefeed: opens that bypassed the cache: open outside of samples {opens}\n"
    assert ours.stderr == ("" if "dead reader" in end else f"{own.stderr}{NOTHING}{line}")
    assert json.loads((tmp_path / "o.json").read_text())["bypassed"] == {"open outside of samples": opens}


@pytest.mark.parametrize("end", SILENT_ENDS)
def test_a_program_that_prints_no_summary_ends_as_it_does_alone(run: Run, tmp_path: Path, end: str) -> None:
    program = written(tmp_path, f"import os, signal\nprint('out', flush=True)\n{SILENT_ENDS[end]}\n")
    own, ours = run(program), run("-m", "prefeed", "run", program)
    assert (ours.returncode, ours.stdout, ours.stderr) == (own.returncode, own.stdout, own.stderr)
    if (tmp_path / "other").exists():
        assert (tmp_path / "other").read_bytes() == b"own"
    run("-m", "prefeed", "run", "-c", "pass")  # removes what a killed program has left


def test_a_program_of_a_shell_prints_its_own(run: Run, tmp_path: Path) -> None:
    """The shell cannot: the outermost Python process does, if it has anything to report."""
    (tmp_path / "a").touch()
    program = written(tmp_path, f"import subprocess, sys\nopen({str(tmp_path / 'a')!r}).close()\n")
    line = f"{sys.executable} {program}; {sys.executable} -c pass; {sys.executable} {program}"
    ended = run("-m", "prefeed", "run", "--explain", "--root", str(tmp_path), "sh", "-c", line)
    said = "prefeed: opens that bypassed the cache: open outside of samples 1\n"
    assert ended.stderr == f"{NOTHING}{said}" * 2


def test_its_output_is_not_read(run: Run, tmp_path: Path) -> None:
    program = written(tmp_path, "for n in range(100000): print(n)\n")
    ended = []
    for line in (f"{sys.executable}", f"{sys.executable} -m prefeed run --quiet", f"{sys.executable} -m prefeed run"):
        shell = f"{line} {program} | head -1; echo ${{PIPESTATUS[0]}}"
        ended.append(subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True))

    own, quiet, ours = ended
    assert (quiet.stdout, quiet.stderr) == (own.stdout, own.stderr)
    assert ours.stdout == own.stdout
    said = [line for line in ours.stderr.splitlines() if line.startswith("prefeed: ")]
    assert said == NOTHING.splitlines()
    assert sorted(ours.stderr.splitlines()) == sorted([*own.stderr.splitlines(), *said])


BESIDE = """
import multiprocessing, os, shutil, signal, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from PIL import Image

root = Path(sys.argv[1])
names = sorted(map(str, root.rglob("*.png")))

def verify(name):
    with Image.open(name) as image:
        image.verify()

def raw(name):
    os.close(os.open(name, os.O_RDONLY))

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:  # ended by a signal
        pool.map(verify, names)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(raw, names)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(Path.read_bytes, map(Path, names)))
    if os.fork() == 0:
        open(names[0], "rb").read()
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    subprocess.run([sys.executable, "-c", "import sys; open(sys.argv[1], 'rb').close()", names[0]], check=True)
    for _ in range(7):
        np.memmap(root / "tokens.bin", dtype=np.uint16, mode="r")[0]
    np.load(root / "a.npy"); np.loadtxt(root / "a.txt")
    os.chdir(root); open("a.txt").close(); open(b"a.txt").close(); os.chdir("/")
    # None of these: written, of the program's own, elsewhere, directories, described by a number.
    (root / "new.txt").write_text("1")
    sys.path.insert(0, str(root)); import own_module
    open(sys.argv[2]).close()
    list(os.scandir(root)); os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY))
    descriptor = os.open(root / "new.txt", os.O_RDWR); open(descriptor).close()
"""


def test_opens_beside_the_loops_are_counted_by_call(run: Run, tmp_path: Path) -> None:
    import numpy as np

    root = make_image_folder(tmp_path / "data")
    np.save(root / "a.npy", np.zeros(3))
    (root / "a.txt").write_text("1 2\n")
    (root / "tokens.bin").write_bytes(bytes(64))
    (root / "own_module.py").write_text("")
    program = written(tmp_path, BESIDE)
    link = tmp_path / "link"
    link.symlink_to(root)  # a root is known by where it leads
    arguments = ["--root", str(root), "--explain", "--json", "o.json", program, str(link), str(tmp_path / program)]
    ended = run("-m", "prefeed", "run", "--quiet", *arguments)

    assert (ended.returncode, ended.stderr) == (0, "")
    calls = {
        "PIL.Image.open": NUM_IMAGES, "os.open": NUM_IMAGES, "pathlib.Path.read_bytes": NUM_IMAGES, "open": 4,
        "numpy.memmap": 7, "numpy.load": 1, "numpy.loadtxt": 1,
    }  # fmt: skip
    found = json.loads((tmp_path / "o.json").read_text())["bypassed"]
    assert found == {f"{call} outside of samples": opens for call, opens in calls.items()}


TRAIN = """
import os, sys
import numpy as np, torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

class Pictures(Dataset):
    def __init__(self, root):
        self.paths = sorted(map(str, Path(root).rglob("*.png")))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return len(open(self.paths[index], "rb").read())
    def train_data_list(self):
        return np.array(self.paths)

class Raw(Pictures):
    def __getitem__(self, index):
        descriptor = os.open(self.paths[index], os.O_RDONLY)
        try:
            return len(os.read(descriptor, 1 << 20))
        finally:
            os.close(descriptor)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

if __name__ == "__main__":
    root = sys.argv[1]
    np.fromfile(Pictures(root).paths[0], np.uint8)
    pictures = DataLoader(Pictures(root), batch_size=4, num_workers=2)
    raw = DataLoader(Raw(root), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    stream = DataLoader(Stream())
    for loader in [pictures, raw, stream, pictures]:
        for batch in loader:
            pass
    for batch in _SingleProcessDataLoaderIter(stream):
        pass
    stream = DataLoader(Stream())
    next(iter(stream))
    first = DataLoader(Pictures(root), batch_size=4)
    next(iter(first))
    os._exit(5)
"""


def test_what_loaders_did(run: Run, tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "data")
    program = written(tmp_path, TRAIN)
    options = ["--explain", "--root", str(root), "--json", "o.json"]
    ended = run("-m", "prefeed", "run", *options, program, str(root))

    assert ended.returncode == 5, ended.stderr
    facts = json.loads((tmp_path / "o.json").read_text())
    assert facts["served"] == ["Pictures-1", "Raw-1", "Pictures-2"]
    assert facts["not_served"] == {"Stream-1": ["an IterableDataset has no order to know beforehand"]}
    assert 0 < facts["waited_ns"] <= facts["loop_ns"]
    assert 0 < facts["start_ns"] < 1e9 * facts["seconds"]
    known = prefeed.statistics()
    assert facts["hits"] == known.hits
    assert (facts["late_or_missed"], facts["direct_reads"]) == (known.late + known.misses, known.direct_reads)
    sizes = [path.stat().st_size for path in sorted(root.rglob("*.png"))]
    assert facts["cache_bytes"] + facts["origin_bytes"] == 2 * sum(sizes) + sum(sizes[:4])
    assert facts["bypassed"] == {"os.open in samples": NUM_IMAGES, "open outside of samples": 1}
    said = [line for line in ended.stderr.splitlines() if "before the first epoch" not in line][-4:]
    assert said[0] == (
        "prefeed: 3 loaders served: Pictures-1, Raw-1, Pictures-2; 1 not: Stream-1: an "
        "IterableDataset has no order to know beforehand"
    )
    assert said[1].startswith(f"prefeed: {2 * NUM_IMAGES + 4} reads: {known.hits} hits (")
    assert said[2].startswith("prefeed: waited ")
    assert f"os.open in samples {NUM_IMAGES}, open outside of samples 1" in said[3]


def test_one_within_another_is_part_of_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    inner = written(tmp_path, f"open({str(tmp_path / 'a')!r}).close()\n", "inner.py")
    program = written(
        tmp_path,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'prefeed', 'run', {inner!r}], check=True)\n",
    )
    ended = run("-m", "prefeed", "run", "--explain", "--root", str(tmp_path), program)

    said = [line for line in ended.stderr.splitlines() if line.startswith("prefeed: ")]
    assert said == [NOTHING.strip(), "prefeed: opens that bypassed the cache: open outside of samples 1"]


IN_PLACE = """
import sys
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    paths = sorted(Path(sys.argv[1]).iterdir())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return len(self.paths[index].read_bytes())

loader = DataLoader(Files(), batch_size=4)
for _ in range(2):
    list(loader)
next(iter(loader))
"""


def test_samples_that_are_read_in_place_are_direct_reads(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PREFEED_LIMITS", limits_text(read_in_place=True))
    root = write_files(tmp_path / "data", {f"{number}.bin": bytes(100) for number in range(40)})
    options = ["--quiet", "--root", str(root), "--json", "o.json"]
    ended = run("-m", "prefeed", "run", *options, written(tmp_path, IN_PLACE), str(root))
    assert ended.returncode == 0, ended.stderr
    facts = json.loads((tmp_path / "o.json").read_text())
    assert facts["direct_reads"] > 0
    assert (
        facts["hits"] + facts["late_or_missed"] + facts["direct_reads"] == 2 * 40 + 4
    )  # the loader joins on slow storage
