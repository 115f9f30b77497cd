"""Finds pods that carry the label of a set but read without its cache. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from prefeed.kubernetes.operator.groups import Group
from prefeed.kubernetes.pods import HASH, LABEL
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET

_FINISHED: Final = ("Succeeded", "Failed")


class Uncached(NamedTuple):
    """Pod without a cache, and the reason."""

    pod: Document
    reason: str
    message: str


def uncached(group: Group) -> Iterator[Uncached]:
    """Yield the unfinished pods of a group without a cache, detected by the missing annotation.

    Args:
        group: Group of the set in their label.
    """
    name, namespace = group.key.name, group.key.namespace
    if not name:  # pods of a PaddleJob without a set
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
