"""``map``: a function of each sample of a dataset, cached or made each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prefeed.stage.cache import DatasetCache
from prefeed.stage.dataset import CachedDataset, require_map_style
from prefeed.stage.fingerprint import fingerprint
from prefeed.stage.identity.parts import AsFarAsTold
from prefeed.stage.lineage import Lineage, derived, lineage_of


def map(
    dataset: Any,
    fn: Callable[[Any], Any],
    cache: DatasetCache | None = None,
    *,
    version: str | None = None,
    codec: str | None = None,
) -> MappedDataset | CachedDataset:
    """Return a dataset of ``fn(dataset[i])``, cached or not, so that steps compose.

    Args:
        dataset: Map-style.
        fn: Given a sample, returns a sample. With a cache it must not draw random numbers.
        cache: Keeps what ``fn`` returns; None: it is called each time.
        version: Stands for the code of ``fn``, of which only the name and what it was made with count then; change it
            whenever the code changes, and let it name the work: ``"resize-64 v2"``. None: the code is looked at.
        codec: ``"pickle"``: what has no encoding of its own is pickled.

    Raises:
        RandomStageError: A cached step draws random numbers.
        CannotFingerprintError: Nobody can tell whether ``fn`` is the same the next time; pass ``version``.
    """
    mapped = MappedDataset(dataset, fn, version=version)
    return mapped if cache is None else CachedDataset(mapped, cache, codec=codec)


class MappedDataset:
    """``fn(dataset[i])``, made each time.

    Attributes:
        dataset: What is mapped.
        fn: Given a sample, returns a sample.
    """

    def __init__(self, dataset: Any, fn: Callable[[Any], Any], *, version: str | None = None) -> None:
        """See ``map``."""
        require_map_style(dataset)
        if not callable(fn):
            raise TypeError(f"the function of a map must be callable, not {fn!r}")
        self.dataset = dataset
        self.fn = fn
        self._version = version

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.dataset[index])

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Samples of a batch, where those below are found together; None: they are made one by one, as torch does."""
        return self._batch if _is_cached(self.dataset) else None

    def _batch(self, indices: Sequence[Any]) -> list[Any]:
        return [self.fn(sample) for sample in self.dataset.__getitems__(indices)]

    @property
    def prefeed_lineage(self) -> Lineage:
        """Where its samples come from; looks at the code and the parameters of the function."""
        stage = fingerprint(self.fn) if self._version is None else fingerprint((self._version, AsFarAsTold(self.fn)))
        return derived(lineage_of(self.dataset), stage)

    def prefeed_state(self) -> Any:
        """Return what tells it from others, by name."""
        fn = self.fn if self._version is None else (self._version, AsFarAsTold(self.fn))
        return {"dataset": self.dataset, "fn": fn}


def _is_cached(dataset: Any) -> bool:
    while isinstance(dataset, MappedDataset):
        dataset = dataset.dataset
    return isinstance(dataset, CachedDataset)
