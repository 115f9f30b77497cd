"""Builds the condition of a document whose objects the API server refuses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from prefeed.errors import ClusterError
from prefeed.kubernetes.operator.groups import FALSE, Condition, conditions
from prefeed.sampleset.documents import Document

OBJECTS: Final = "ObjectsApplied"
"""Type of the condition of a document whose objects are refused."""

OBJECT_REFUSED: Final = "ObjectRefused"

_LATER: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Statuses that do not depend on the object."""

_ADVICE: Final = {
    HTTPStatus.FORBIDDEN: "a quota or a policy of the namespace forbids it, or the operator has not the rights of "
    "deploy/kubernetes/access.yaml: change what the message names",
    HTTPStatus.UNPROCESSABLE_ENTITY: "change in the document, or in its annotations, what the message names",
    HTTPStatus.NOT_FOUND: "the namespace is being removed, or the cluster does not have this kind of objects",
}
"""Advice by HTTP status. A conflict needs none, because its message names the change."""


def is_refusal(err: ClusterError) -> bool:
    """Return whether the API server refuses an object, so that a retry fails until something is changed."""
    status = err.details["status"]
    return HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _LATER


def refused(refusals: Sequence[tuple[Document, ClusterError]]) -> Condition | None:
    """Build the condition for refused objects. Return None if the list is empty."""
    said = "; ".join(_said(made, err) for made, err in refusals)
    return Condition(OBJECTS, FALSE, OBJECT_REFUSED, f"{said}; it is tried again") if said else None


def before_objects(document: Document) -> Condition | None:
    """Return the current condition about refused objects, which stays until they are applied again, or None."""
    for each in (document.get("status") or {}).get("conditions") or ():
        if each["type"] == OBJECTS:
            return Condition(OBJECTS, each["status"], each["reason"], each["message"])
    return None


def with_condition(
    document: Document, status: dict[str, Any] | None, added: Condition | None, now: datetime
) -> dict[str, Any] | None:
    """Return a status whose condition about refused objects is replaced.

    Args:
        document: Document of the status.
        status: Status that was decided, or None to leave it unchanged.
        added: New condition, or None to remove it.
        now: Current time.
    """
    if status is None:
        return None
    others = [each for each in status["conditions"] if each["type"] != OBJECTS]
    return {**status, "conditions": [*others, *conditions(document, [added] if added else [], now)]}


def _said(made: Document, err: ClusterError) -> str:
    advice = _ADVICE.get(err.details["status"])
    what = f"the {made['kind']} {made['metadata']['name']} is refused: {err}"
    return f"{what} ({advice})" if advice else what
