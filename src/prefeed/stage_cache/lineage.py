"""What the samples of a dataset are made of: a fingerprint of how, and for each sample which and which version.

One lineage is the same in every process and run. Datasets that only choose samples (``Subset``, ``ConcatDataset``) pass
on the lineage of what they choose from, so that shards of one dataset share their entries.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from xxhash import xxh3_128_digest

from prefeed.stage_cache.fingerprint import fingerprint
from prefeed.stage_cache.identity.anatomy import defining_class, state_beyond
from prefeed.stage_cache.identity.parts import AsFarAsTold

_SUBSET = ("torch.utils.data.dataset", "Subset")
_CONCAT = ("torch.utils.data.dataset", "ConcatDataset")
_STACK = ("torch.utils.data.dataset", "StackDataset")
_FOLDER = ("torchvision.datasets.folder", "DatasetFolder.__getitem__")


class Lineage(Protocol):
    """Where samples come from."""

    @property
    def fingerprint(self) -> bytes:
        """16 bytes; others when samples are made in another way."""
        ...

    def identity(self, index: Any) -> bytes:
        """Return 16 bytes that tell this sample from every other.

        Raises:
            CannotFingerprintError: The index is something that cannot be told from run to run.
        """
        ...

    def version(self, index: Any) -> bytes:
        """Return what changes with the sample's content; empty where only the files that it opens tell.

        Raises:
            CannotFingerprintError: It holds something that cannot be told from run to run.
        """
        ...


class Keyed(Protocol):
    """A dataset that knows the origin and the version of each sample."""

    def prefeed_stage(self) -> Any:
        """Return what samples are made with: decoders, transforms, the root."""
        ...

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the URL of the sample's object, and what changes with its content."""
        ...


def lineage_of(dataset: Any, version: str | None = None) -> Lineage:
    """Return the lineage of a dataset.

    Args:
        dataset: Map-style.
        version: Stands for the dataset's code: of this only the names count then, and of the rest what can be told.

    Raises:
        CannotFingerprintError: The dataset holds what cannot be told from run to run; the message says what to do.
    """
    if version is not None:
        return _opaque(fingerprint(("version", version, AsFarAsTold(dataset))), dataset)
    # Asked of the type: a dataset around another often passes on whatever it is asked for.
    teller = _teller(type(dataset), "prefeed_lineage")
    if teller is not None:
        lineage: Lineage = dataset.prefeed_lineage
        beyond = state_beyond(dataset, teller)
        return lineage if type(dataset) is teller else derived(lineage, fingerprint((type(dataset), beyond)))
    teller = _teller(type(dataset), "prefeed_sample")
    if teller is not None:
        stage = fingerprint(dataset.prefeed_stage(), name=type(dataset).__qualname__)
        rest = fingerprint((_name(dataset), *_of_subclass(dataset, teller)))
        return _OfObjects(_digest(stage, rest), dataset)
    kind = (type(dataset).__module__, type(dataset).__qualname__)
    if kind == _SUBSET:
        return _Chosen(lineage_of(dataset.dataset), dataset.indices)
    if kind == _CONCAT:
        return _joined([lineage_of(part) for part in dataset.datasets], dataset.cumulative_sizes)
    if kind == _STACK:
        named = isinstance(dataset.datasets, dict)
        parts = list(dataset.datasets.values()) if named else list(dataset.datasets)
        names = list(dataset.datasets) if named else None
        return _stacked([lineage_of(part) for part in parts], names)
    method = getattr(type(dataset), "__getitem__", None)
    if (getattr(method, "__module__", ""), getattr(method, "__qualname__", "")) == _FOLDER:
        return _folder(dataset)
    return _opaque(fingerprint(dataset), dataset)


def _teller(cls: type, name: str) -> type | None:
    """Return the class that says where samples come from, if what says so has not been overridden since."""
    teller, maker = defining_class(cls, name), defining_class(cls, "__getitem__")
    return teller if teller is not None and (maker is None or issubclass(teller, maker)) else None


def _of_subclass(dataset: Any, base: type) -> tuple[Any, ...]:
    """Return what a class derived from one that is known may make samples with as well."""
    return () if type(dataset) is base else (type(dataset), state_beyond(dataset, base))


def derived(parent: Lineage, stage: bytes) -> Lineage:
    """Return the lineage of samples that a stage with this fingerprint is applied to."""
    return _Derived(_digest(parent.fingerprint, stage), parent)


def number(index: Any, length: int) -> int:
    """Return an index counted from the start.

    Raises:
        IndexError: There is no such sample.
        TypeError: It is no index.
    """
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"sample {at} of {length}")
    return at % length


