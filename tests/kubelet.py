"""Pods of tests, run by the small kubelet of the benchmarks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from prefeed_bench import kubelet
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.kubelet import Document, Pod, pods_of

__all__ = ["Pod", "pod_running", "pods_of"]


@contextlib.contextmanager
def pod_running(
    documents: Sequence[Document], name: str, root: Path, on_node: Mapping[str, Path] = MappingProxyType({})
) -> Iterator[Pod]:
    """Run a pod, as ``prefeed_bench.kubelet.pod_running``; a test is skipped where there are no namespaces."""
    with contextlib.ExitStack() as stack:
        try:
            pod = stack.enter_context(kubelet.pod_running(documents, name, root, on_node))
        except MissingRequirementError as err:
            pytest.skip(str(err))
        yield pod
