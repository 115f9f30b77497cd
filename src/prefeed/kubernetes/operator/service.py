"""The operator program. kopf watches the cluster and serves the liveness probe; ``Worker`` handles the changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

import kopf
from prometheus_client import start_http_server

from prefeed.errors import ClusterError
from prefeed.kubernetes.crds import definition, is_ours
from prefeed.kubernetes.operator.admission import answer, key_of
from prefeed.kubernetes.operator.asking import Asker, Requests
from prefeed.kubernetes.operator.carrying import Carrier, selector_of
from prefeed.kubernetes.operator.client import ClusterClient, ClusterCredentials
from prefeed.kubernetes.operator.counts import KNOWN, WAITING, OperatorMetrics
from prefeed.kubernetes.operator.groups import Choices
from prefeed.kubernetes.operator.kinds import DEFINITIONS, MADE, watched
from prefeed.kubernetes.operator.webhook import Endpoint, Webhook
from prefeed.kubernetes.operator.working import Worker
from prefeed.kubernetes.operator.world import World
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.sampleset.documents import Document

_CLIENT_SECONDS: Final = 600
"""Lifetime of a watch, so that a silent one is replaced. kopf's watches could freeze without it (#955)."""

_log = logging.getLogger("prefeed.operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the operator program.

    Attributes:
        namespaces: Namespaces to watch. If empty, all.
        choices: Images, and whether to run PaddleJobs.
        liveness: URL of the liveness probe, or an empty text for none.
        metrics_port: Port of the Prometheus endpoint, or 0 for none.
        webhook: Endpoint for AdmissionReviews of pods, or None.
    """

    namespaces: Sequence[str] = ()
    choices: Choices = field(default_factory=Choices)
    liveness: str = ""
    metrics_port: int = 0
    webhook: Endpoint | None = None


def login() -> ClusterCredentials:
    """Return the address and credentials of the API server, from the service account of this pod or from KUBECONFIG.

    Raises:
        ClusterError: Neither exists.
    """
    settings = kopf.OperatorSettings()
    in_pod = kopf.login_with_service_account(settings=settings)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if (
        in_pod is not None and host and port
    ):  # the address from the environment, as in Go clients, because the cluster's DNS may be down
        return cast(
            "ClusterCredentials", replace(in_pod, server=f"https://{f'[{host}]' if ':' in host else host}:{port}")
        )
    found: ClusterCredentials | None = in_pod or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        raise ClusterError("no cluster is known: run in a pod with a service account, or set KUBECONFIG", status=0)
    return found


def run(options: Options) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise a line per event
    os.environ.setdefault(
        "POD_ID", socket.gethostname()
    )  # otherwise kopf looks up the user's name, which a pod's user may lack
    registry = kopf.OperatorRegistry()
    service = _Service(options)
    service.register(registry)
    kopf.run(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=not options.namespaces,
        namespaces=options.namespaces,
        liveness_endpoint=options.liveness or None,
    )


async def _require_ours(client: ClusterClient) -> None:
    """Refuse to run PaddleJobs whose definition belongs to another operator."""
    name = definition(PADDLE_JOB)["metadata"]["name"]
    if not is_ours(await client.get(DEFINITIONS, "", name)):
        raise kopf.PermanentError(
            f"the definition {name} is not prefeed's: another operator runs PaddleJobs here; leave out --paddlejob, and its jobs "
            "read sample sets by the label of their pods"
        )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.watching.client_timeout = _CLIENT_SECONDS
    settings.posting.enabled = False
    settings.scanning.disabled = True  # scanning requires rights on namespaces and all definitions
    for resource in MADE.values():
        settings.watching.label_selectors[resource.group, _version(resource.api_version), resource.plural] = (
            selector_of(resource)
        )
    return settings


def _version(api_version: str) -> str:
    return api_version.rpartition("/")[2]


async def _work(worker: Worker, asker: Asker) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        tasks.create_task(asker.run())


class _Service:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._world = World()
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._counts = OperatorMetrics()

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Register the handlers of the operator with kopf."""
        kopf.on.startup(registry=registry)(self._start)
        kopf.on.cleanup(registry=registry)(self._end)
        kopf.on.login(registry=registry)(lambda **_: login())
        kopf.on.probe(registry=registry, id="groups")(self._alive)
        for resource in watched(self._options.choices):
            seen = self._seen(resource.api_version, resource.kind)
            kopf.on.event(resource.group, _version(resource.api_version), resource.plural, registry=registry)(seen)

    async def _start(self, **_: Any) -> None:
        client = await self._stack.enter_async_context(ClusterClient(login))
        if self._options.choices.paddle_jobs:
            await _require_ours(client)
        requests = await self._stack.enter_async_context(Requests())
        asker = Asker(self._world, requests.get, lambda keys: worker.mark(keys))
        carrier = Carrier(client, self._world, self._options.choices, lambda: datetime.now(UTC), asker.reports)
        if self._options.webhook is not None:

            async def about_pod(review: Document) -> Document:
                key = key_of(review)
                return answer(review, None if key is None else await carrier.group_now(key))

            await self._stack.enter_async_context(Webhook(self._options.webhook, about_pod))
        namespaces = self._options.namespaces or ("",)
        self._worker = worker = Worker(carrier, namespaces, counts=self._counts.ended)
        self._counts.show(WAITING, lambda: worker.num_waiting)
        self._counts.show(KNOWN, lambda: len(self._world))
        if self._options.metrics_port:
            server, thread = start_http_server(self._options.metrics_port, registry=self._counts.registry)
            self._stack.callback(thread.join)
            self._stack.callback(server.server_close)
            self._stack.callback(server.shutdown)
        self._task = asyncio.create_task(_work(worker, asker), name="prefeed-operator")

    async def _end(self, **_: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._stack.aclose()

    def _alive(self, **_: Any) -> int:
        """Return the number of waiting groups, for kopf's liveness probe.

        Raises:
            RuntimeError: The worker has stopped.
        """
        if self._task is None or self._worker is None or self._task.done():
            raise RuntimeError("the operator does not work")
        return self._worker.num_waiting

    def _seen(self, api_version: str, kind: str) -> Callable[..., Any]:
        async def seen(event: dict[str, Any], **_: Any) -> None:
            document = {**event["object"], "apiVersion": api_version, "kind": kind}
            keys = self._world.forget(document) if event["type"] == "DELETED" else self._world.see(document)
            if self._worker is not None:
                self._worker.mark(keys)

        return seen
