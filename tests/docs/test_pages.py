"""The Python on README.md and on the guide's pages works as it stands there.

A page that needs data finds it in its working directory when ``setups/<page>.py`` makes it: that file is run first, in
the same namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snippets import read_page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")])
MOST_NOT_RUN = 3
"""A page with more blocks that are not run than this is a page that nobody checks."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(path: Path, tmp_path: Path, record_property) -> None:
    setup = HERE / "setups" / f"{path.stem}.py"
    first_line = f"exec(compile(open({str(setup)!r}).read(), {str(setup)!r}, 'exec'))" if setup.exists() else ""
    page = read_page(path, first_line=first_line)
    record_property("num_not_run", page.num_not_run)
    script = tmp_path / f"{path.stem}.py"
    script.write_text(page.script)
    (tmp_path / "work").mkdir()

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    ran = subprocess.run(
        [sys.executable, str(HERE / "run_page.py"), str(script)],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, f"{path.name} (line numbers are the page's):\n{ran.stderr}"
    assert page.num_not_run <= MOST_NOT_RUN


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_line_numbers_are_the_pages(tmp_path: Path) -> None:
    page = read_page(write(tmp_path, "# Title\n\n```python\na = 1\n```\n\ntext\n\n```python\nb = a\n```\n"))

    assert page.script.splitlines() == ["", "", "", "a = 1", "", "", "", "", "", "b = a", ""]
    assert (page.num_run, page.num_not_run) == (2, 0)


def test_blocks_not_run_are_counted(tmp_path: Path) -> None:
    page = read_page(write(tmp_path, "# T\n```python\n# not run: needs a bucket\nboom\n```\n```sh\nls\n```\n"))

    assert page.script.strip() == ""
    assert (page.num_run, page.num_not_run) == (0, 1)


def test_open_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2 is never closed"):
        read_page(write(tmp_path, "# T\n```python\na = 1\n"))
