"""``prefeed run``: programs run as Python would run them, and they and their children are served."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prefeed
from e2e.images import NUM_IMAGES, make_image_folder

Run = Callable[..., subprocess.CompletedProcess[str]]

PICTURES = """
import sys
import numpy as np
import torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Pictures(Dataset):
    def __init__(self, root):
        self.paths = sorted(map(str, Path(root).rglob("*.png")))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return sum(open(self.paths[index], "rb").read())
    def train_data_list(self):
        return np.array(self.paths)
"""
"""A dataset that needs no more than torch, which takes long enough to import."""

TRAIN = f"""
{PICTURES}
def train(rank=0):
    print("sum", sum(int(numbers.sum()) for numbers in DataLoader(Pictures(sys.argv[1]), batch_size=4)))
"""


def printed(root: Path) -> str:
    """Return what ``train`` prints."""
    return f"sum {sum(sum(path.read_bytes()) for path in root.rglob('*.png'))}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_image_folder(tmp_path / "data")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python in the test's directory and return how it ended."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


NOTHING = "prefeed: no loaders served\n"


def reads() -> int:
    return prefeed.statistics().reads


SHOW = """
import json, sys
print(json.dumps([sys.argv, sys.path, __name__, __file__, __package__, __spec__ and __spec__.name, sys.flags.optimize]))
"""


def test_program_sees_what_python_shows_it(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "sub" / "show.py", SHOW)
    write(tmp_path / "sub" / "__init__.py", "")
    for line in (["sub/show.py"], ["-m", "sub.show"]):
        arguments = [*line, "a", "--memory", "--", "-m", "é ü"]
        own = run("-O", *arguments)
        assert own.returncode == 0, own.stderr
        assert run("-O", "-m", "prefeed", "run", *arguments).stdout == own.stdout


def test_code_sees_what_python_shows_it(run: Run, tmp_path: Path) -> None:
    code = "import sys; print(sys.argv, sys.path, __name__, __spec__, sys.stdin.read())"
    for kind in ("-c", "-"):
        arguments = [*([kind, code] if kind == "-c" else [kind]), "a", "--memory", "-c", "-m"]
        text = "" if kind == "-c" else code.replace("sys.stdin.read()", "0")
        own, ours = (
            subprocess.run(
                [sys.executable, *line, *arguments],
                cwd=tmp_path,
                input=text,
                capture_output=True,
                text=True,
                check=False,
            )
            for line in ([], ["-m", "prefeed", "run", "--quiet"])
        )
        assert (ours.returncode, ours.stdout, ours.stderr) == (own.returncode, own.stdout, own.stderr)
        assert own.stdout.startswith(f"['{kind}', 'a', '--memory'"), own.stderr


def test_code_is_served(run: Run, root: Path) -> None:
    ours = run("-m", "prefeed", "run", "--root", str(root), "-c", f"{TRAIN}\ntrain()\n", str(root))

    assert (ours.returncode, ours.stdout) == (0, printed(root)), ours.stderr
    assert reads() == NUM_IMAGES


@pytest.mark.parametrize(
    "text",
    [
        "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)",
        "raise SystemExit('words')",
        "def f():\n    raise ValueError('no')\n\nf()",
        "import os; os.kill(os.getpid(), 15)",
        "print(input())",
        "x = (",
    ],
    ids=["exit", "words", "exception", "signal", "eof", "syntax"],
)
def test_it_ends_as_with_python(run: Run, tmp_path: Path, text: str) -> None:
    script = str(write(tmp_path / "script.py", text))
    own, ours = run(script), run("-m", "prefeed", "run", script)

    assert (ours.returncode, ours.stdout) == (own.returncode, own.stdout)
    assert ours.stderr == own.stderr + (NOTHING if own.returncode >= 0 else "")  # none after a signal


def test_file_that_is_not_there(run: Run) -> None:
    own, ours = run("nowhere.py"), run("-m", "prefeed", "run", "nowhere.py")
    assert (ours.returncode, ours.stderr) == (own.returncode, own.stderr + NOTHING)


def test_script_is_served(run: Run, root: Path, tmp_path: Path) -> None:
    script = str(write(tmp_path / "train.py", f"{TRAIN}\ntrain()\n"))
    ours = run("-m", "prefeed", "run", "--root", str(root), script, str(root))

    assert (ours.returncode, ours.stdout) == (0, printed(root)), ours.stderr
    assert reads() == NUM_IMAGES


def test_switched_off(run: Run, root: Path, tmp_path: Path) -> None:
    script = str(write(tmp_path / "train.py", f"{TRAIN}\ntrain()\n"))
    ours = run("-m", "prefeed", "run", "--root", str(root), script, str(root), PREFEED_ENABLED="0")

    assert (ours.returncode, ours.stderr) == (0, "prefeed: the cache is not used, because PREFEED_ENABLED is 0\n")
    assert reads() == 0


def test_quiet(run: Run, root: Path, tmp_path: Path) -> None:
    script = str(write(tmp_path / "train.py", f"{TRAIN}\ntrain()\n"))
    ours = run("-m", "prefeed", "run", "--quiet", "--root", str(root), script, str(root))

    assert (ours.returncode, ours.stdout, ours.stderr) == (0, printed(root), "")
    assert reads() == NUM_IMAGES


def test_what_is_left_alone_is_said(run: Run, root: Path, tmp_path: Path) -> None:
    script = str(write(tmp_path / "train.py", f"{TRAIN}\ntrain()\n"))
    ours = run("-m", "prefeed", "run", script, str(root))

    assert ours.returncode == 0
    assert "prefeed: not used for this loader: the files of its dataset, Pictures" in ours.stderr


CHILDREN: dict[str, Any] = {
    "spawn": f"{TRAIN}\nif __name__ == '__main__':\n    torch.multiprocessing.spawn(train, nprocs=1)\n",
    "subprocess": (
        "import subprocess, sys\n"
        "if len(sys.argv) == 2:\n"
        "    subprocess.run([sys.executable, __file__, sys.argv[1], 'child'], check=True)\n"
        f"else:\n    exec({TRAIN!r})\n    train()\n"
    ),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_children_are_served(run: Run, root: Path, tmp_path: Path, kind: str) -> None:
    script = str(write(tmp_path / "train.py", CHILDREN[kind]))
    ours = run("-m", "prefeed", "run", "--root", str(root), script, str(root))

    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == printed(root)
    assert reads() == NUM_IMAGES


DISTRIBUTED = f"""
{PICTURES}
import torch.distributed as dist

