"""Pods that ask for a set by its label and read without its cache. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from prefeed.kubernetes.operator.groups import Group
from prefeed.kubernetes.pods import HASH, LABEL
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET

_FINISHED: Final = ("Succeeded", "Failed")


class Uncached(NamedTuple):
    """A pod that reads without a cache, and why."""

    pod: Document
    reason: str
    message: str


def uncached(group: Group) -> Iterator[Uncached]:
    """Yield the pods of a group that have no cache. An annotation marks a pod that was made with one.

    Args:
        group: Of the set that they ask for.
    """
    name, namespace = group.key.name, group.key.namespace
    if not name:  # pods of a PaddleJob that names no set
        return
    if group.document(SAMPLE_SET) is None:
        reason = "NoSampleSet"
        message = (
            f"the label {LABEL}: {name} names a SampleSet, and there is none of this name in {namespace}: create it"
        )
    else:
        reason = "NoCache"
        message = f"the label {LABEL}: {name} was not looked at when the pod was made"
    for pod in group.pods:
        is_marked = HASH in (pod["metadata"].get("annotations") or {})
        if not is_marked and pod.get("status", {}).get("phase") not in _FINISHED:
            yield Uncached(
                pod,
                reason,
                f"{message}. This pod reads without a cache: install the webhook, or apply what `prefeed kubernetes patch` prints, "
                "and make the pod again",
            )
