"""HTTPS endpoint for AdmissionReviews of new pods. kopf's own webhook omits the namespace."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from aiohttp import web

from prefeed.sampleset.documents import Document

PATH: Final = "/pods"
_RELOAD_SECONDS: Final = 300.0
"""Interval at which the certificate is read again, because it is replaced before it expires."""

_MOST_BYTES: Final = 16 * 1024**2

_log = logging.getLogger("prefeed.operator")

Answer = Callable[[Document], Awaitable[Document]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address and TLS files of the webhook.

    Attributes:
        port: Port on all addresses.
        certificate: Certificate file, issued for the name of the Service.
        key: Key file.
    """

    port: int
    certificate: Path
    key: Path


class Webhook:
    """HTTPS server that answers AdmissionReviews.

    **Ownership**: an ``async with`` block opens and closes the port.
    """

    def __init__(self, endpoint: Endpoint, answer: Answer) -> None:
        self._endpoint = endpoint
        self._answer = answer
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(endpoint.certificate, endpoint.key)
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post(PATH, self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Webhook:
        await self._runner.setup()
        await web.TCPSite(self._runner, port=self._endpoint.port, ssl_context=self._context).start()
        self._task = asyncio.create_task(self._reload())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._runner.cleanup()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            try:
                self._context.load_cert_chain(self._endpoint.certificate, self._endpoint.key)
            except OSError as err:  # during a replacement, certificate and key may not match
                _log.warning("the webhook's certificate cannot be read: %s; trying again in %g s", err, _RELOAD_SECONDS)

    async def _handle(self, request: web.Request) -> web.Response:
        return web.json_response(await self._answer(await request.json()))
