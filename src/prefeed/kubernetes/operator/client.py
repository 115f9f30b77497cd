"""Client for the few API server requests of the operator, on aiohttp, a dependency of kopf."""

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


class ClusterCredentials(Protocol):
    """Address and credentials of an API server, such as kopf's ``ConnectionInfo``."""

    @property
    def server(self) -> str:
        """URL of the API server."""

    def as_http_headers(self) -> Mapping[str, str]:
        """Return headers with the credentials."""

    def as_ssl_context(self) -> Any:
        """Return the TLS context."""


class ClusterClient:
    """Client of one API server. Each request raises ``ClusterError`` if it fails.

    Args:
        login: Returns the address and the credentials. Called again if the server rejects them.

    **Ownership**: an ``async with`` block closes its connections.
    """

    def __init__(self, login: Callable[[], ClusterCredentials]) -> None:
        self._login = login
        self._connection: ClusterCredentials | None = None
        self._encryption: Any = None
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS))

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def list(self, resource: Resource, namespace: str, selector: str = "", fields: str = "") -> list[Document]:
        """Return the objects of a kind.

        Args:
            resource: Kind of the objects.
            namespace: Namespace, or an empty text for all.
            selector: Label selector, or an empty text for all.
            fields: Field selector, or an empty text for all.
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
        """Create an object."""
        return await self._ask("POST", _path(resource, document["metadata"]["namespace"]), document)

    async def apply(self, resource: Resource, document: Document) -> Document:
        """Apply an object by server-side apply. Fields of other managers are kept."""
        metadata = document["metadata"]
        path = _path(resource, metadata["namespace"], metadata["name"])
        query = {"fieldManager": _MANAGER, "force": "true"}
        return await self._ask("PATCH", path, document, query=query, content=_APPLY)

    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document:
        """Change fields of an object. The server refuses if the object has changed since it was read.

        Args:
            resource: Kind of the object.
            document: Object as last read.
            change: Merge patch.
            part: ``status``, or an empty text for the object itself.
        """
        seen = document["metadata"]
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": seen["resourceVersion"]}}
        path = _path(resource, seen["namespace"], seen["name"]) + (f"/{part}" if part else "")
        return await self._ask("PATCH", path, change, content=_MERGE)

    async def delete(self, resource: Resource, document: Document) -> None:
        """Delete an object and those it owns, but no newer object of the same name."""
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
            self._connection = None  # expired: tokens of service accounts are replaced every hour
            status, text = await self._answer(method, path, query, body, content)
        if status >= _FIRST_ERROR:
            raise ClusterError(f"{method} {path}: {status}: {_message(text)}", status=status)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):  # a proxy in front of the API server has replied
            raise ClusterError(f"{method} {path}: the answer is no object: {text[:200]!r}", status=0)
        return found

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: str | None, content: str
    ) -> tuple[int, str]:
        connection = self._connection
        if connection is None:
            self._connection = connection = self._login()
            self._encryption = connection.as_ssl_context()  # shared: aiohttp reuses connections only within a context
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
