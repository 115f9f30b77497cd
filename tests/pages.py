"""Runs the Python of a page of the documentation, as its reader would: one block after another, in an empty directory.

A page that needs data finds it in its working directory when ``docs/setups/<page>.py`` makes it; pages of one folder may share
``docs/setups/<folder>.py``. That file is run first, in the same namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from snippets import Page, read_page

HERE = Path(__file__).parent
ROOT = HERE.parent
MOST_NOT_RUN = 3
"""A page with more blocks that are not run than this is a page that nobody checks."""


def run_page(path: Path, tmp_path: Path, *, with_torch: bool = True) -> Page:
    """Run a page's blocks in ``tmp_path``; return what was run.

    A page without blocks starts no program. Without torch its program is started by a new interpreter.
    """
    setups = [HERE / "docs" / "setups" / f"{name}.py" for name in (path.stem, path.parent.name)]
    setup = next((file for file in setups if file.exists()), None)
    first_line = "" if setup is None else f"exec(compile(open({str(setup)!r}).read(), {str(setup)!r}, 'exec'))"
    page = read_page(path, first_line=first_line)
    assert page.num_not_run <= MOST_NOT_RUN
    if not page.num_run:
        return page
    script = tmp_path / f"{path.stem}_page.py"  # shadows no package
    script.write_text(page.script)
    (tmp_path / "work").mkdir()
    ran = subprocess.run(
        [sys.executable, *([str(HERE / "docs" / "run_page.py")] if with_torch else []), str(script)],
        cwd=tmp_path / "work",
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{path.name} (line numbers are the page's):\n{ran.stdout}\n{ran.stderr}"
    return page
