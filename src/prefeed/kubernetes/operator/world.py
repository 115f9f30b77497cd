"""Cache of the objects that the operator watches, by group. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from prefeed.kubernetes.nodes import INSTANCE
from prefeed.kubernetes.operator.groups import Choices, Group, Key
from prefeed.kubernetes.operator.kinds import KINDS, MADE, PODS
from prefeed.kubernetes.pods import LABEL
from prefeed.kubernetes.sizes import Report
from prefeed.sampleset.documents import Document

Name = tuple[str, str, str]
"""Kind, namespace and name of an object."""


def key_of(document: Document) -> Key | None:
    """Return the group of an object, or None."""
    kind, metadata = document["kind"], document["metadata"]
    labels = metadata.get("labels") or {}
    if kind in KINDS:
        return Key(metadata.get("namespace", ""), KINDS[kind].set_of(document))
    name = labels.get(LABEL if kind == PODS.kind else INSTANCE)
    return None if name is None else Key(metadata.get("namespace", ""), str(name))


def name_of(document: Document) -> Name:
    """Return kind, namespace and name of an object."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


class World:
    """Cache of objects as last read from the API server.

    **Threads**: one.
    """

    def __init__(self) -> None:
        self._objects: dict[Name, Document] = {}
        self._groups: defaultdict[Key, set[Name]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object, or None if it is not in the cache."""
        return self._objects.get((kind, namespace, name))

    def see(self, document: Document) -> set[Key]:
        """Record an object. Return its current and its previous group, or nothing if the cache has a newer version."""
        known = self._objects.get(name_of(document))
        if known is not None and _is_newer(known, document):
            return set()
        keys = self.forget(document)
        if key := key_of(document):
            self._objects[name_of(document)] = _needed(document)
            self._groups[key].add(name_of(document))
            keys.add(key)
        return keys

    def forget(self, document: Document) -> set[Key]:
        """Remove an object. Return its group."""
        before = self._objects.pop(name_of(document), None)
        key = None if before is None else key_of(before)
        if key is None:
            return set()
        self._groups[key].discard(name_of(document))
        if not self._groups[key]:
            del self._groups[key]
        return {key}

    def versions(self, kind: str) -> dict[Name, str]:
        """Return the cached versions of a kind's objects. Call it before they are listed."""
        return {name: _version(each) for name, each in self._objects.items() if name[0] == kind}

    def replace(self, before: Mapping[Name, str], documents: Iterable[Document]) -> set[Key]:
        """Record all objects of a kind. Remove cached objects that are not among them and unchanged since ``before``.

        Args:
            before: Result of ``versions`` before the list.
            documents: All objects of the kind.
        """
        now = {name_of(each): each for each in documents}
        keys = set()
        for name, version in before.items():
            known = self._objects.get(name)
            if name not in now and known is not None and _version(known) == version:
                keys |= self.forget(known)
        for each in now.values():
            keys |= self.see(each)
        return keys

    def keys(self) -> set[Key]:
        """Return the keys of all groups."""
        return set(self._groups)

    def group(
        self,
        key: Key,
        *,
        now: datetime,
        choices: Choices,
        secrets: Mapping[str, frozenset[str] | None] | None = None,
        ends: Mapping[str, str] | None = None,
        refusal: str = "",
        reports: Mapping[str, Report] | None = None,
    ) -> Group:
        """Return a snapshot of a group."""
        found = [self._objects[name] for name in self._groups.get(key, ())]
        found.sort(key=lambda each: (each["metadata"].get("creationTimestamp") or "", each["metadata"]["name"]))
        return Group(
            key=key,
            documents={kind: [each for each in found if each["kind"] == kind] for kind in KINDS},
            made={(each["kind"], each["metadata"]["name"]): each for each in found if each["kind"] in MADE},
            pods=[each for each in found if each["kind"] == PODS.kind],
            secrets=secrets or {},
            ends=ends or {},
            refusal=refusal,
            reports=reports or {},
            now=now,
            choices=choices,
        )


def _version(document: Document) -> str:
    return str(document["metadata"].get("resourceVersion", ""))


def _is_newer(known: Document, document: Document) -> bool:
    """Return whether the cache has a newer version of an object, as after a slow list or reply."""
    versions = _version(known), _version(document)
    is_same = known["metadata"].get("uid") == document["metadata"].get("uid")
    return is_same and all(map(str.isdigit, versions)) and int(versions[0]) > int(versions[1])


def _needed(document: Document) -> Document:
    """Return the parts of an object that the operator uses, to save memory in clusters with many pods."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    if document["kind"] in KINDS:
        return {**document, "metadata": metadata}
    kept: dict[str, Any] = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
    return {**kept, "status": document.get("status") or {}}