dist.init_process_group("gloo")
dataset = Pictures(sys.argv[1])
for _ in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset)):
    pass
dist.barrier()
dist.destroy_process_group()
"""

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize("order", ["launcher inside", "launcher outside"])
def test_ranks_are_served(run: Run, root: Path, tmp_path: Path, order: str) -> None:
    script = str(write(tmp_path / "train.py", DISTRIBUTED))
    ours = ["-m", "prefeed", "run", "--root", str(root)]
    line = [*ours, *LAUNCH] if order == "launcher inside" else [*LAUNCH, *ours]
    ended = run(*line, script, str(root), OMP_NUM_THREADS="1")

    assert ended.returncode == 0, ended.stderr
    assert reads() == NUM_IMAGES
    of_a_rank = 1 if order == "launcher inside" else 2
    said = [line for line in ended.stderr.splitlines() if line.startswith("prefeed: 1 loader served")]
    assert said == ["prefeed: 1 loader served: Pictures-1"] * of_a_rank
    waited = [line for line in ended.stderr.splitlines() if line.startswith("prefeed: waited")]
    assert [line.count("of 2 processes for data") for line in waited] == ([1] if of_a_rank == 1 else [0, 0])


def test_hidden_sitecustomize_still_runs(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "own" / "sitecustomize.py", "import builtins\nbuiltins.was_run = __file__\n")
    script = write(
        tmp_path / "script.py",
        "import sitecustomize, sys\nprint(was_run, sitecustomize.__file__, [p for p in sys.path if 'autostart' in p])",
    )
    own = str(tmp_path / "own" / "sitecustomize.py")
    ours = run("-m", "prefeed", "run", "--quiet", str(script), PYTHONPATH=str(tmp_path / "own"))

    assert (ours.stdout, ours.stderr) == (f"{own} {own} []\n", "")


def test_hidden_sitecustomize_that_fails_is_said_as_python_says_it(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "own" / "sitecustomize.py", "raise ValueError('broken')\n")
    script = str(write(tmp_path / "script.py", "print('goes on')"))
    own, ours = (
        run(*line, script, PYTHONPATH=str(tmp_path / "own")) for line in ([], ["-m", "prefeed", "run", "--quiet"])
    )

    assert ours.stdout == own.stdout == "goes on\n"
    # Twice: prefeed's own command line is Python as well.
    assert ours.stderr.replace(own.stderr, "") == ""


def test_programs_without_torch_import_next_to_nothing(run: Run, tmp_path: Path) -> None:
    script = write(tmp_path / "script.py", "import sys\nprint([n for n in sorted(sys.modules) if n[:7] == 'prefeed'])")
    quiet, ours = (run("-m", "prefeed", "run", *options, str(script)).stdout for options in (["--quiet"], []))

    waiting = ["prefeed", "prefeed.after_import", "prefeed.frameworks", "prefeed.frameworks.hooks"]
    counting = [f"prefeed.run_summary{name}" for name in ("", ".counters", ".report")]
    assert quiet == f"{waiting}\n"
    assert ours == f"{[*waiting, *counting, 'prefeed.system', 'prefeed.system.units']}\n"
