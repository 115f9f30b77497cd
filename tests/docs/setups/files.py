"""Makes ``data/tokens.bin`` for the page's lines."""

from pathlib import Path

Path("data").mkdir(exist_ok=True)
Path("data/tokens.bin").write_bytes(bytes(range(256)) * 20_000)