def _name(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def _digest(*parts: bytes) -> bytes:
    return xxh3_128_digest(b"\0".join(parts))


@dataclass(frozen=True, slots=True)
class _OfObjects:
    fingerprint: bytes
    dataset: Keyed

    def identity(self, index: Any) -> bytes:
        url, _ = self.dataset.prefeed_sample(operator.index(index))
        return _digest(self.fingerprint, url.encode("utf-8", "surrogateescape"))

    def version(self, index: Any) -> bytes:
        return self.dataset.prefeed_sample(operator.index(index))[1]


@dataclass(frozen=True, slots=True)
class _Opaque:
    """Samples are told apart by their index; what a dataset holds is in the fingerprint."""

    fingerprint: bytes
    dataset: Any

    def identity(self, index: Any) -> bytes:
        try:
            at = operator.index(index)
        except TypeError:  # a dataset that is asked by name
            return _digest(self.fingerprint, b"key", fingerprint(index))
        return _digest(self.fingerprint, b"%d" % (at + len(self.dataset) if at < 0 else at))

    def version(self, index: Any) -> bytes:
        return b""


def _opaque(made_of: bytes, dataset: Any) -> Lineage:
    """Return the lineage of a dataset that is asked for nothing: it may open files by relative paths."""
    return _Opaque(_digest(made_of, os.fsencode(working_directory())), dataset)


def working_directory() -> str:
    """Return the working directory; "" when it is not there any more."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class _Folder:
    """torchvision's folders: a sample is a file and a class, wherever it stands in the list."""

    fingerprint: bytes
    samples: Sequence[tuple[str, Any]]

    def identity(self, index: Any) -> bytes:
        path = os.path.abspath(self.samples[index][0])
        return _digest(self.fingerprint, os.fsencode(path))

    def version(self, index: Any) -> bytes:
        _, *labels = self.samples[index]
        if len(labels) == 1 and type(labels[0]) is int:
            return b"%d" % labels[0]
        return b"label" + fingerprint(labels, name=f"the label of sample {index}")


def _folder(dataset: Any) -> Lineage:
    made_with: tuple[Any, ...] = (dataset.loader, dataset.transform, dataset.target_transform, dataset.transforms)
    if not type(dataset).__module__.startswith("torchvision."):
        own = {name: value for name, value in vars(dataset).items() if name not in _OF_FOLDERS}
        made_with = (*made_with, own)
    return _Folder(fingerprint((_name(dataset), type(dataset), made_with)), dataset.samples)


_OF_FOLDERS: Final = frozenset(
    {
        *("root", "loader", "extensions", "transform", "target_transform", "transforms"),
        *("classes", "class_to_idx", "samples", "targets", "imgs"),  # of these the sample's own path and class count
    }
)


@dataclass(frozen=True, slots=True)
class _Derived:
    fingerprint: bytes
    parent: Lineage

    def identity(self, index: Any) -> bytes:
        return _digest(self.fingerprint, self.parent.identity(index))

    def version(self, index: Any) -> bytes:
        return self.parent.version(index)


@dataclass(frozen=True, slots=True)
class _Chosen:
    parent: Lineage
    indices: Sequence[int]

    @property
    def fingerprint(self) -> bytes:
        return self.parent.fingerprint

    def identity(self, index: Any) -> bytes:
        return self.parent.identity(self.indices[index])

    def version(self, index: Any) -> bytes:
        return self.parent.version(self.indices[index])


@dataclass(frozen=True, slots=True)
class _Joined:
    fingerprint: bytes
    parts: list[Lineage]
    ends: Sequence[int]

    def identity(self, index: Any) -> bytes:
        part, at = self._part(index)
        return part.identity(at)

    def version(self, index: Any) -> bytes:
        part, at = self._part(index)
        return part.version(at)

    def _part(self, index: Any) -> tuple[Lineage, int]:
        at = number(index, self.ends[-1])
        start = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            if at < end:
                return part, at - start
            start = end
        raise AssertionError


def _joined(parts: list[Lineage], ends: Sequence[int]) -> Lineage:
    return _Joined(_digest(b"joined", *(part.fingerprint for part in parts)), parts, ends)


@dataclass(frozen=True, slots=True)
class _Stacked:
    fingerprint: bytes
    parts: list[Lineage]

    def identity(self, index: Any) -> bytes:
        return _digest(self.fingerprint, *(part.identity(index) for part in self.parts))

    def version(self, index: Any) -> bytes:
        return b"\0".join(part.version(index) for part in self.parts)


def _stacked(parts: list[Lineage], names: list[Any] | None) -> Lineage:
    shape = b"tuple" if names is None else fingerprint(names)
    return _Stacked(_digest(b"stacked", shape, *(part.fingerprint for part in parts)), parts)
