"""The attachment of each loader, and what iterators see instead of the loader."""

from __future__ import annotations

import contextlib
from typing import Any
from weakref import ref

from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.torch.attachment import Attachment


class Attachments:
    """The attachment of each loader, as long as there is the loader.

    By identity, and not in the loader: what equality and hashes mean is the user's, and pickles, copies and ``vars`` of a
    loader are as torch's.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[TorchDataLoader[Any]], Attachment]] = {}
        self._epochs: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}  # of loaders that are gone

    def get(self, loader: TorchDataLoader[Any]) -> Attachment | None:
        entry = self._entries.get(id(loader))
        return entry[1] if entry is not None and entry[0]() is loader else None

    def put(self, loader: TorchDataLoader[Any], attachment: Attachment) -> None:
        entries, epochs, key = self._entries, self._epochs, id(loader)
        try:
            kind: tuple[Any, ...] = _kind_of(loader)
            dataset = ref(loader.dataset, lambda _: epochs.pop(kind, None))
        except Exception:  # noqa: BLE001 - it is the user's; or it takes no weak reference
            dataset = None

        def end(_: Any) -> None:
            entries.pop(key, None)
            if dataset is not None and dataset() is not None and attachment.num_epochs:
                epochs[kind] = dataset, attachment.num_epochs

        with contextlib.suppress(TypeError):  # such a loader is attached again for each of its iterators
            entries[key] = ref(loader, end), attachment

    def num_epochs_before(self, loader: TorchDataLoader[Any]) -> int:
        """Return how many epochs there were of a loader like this one, over the same dataset, that is gone.

        Many programs make a loader for each epoch.
        """
        try:
            dataset, num_epochs = self._epochs.pop(_kind_of(loader), (None, 0))
        except Exception:  # noqa: BLE001 - it is the user's
            return 0
        return num_epochs if dataset is not None and dataset() is loader.dataset else 0

    def remove(self, loader: TorchDataLoader[Any]) -> None:
        self._entries.pop(id(loader), None)

    def items(self) -> list[tuple[TorchDataLoader[Any], Attachment]]:
        found = ((loader(), attachment) for loader, attachment in list(self._entries.values()))
        return [(loader, attachment) for loader, attachment in found if loader is not None]

    def count_left(self) -> None:
        """The program ends."""
        for _, attachment in list(self._entries.values()):
            attachment.count_left()


def _kind_of(loader: TorchDataLoader[Any]) -> tuple[Any, ...]:
    """Return what loaders have in common that are made one after the other, of the same line."""
    return id(loader.dataset), type(loader), loader.num_workers, loader.batch_size, type(loader.sampler)
