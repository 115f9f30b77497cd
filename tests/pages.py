"""Runs the Python of a page of the documentation, as its reader would: one block after another, in an empty directory.

A page that needs data finds it in its working directory when ``docs/setups/<page>.py`` makes it; pages of one folder may share
``docs/setups/<folder>.py``. That file is run first, in the same namespace. On slow storage it is run by itself, and the page finds
its ``data`` on a mount whose opens take time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from slow_files import slow_files
from snippets import Page, read_page

HERE = Path(__file__).parent
ROOT = HERE.parent
MOST_NOT_RUN = 3
"""A page with more blocks that are not run than this is a page that nobody checks."""

OPEN_SECONDS = 0.05
FRAMEWORKS = ("import accelerate", "from accelerate", "import lightning")


def run_page(
    path: Path,
    tmp_path: Path,
    *,
    with_torch: bool = True,
    roots: str | None = None,
    times: int = 1,
    is_slow: bool = False,
) -> Page:
    """Run a page's blocks in ``tmp_path``; return what was run, with what was printed.

    A page without blocks starts no program. Without torch its program is started by a new interpreter.

    Args:
        path: Of the page.
        tmp_path: An empty directory.
        with_torch: Its program may be forked from a process that has imported torch.
        roots: ``PREFEED_ROOTS``.
        times: How often it is run, one after the other in the same directory.
        is_slow: The page's ``data`` is on slow storage.
    """
    setups = [HERE / "docs" / "setups" / f"{name}.py" for name in (path.stem, path.parent.name)]
    setup = next((file for file in setups if file.exists()), None)
    first_line = "" if setup is None else f"exec(compile(open({str(setup)!r}).read(), {str(setup)!r}, 'exec'))"
    page = read_page(path, first_line="" if is_slow else first_line)
    assert page.num_not_run <= MOST_NOT_RUN
    if not page.num_run:
        return page
    work, script = tmp_path / "work", tmp_path / f"{path.stem}_page.py"  # shadows no package
    work.mkdir()
    script.write_text(page.script)
    environment = {**os.environ, "PYTHONPATH": str(HERE)} | ({} if roots is None else {"PREFEED_ROOTS": roots})
    with ExitStack() as stack:
        if is_slow:
            made = tmp_path / "made"
            made.mkdir()
            _run([sys.executable, str(HERE / "docs" / "run_page.py"), str(setup)], made, environment)
            slow = stack.enter_context(slow_files(made / "data", open_seconds=OPEN_SECONDS))
            (work / "data").symlink_to(slow.path)
        has_framework = any(name in page.script for name in FRAMEWORKS)
        warm = ["-m", "docs.run_page"] if has_framework else [str(HERE / "docs" / "run_page.py")]
        command = [sys.executable, *(warm if with_torch else []), str(script)]
        printed = "".join(_run(command, work, environment) for _ in range(times))
    return replace(page, printed=printed)


def _run(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command[-1]} (line numbers are the page's):\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr
