"""Runs a script as ``python SCRIPT`` would: a program of one name for all of them, which tests may start warm."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"))
