"""Makes ``data/tokens.bin`` for the page's lines, in a directory that counts as slow."""

import os
from pathlib import Path

os.environ["PREFEED_MEMORY"] = "64MiB"
os.environ["PREFEED_ROOTS"] = str(Path("data").absolute())
Path("data").mkdir(exist_ok=True)
Path("data/tokens.bin").write_bytes(bytes(range(256)) * 20_000)
