"""Requests to the API server: the few that the operator makes, by aiohttp, which kopf brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol

import aiohttp

from prefeed.errors import ClusterError
from prefeed.kubernetes.operator.groups import Resource
from prefeed.sampleset.documents import Document

_MANAGER: Final = "prefeed"
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_SECONDS: Final = 60.0
_UNAUTHORIZED: Final = 401
_FIRST_ERROR: Final = 400


class Connection(Protocol):
    """How the server is reached; kopf's ``ConnectionInfo`` is one."""

    @property
    def server(self) -> str:
        """URL."""

    def as_http_headers(self) -> Mapping[str, str]:
        """Return headers with the credentials."""

    def as_ssl_context(self) -> Any:
        """Return the context for encrypted connections."""


class Client:
    """Requests to one API server; each raises ``ClusterError`` when it is refused.

    Args:
        login: Returns how the server is reached; asked again when it knows the credentials no more.

    **Ownership**: an ``async with`` block closes its connections.
    """

    def __init__(self, login: Callable[[], Connection]) -> None:
        self._login = login
        self._connection: Connection | None = None
        self._encryption: Any = None
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def list(self, resource: Resource, namespace: str, selector: str = "", fields: str = "") -> list[Document]:
        """Return the objects of a kind.

        Args:
            resource: Their kind.
            namespace: Their namespace; empty for all.
            selector: Selector of labels; empty for all.
            fields: Selector of fields; empty for all.
        """
        query = {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in query.items() if value}
        found = await self._ask("GET", _path(resource, namespace), query=query)
        kinds = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**each, **kinds} for each in found["items"]]

    async def get(self, resource: Resource, namespace: str, name: str) -> Document:
        """Return an object."""
        return await self._ask("GET", _path(resource, namespace, name))

    async def create(self, resource: Resource, document: Document) -> Document:
        """Make an object."""
        return await self._ask("POST", _path(resource, document["metadata"]["namespace"]), document)

    async def apply(self, resource: Resource, document: Document) -> Document:
        """An object is as it is given here; fields that others set stay."""
        metadata = document["metadata"]
        path = _path(resource, metadata["namespace"], metadata["name"])
        query = {"fieldManager": _MANAGER, "force": "true"}
        return await self._ask("PATCH", path, document, query=query, content=_APPLY)

    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document:
        """Change fields of an object; refused if it has changed since it was seen.

        Args:
            resource: Its kind.
            document: As it was seen.
            change: A merge patch.
            part: ``status``, or empty.
        """
        seen = document["metadata"]
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": seen["resourceVersion"]}}
        path = _path(resource, seen["namespace"], seen["name"]) + (f"/{part}" if part else "")
        return await self._ask("PATCH", path, change, content=_MERGE)

    async def delete(self, resource: Resource, document: Document) -> None:
        """An object, and what it owns, is removed; another one of its name is not."""
        seen = document["metadata"]
        options = {"preconditions": {"uid": seen["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._ask("DELETE", _path(resource, seen["namespace"], seen["name"]), options)
        except ClusterError as err:
            if err.details["status"] != 404:
                raise

    async def _ask(
        self,
        method: str,
        path: str,
        document: Document | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Document:
        body = None if document is None else json.dumps(document)
        status, text = await self._answer(method, path, query, body, content)
        if status == _UNAUTHORIZED:
            self._connection = None  # tokens of service accounts are replaced every hour
            status, text = await self._answer(method, path, query, body, content)
        if status >= _FIRST_ERROR:
            raise ClusterError(f"{method} {path}: {status}: {_message(text)}", status=status)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):  # of whoever stands before the API server
            raise ClusterError(f"{method} {path}: the answer is no object: {text[:200]!r}", status=0)
        return found

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: str | None, content: str
    ) -> tuple[int, str]:
        connection = self._connection
        if connection is None:
            self._connection = connection = self._login()
            self._encryption = connection.as_ssl_context()  # one for all: connections are used again within one only
        headers = {**connection.as_http_headers(), **({"Content-Type": content} if body else {})}
        url = connection.server.rstrip("/") + path
        try:
            async with self._session.request(
                method, url, params=query, data=body, headers=headers, ssl=self._encryption
            ) as answer:
                return answer.status, await answer.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as err:
            raise ClusterError(f"{method} {path}: the API server does not answer: {err}", status=0) from err


def _path(resource: Resource, namespace: str, name: str = "") -> str:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.api_version}"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{resource.plural}" + (f"/{name}" if name else "")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return text[:1000]
