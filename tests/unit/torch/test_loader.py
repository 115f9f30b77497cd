"""The loader's own face."""

from __future__ import annotations

import inspect

from torch.utils.data import DataLoader as TorchDataLoader

import prefeed


def test_signature_is_torchs_and_config() -> None:
    torchs = list(inspect.signature(TorchDataLoader.__init__).parameters.values())
    ours = list(inspect.signature(prefeed.DataLoader.__init__).parameters.values())
    assert ours[:-1] == torchs
    assert (ours[-1].name, ours[-1].kind) == ("config", inspect.Parameter.KEYWORD_ONLY)


def test_it_is_torchs_loader() -> None:
    assert issubclass(prefeed.DataLoader, TorchDataLoader)
