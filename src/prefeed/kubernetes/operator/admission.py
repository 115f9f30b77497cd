"""Answers AdmissionReviews of pods: adds the cache of a set to each new pod with its label. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

from prefeed.errors import SpecError
from prefeed.kubernetes.nodes import NODE, mode_of, node_set, with_node_cache
from prefeed.kubernetes.operator.groups import Group, Key
from prefeed.kubernetes.operator.sample_sets import pod_set_of
from prefeed.kubernetes.pods import LABEL, label_of, require_pod, with_cache
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET


def key_of(review: Document) -> Key | None:
    """Return the set that the label of a pod names, or None. The pod itself may have no namespace yet."""
    request = review["request"]
    name = label_of(request["object"])
    return Key(str(request["namespace"]), name) if name else None


def with_cache_of(pod: Document, group: Group) -> Document:
    """Return a pod with the cache of a set, according to the mode of the set.

    Args:
        pod: Pod with the label of the set.
        group: Group of the set.

    Raises:
        SpecError: The set does not exist, or the pod cannot read it. The message names the change.
    """
    document = group.document(SAMPLE_SET)
    key = group.key
    if document is None or document["metadata"].get("deletionTimestamp"):
        raise SpecError(
            f"the label {LABEL}: {key.name} names a SampleSet, and there is none of this name in {key.namespace}: create it, "
            "or remove the label"
        )
    require_pod(pod, "the pod")
    if mode_of(document) != NODE:
        return with_cache(pod, pod_set_of(document, group))
    return with_node_cache(pod, node_set(document, image=group.choices.image, pool_image=group.choices.pool_image))


def answer(review: Document, group: Group | None) -> Document:
    """Build the reply to an AdmissionReview: the pod unchanged, with a cache, or refused with a reason.

    Args:
        review: Request of the API server.
        group: Group of the set in the pod's label, or None without a label.
    """
    request = review["request"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if group is not None:
        try:
            changes = _changes(request["object"], with_cache_of(request["object"], group))
        except SpecError as err:
            response |= {"allowed": False, "status": {"code": 422, "message": str(err)}}
        else:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(changes).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _changes(before: Document, after: Document) -> list[dict[str, Any]]:
    """Return a JSON patch of whole fields of ``metadata`` and ``spec``."""
    changes: list[dict[str, Any]] = []
    for part in ("metadata", "spec"):
        old, new = before.get(part) or {}, after[part]
        changes += [
            {"op": "add", "path": f"/{part}/{name}", "value": value}
            for name, value in new.items()
            if old.get(name) != value
        ]
        changes += [{"op": "remove", "path": f"/{part}/{name}"} for name in old if name not in new]
    return changes
