"""The seven steps of docs/guide/stage-caches.md work as they stand there, and print what the page says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "guide" / "stage-caches.md"
SCRIPT = "my_training_script.py"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END_MARK = "---- end of a command ----"


def blocks() -> list[tuple[str, str]]:
    """Return language and text of the page's blocks."""
    return BLOCK.findall(PAGE.read_text())


def pattern_of(line: str) -> str:
    """Return what a printed line must match: numbers may be other ones, and be padded otherwise."""
    words = [re.sub(r"\\?\d+", r"\\d+", re.escape(word)) for word in line.split()]
    return r"\s*" + r"\s+".join(words) + r"\s*"


def assert_printed(expected: list[str], printed: list[str], command: str) -> None:
    """Check lines against the page's, in which ``...`` stands for any number of lines."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else pattern_of(line) + r"\n" for line in expected)
    text = "".join(f"{line}\n" for line in printed)
    assert re.fullmatch(pattern, text), f"$ {command}\nprinted\n{text}\nthe page says\n" + "\n".join(expected)


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """Return each command of a console block with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


class Shell:
    """One bash for the whole page: what a command exports, the next one sees."""

    def __init__(self, directory: Path) -> None:
        scripts = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "MS_CACHE_PORT": str(free_port()),
        }
        self.process = subprocess.Popen(
            ["bash"], cwd=directory, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> list[str]:
        """Return what a command prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f'{command}\necho "$? {END_MARK}"\n')
        self.process.stdin.flush()
        printed: list[str] = []
        for line in self.process.stdout:
            if line.rstrip().endswith(END_MARK):
                status = line.split()[0]
                assert status == "0", f"$ {command}\nended with {status} and printed\n" + "\n".join(printed)
                return printed
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"bash has ended: {printed}")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def test_seven_steps(tmp_path: Path) -> None:
    setup = HERE / "setups" / "stage-caches.py"
    subprocess.run(
        [sys.executable, str(setup)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, check=True
    )
    script = tmp_path / SCRIPT
    shell = Shell(tmp_path)
    num_commands = 0
    try:
        for language, text in blocks():
            if language == "python":
                if num_commands < 4:  # the script of steps 4 and 5 is complete when it is run
                    script.write_text((script.read_text() if script.exists() else "") + text)
                continue
            for command, expected in commands_of(text):
                assert_printed(expected, shell.run(command), command)
                num_commands += 1
    finally:
        shell.close()
    assert num_commands >= 9


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        (["a 1", "...", "b"], ["a 22", "b"], True),
        (["a 1", "...", "b"], ["a 1", "x", "y", "b"], True),
        (["a 1"], ["a x"], False),
        (["a (1, 2)"], ["a  (3,  44)"], True),
        (["a"], ["a", "b"], False),
    ],
    ids=str,
)
def test_lines_are_compared(expected: list[str], printed: list[str], fits: bool) -> None:
    if fits:
        assert_printed(expected, printed, "test")
    else:
        with pytest.raises(AssertionError, match="the page says"):
            assert_printed(expected, printed, "test")
