"""Which files a sample opens, and which it is said to open."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path
from typing import Any

import pytest
from torchvision import datasets

from prefeed.loaders.declared import Declared


class Recorder:
    """Lists the files below a directory that are opened for reading, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.opened: list[str] = []
        self._root = str(root)
        self._wrap(monkeypatch, builtins, "open")
        self._wrap(monkeypatch, io, "open")
        self._wrap(monkeypatch, datasets._optical_flow, "read_file")

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def recording(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike) and os.path.abspath(file).startswith(self._root):
                self.opened.append(os.path.abspath(file))
            return real(file, *args, **kwargs)

        monkeypatch.setattr(owner, name, recording)

    def opened_by(self, dataset: Any, index: int) -> list[str]:
        self.opened.clear()
        dataset[index]
        return list(self.opened)


def all_files(declared: Declared | None) -> list[list[str]]:
    assert declared is not None
    return [declared.paths_of(sample) for sample in range(declared.num_samples)]
