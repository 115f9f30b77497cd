"""An API server in memory, for the tests and the benchmark of the operator: objects with versions, owners and finalizers, as far as the operator asks for them.

It does what a real one does of: resourceVersion and conflicts, generation, uid, status as a part of its own, server-side apply with one
manager (what was given before and is not given now goes), merge patches, deletion with finalizers, selectors of labels, and removal of
what has no owner any more. It holds no document against a schema: `make test-cluster` does, by a real API server.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from prefeed.errors import ClusterError
from prefeed.kubernetes.operator.groups import Resource
from prefeed.kubernetes.operator.kinds import DEFINITIONS, EVENTS, KINDS, MADE, SECRETS

Document = dict[str, Any]
Documents = list[Document]
RESOURCES = {
    each.plural: each
    for each in (*(kind.resource for kind in KINDS.values()), *MADE.values(), SECRETS, EVENTS, DEFINITIONS)
}


class Cluster:
    """Objects, and calls that change them.

    Attributes:
        log: Each change: its type, and the object after it.
        asked: Each request that changed something: verb, plural and name.
        before: Called before each request with its verb and plural; what it raises is the answer.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Document] = {}
        self.log: list[tuple[str, str, Document]] = []
        self.asked: list[tuple[str, str, str]] = []
        self.before: Callable[[str, str], None] = lambda verb, plural: None
        self._applied: dict[tuple[str, str, str], Document] = {}
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- for tests

    def add(self, document: Document) -> Document:
        """Make an object, as a user does with kubectl; one without a namespace is in ``default``."""
        document = copy.deepcopy(document)
        document["metadata"].setdefault("namespace", "default")
        (resource,) = [each for each in RESOURCES.values() if each.kind == document["kind"]]
        return self._create(resource, document)

    def of(self, kind: str, namespace: str = "default") -> dict[str, Document]:
        """Return the objects of a kind by name."""
        (plural,) = [each.plural for each in RESOURCES.values() if each.kind == kind]
        return {
            name: each for (kept, where, name), each in self.objects.items() if (kept, where) == (plural, namespace)
        }

    def change(
        self, kind: str, name: str, changed: Document, *, namespace: str = "default", part: str = ""
    ) -> Document:
        """Change an object by a merge patch, as a user, kubelet or a controller does."""
        (resource,) = [each for each in RESOURCES.values() if each.kind == kind]
        return self._patch(resource, namespace, name, changed, part)

    def remove(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete an object, as a user does."""
        (resource,) = [each for each in RESOURCES.values() if each.kind == kind]
        self._delete(resource, namespace, name)

    # ---------------------------------------------------------------- the requests of the operator

    async def list(self, resource: Resource, namespace: str, selector: str = "", fields: str = "") -> Documents:
        self.before("list", resource.plural)
        return self.listed(resource, namespace, selector, fields)

    async def get(self, resource: Resource, namespace: str, name: str) -> Document:
        self.before("get", resource.plural)
        return copy.deepcopy(self._existing(resource, namespace, name))

    async def create(self, resource: Resource, document: Document) -> Document:
        self._count("create", resource, document["metadata"].get("name", ""))
        return copy.deepcopy(self._create(resource, copy.deepcopy(document)))

    async def apply(self, resource: Resource, document: Document) -> Document:
        metadata = document["metadata"]
        self._count("apply", resource, metadata["name"])
        return copy.deepcopy(self._apply(resource, copy.deepcopy(document)))

    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document:
        seen = document["metadata"]
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": seen["resourceVersion"]}}
        return self.patched(resource, seen["namespace"], seen["name"], change, part)

    async def delete(self, resource: Resource, document: Document) -> None:
        seen = document["metadata"]
        self._count("delete", resource, seen["name"])
        there = self.objects.get((resource.plural, seen["namespace"], seen["name"]))
        if there is not None and there["metadata"]["uid"] == seen["uid"]:
            self._delete(resource, seen["namespace"], seen["name"])

    # ---------------------------------------------------------------- what a server does

    def patched(self, resource: Resource, namespace: str, name: str, change: Document, part: str) -> Document:
        """Change an object by a merge patch; refused if that names another version than there is."""
        self._count("patch", resource, name)
        return copy.deepcopy(self._patch(resource, namespace, name, copy.deepcopy(change), part))

    def listed(self, resource: Resource, namespace: str, selector: str, fields: str = "") -> Documents:
        """Return objects in the order of their names."""
        found = [
            key
            for key, each in self.objects.items()
            if key[0] == resource.plural
            and namespace in ("", key[1])
            and selects(selector, each)
            and _has(fields, each)
        ]
        return [copy.deepcopy(self.objects[key]) for key in sorted(found)]

    def _count(self, verb: str, resource: Resource, name: str) -> None:
        self.before(verb, resource.plural)
        self.asked.append((verb, resource.plural, name))

    def _existing(self, resource: Resource, namespace: str, name: str) -> Document:
        try:
            return self.objects[resource.plural, namespace, name]
        except KeyError:
            raise ClusterError(f'{resource.plural} "{name}" not found', status=404) from None

    def _create(self, resource: Resource, document: Document) -> Document:
        metadata = document["metadata"]
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{next(self._numbers):05}"
        key = resource.plural, metadata["namespace"], metadata["name"]
        if key in self.objects:
            raise ClusterError(f'{resource.plural} "{metadata["name"]}" already exists', status=409)
        number = next(self._numbers)
        metadata |= {
            "uid": f"uid-{number}",
            "generation": 1,
            "creationTimestamp": f"2026-11-27T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
        }
        document = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
        return self._write("ADDED", key, document)

    def _apply(self, resource: Resource, document: Document) -> Document:
        metadata = document["metadata"]
        key = resource.plural, metadata["namespace"], metadata["name"]
        there = self.objects.get(key)
        if there is None:
            made = self._create(resource, copy.deepcopy(document))
        else:
            if resource.kind == "Job" and _template(there) != _template(document):
                raise ClusterError(
                    f'Job "{metadata["name"]}" is invalid: spec.template: field is immutable', status=422
                )
            without = _without(there, self._applied.get(key, {}), document)
            made = self._changed(key, there, _merged(without, document, is_apply=True))
        self._applied[key] = document
        return made

    def _patch(self, resource: Resource, namespace: str, name: str, change: Document, part: str) -> Document:
        there = self._existing(resource, namespace, name)
        seen = change.get("metadata", {}).pop("resourceVersion", None)
        if seen not in (None, there["metadata"]["resourceVersion"]):
            raise ClusterError(f'"{name}": the object has been modified', status=409)
        if part == "status":
            change = {"status": change["status"]}
        elif "status" in change and resource.kind in KINDS:
            change = {key: value for key, value in change.items() if key != "status"}
        return self._changed((resource.plural, namespace, name), there, _merged(there, change))

    def _changed(self, key: tuple[str, str, str], there: Document, now: Document) -> Document:
        if now == there:
            return there
        if now.get("spec") != there.get("spec"):
            now["metadata"]["generation"] = there["metadata"]["generation"] + 1
        if now["metadata"].get("deletionTimestamp") and not now["metadata"].get("finalizers"):
            self._drop(key)
            return now
        return self._write("MODIFIED", key, now)

    def _write(self, change: str, key: tuple[str, str, str], document: Document) -> Document:
        document["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[key] = document
        self.log.append((change, key[0], copy.deepcopy(document)))
        return document

    def _delete(self, resource: Resource, namespace: str, name: str) -> None:
        there = self._existing(resource, namespace, name)
        key = resource.plural, namespace, name
        if not there["metadata"].get("finalizers"):
            self._drop(key)
        elif not there["metadata"].get("deletionTimestamp"):
            now = copy.deepcopy(there)
            now["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
            self._write("MODIFIED", key, now)

    def _drop(self, key: tuple[str, str, str]) -> None:
        """An object is gone, and so is what it alone owned."""
        gone = self.objects.pop(key)
        self._applied.pop(key, None)
        gone["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.log.append(("DELETED", key[0], copy.deepcopy(gone)))
        uid = gone["metadata"]["uid"]
        for plural, namespace, name in list(self.objects):
            each = self.objects.get((plural, namespace, name))
            owners = [] if each is None else each["metadata"].get("ownerReferences") or []
            if owners and all(owner["uid"] == uid for owner in owners):
                self._delete(RESOURCES[plural], namespace, name)


def selects(selector: str, document: Document) -> bool:
    """Return whether the labels of an object fit: ``a=b`` and ``a``, with commas between them."""
    labels = document["metadata"].get("labels") or {}
    for part in selector.split(",") if selector else ():
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def _has(fields: str, document: Document) -> bool:
    """Return whether fields of an object have values: ``a.b=c``, with commas between them."""
    for part in fields.split(",") if fields else ():
        path, _, value = part.partition("=")
        found: Any = document
        for name in path.split("."):
            found = found.get(name, {})
        if found != value:
            return False
    return True


def _template(document: Document) -> Any:
    return document["spec"].get("template")


def _merged(there: Any, change: Any, *, is_apply: bool = False) -> Any:
    if not (isinstance(there, dict) and isinstance(change, dict)):
        return copy.deepcopy(change)
    result = copy.deepcopy(there)
    for name, value in change.items():
        if value is None and not is_apply:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name, {} if isinstance(value, dict) else None), value, is_apply=is_apply)
    return result


def _without(there: Any, before: Any, now: Any) -> Any:
    """Return an object without fields that were applied before and are not now."""
    if not (isinstance(there, dict) and isinstance(before, dict) and isinstance(now, dict)):
        return there
    return {
        name: _without(value, before.get(name), now.get(name, {}))
        for name, value in there.items()
        if name not in before or name in now
    }
