"""``prefeed_bench.cluster.Cluster`` behind HTTP, as an API server: discovery, requests, and watches that may be cut or refused.

::

    with served(cluster) as server:      # server.url, server.kubeconfig(path)
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from prefeed.errors import ClusterError
from prefeed.kubernetes.crds import KINDS as DEFINED
from prefeed.kubernetes.crds import definition
from prefeed.kubernetes.operator.groups import Resource
from prefeed_bench.cluster import RESOURCES, Cluster, selects

Document = dict[str, Any]
_LOOK_AGAIN_SECONDS = 0.02


class Server:
    """A cluster that answers at a URL.

    Attributes:
        url: Of the server.
        lock: Held while the cluster is looked at or changed.
        is_away: It refuses all requests with 503.
        gone: The next watch of each of these kinds is answered with 410.
        watches: Kinds of the watches that were begun.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lock = threading.RLock()
        self.is_away = False
        self.is_ending = threading.Event()
        self.generation = 0  # watches of an older one end
        self.gone: set[str] = set()
        self.watches: list[str] = []
        server = self

        class Handler(_Handler):
            of = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    def kubeconfig(self, path: Path) -> Path:
        """Write the file by which clients find the server."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def end(self) -> None:
        """All requests have ended."""
        self.is_ending.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def cut(self) -> None:
        """All watches end; what happens until they begin again is missed."""
        self.generation += 1


@contextlib.contextmanager
def served(cluster: Cluster) -> Iterator[Server]:
    """Serve a cluster; nothing of it is left at the end."""
    server = Server(cluster)
    server.start()
    try:
        yield server
    finally:
        server.end()


class _Handler(BaseHTTPRequestHandler):
    of: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._change)

    def do_PATCH(self) -> None:
        self._answer(self._change)

    def do_DELETE(self) -> None:
        self._answer(self._change)

    def _answer(self, answer: Callable[[], Document | None]) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._body = json.loads(self.rfile.read(length)) if length else {}
        self.close_connection = True
        try:
            if self.of.is_away:
                raise ClusterError("the server is away", status=503)
            found = answer()
        except ClusterError as err:
            self._send(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": str(err),
                    "code": err.details["status"],
                },
                err.details["status"],
            )
        else:
            if found is not None:
                self._send(found)

    def _send(self, document: Document, status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):  # a client that was killed
            self.wfile.write(data)

    # ---------------------------------------------------------------- requests

    def _place(self) -> tuple[Resource, str, str, str]:
        """Return the resource, the namespace, the name and the subresource of a path."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts and parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if not parts or parts[0] not in RESOURCES:
            raise ClusterError("the server could not find the requested resource", status=404)
        return RESOURCES[parts[0]], namespace, (parts[1] if len(parts) > 1 else ""), "/".join(parts[2:3])

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def _get(self) -> Document | None:
        if (found := _discovery(urlsplit(self.path).path.rstrip("/"))) is not None:
            return found
        resource, namespace, name, _ = self._place()
        query = self._query
        if query.get("watch") in ("true", "1"):
            self._watch(resource, namespace, query)
            return None
        with self.of.lock:
            if name:
                return _now(self.of.cluster.get(resource, namespace, name))
            self.of.cluster.before("list", resource.plural)
            selectors = (query.get("labelSelector", ""), query.get("fieldSelector", ""))
            items = self.of.cluster.listed(resource, namespace, *selectors)
            version = _version(self.of.cluster)
        if "as=Table" in self.headers.get("Accept", "") and resource.kind in DEFINED:
            return _table(resource, items, version)
        return {
            "apiVersion": resource.api_version,
            "kind": f"{resource.kind}List",
            "metadata": {"resourceVersion": version},
            "items": items,
        }

    def _watch(self, resource: Resource, namespace: str, query: dict[str, str]) -> None:
        self.of.watches.append(resource.plural)
        generation = self.of.generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        if resource.plural in self.of.gone:
            self.of.gone.discard(resource.plural)
            self._write(
                {
                    "type": "ERROR",
                    "object": {
                        "kind": "Status",
                        "code": 410,
                        "reason": "Expired",
                        "message": "too old resource version",
                    },
                }
            )
            return
        at, since = 0, int(query.get("resourceVersion") or 0)
        while not self.of.is_ending.is_set() and self.of.generation == generation:
            with self.of.lock:
                log = self.of.cluster.log[at:]
            at += len(log)
            for change, plural, document in log:
                metadata = document["metadata"]
                if (
                    plural == resource.plural
                    and int(metadata["resourceVersion"]) > since
                    and namespace in ("", metadata["namespace"])
                    and selects(query.get("labelSelector", ""), document)
                ):
                    self._write({"type": change, "object": document})
            self.of.is_ending.wait(_LOOK_AGAIN_SECONDS)

    def _write(self, event: Document) -> None:
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def _change(self) -> Document:
        resource, namespace, name, part = self._place()
        cluster, body = self.of.cluster, self._body
        with self.of.lock:
            if self.command == "POST":
                body["metadata"].setdefault("namespace", namespace)
                return _now(cluster.create(resource, body))
            if self.command == "DELETE":
                there = _now(cluster.get(resource, namespace, name))
                uid = (body.get("preconditions") or {}).get("uid", there["metadata"]["uid"])
                _now(cluster.delete(resource, {"metadata": {**there["metadata"], "uid": uid}}))
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            if "apply-patch" in self.headers["Content-Type"]:
                return _now(cluster.apply(resource, body))
            return cluster.patched(resource, namespace, name, body, part)


def _now(coroutine: Any) -> Any:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _version(cluster: Cluster) -> str:
    return str(max((int(each["metadata"]["resourceVersion"]) for _, _, each in cluster.log), default=0))


def _discovery(path: str) -> Document | None:
    groups = sorted({each.api_version for each in RESOURCES.values()})
    named = [each for each in groups if "/" in each]
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(each) for each in named]}
    for each in groups:
        if path == (f"/apis/{each}" if "/" in each else f"/api/{each}"):
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": each,
                "resources": list(_resources(each)),
            }
        if "/" in each and path == f"/apis/{each.split('/')[0]}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(each)}
    return None


def _table(resource: Resource, items: list[Document], version: str) -> Document:
    """Return objects as `kubectl get` shows them: with the columns of their definition."""
    columns = definition(resource.kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            *({"format": "", "description": "", "priority": 0, **each} for each in columns),
        ],
        "rows": [
            {
                "cells": [each["metadata"]["name"], *(_at(each, column["jsonPath"]) for column in columns)],
                "object": each,
            }
            for each in items
        ],
    }


def _at(document: Any, path: str) -> str:
    for name in path.strip(".").split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return str(document or "")


def _group(api_version: str) -> Document:
    group, version = api_version.split("/")
    versions = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [versions], "preferredVersion": versions}


def _resources(api_version: str) -> Iterator[Document]:
    if api_version == "v1":  # kopf does not begin without it
        yield {
            "name": "namespaces",
            "singularName": "namespace",
            "namespaced": False,
            "kind": "Namespace",
            "verbs": ["list"],
        }
    for each in RESOURCES.values():
        if each.api_version == api_version:
            shared = {
                "namespaced": True,
                "kind": each.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            }
            names = definition(each.kind)["spec"]["names"] if each.kind in DEFINED else {}
            known = {name: names[name] for name in ("shortNames", "categories") if name in names}
            yield {"name": each.plural, "singularName": each.kind.lower(), **shared, **known}
            yield {"name": f"{each.plural}/status", "singularName": "", **shared, "verbs": ["get", "patch", "update"]}
