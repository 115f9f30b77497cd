"""``prefeed operator``: sample sets and jobs as resources of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prefeed.cli.commands import Commands
from prefeed.errors import PrefeedError
from prefeed.kubernetes.nodes import POOL_IMAGE
from prefeed.kubernetes.operator.groups import Choices


@click.group(name="operator", cls=Commands)
def command() -> None:
    """Make what sample sets and their jobs ask for in a Kubernetes cluster."""


@command.command()
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NAME", help="Look at this namespace only; may be repeated."
)
@click.option("--image", default="", envvar="RUNTIME_IMAGE", help="Image of servers and jobs, with prefeed.")
@click.option("--pool-image", default=POOL_IMAGE, show_default=True, help="Image with memcached.")
@click.option(
    "--liveness",
    default="",
    metavar="URL",
    help="Say at this address that the operator lives, such as http://0.0.0.0:8080/healthz.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Port of Prometheus' metrics; 0: none.")
@click.option("--paddlejob", is_flag=True, help="Run PaddleJobs too; not beside Paddle's own operator.")
@click.option(
    "--webhook-port", type=click.IntRange(0, 65535), default=0, help="Port at which pods get their caches; 0: none."
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    default=Path("/run/certificate/tls.crt"),
    show_default=True,
    help="Of the webhook, as a file.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    default=Path("/run/certificate/tls.key"),
    show_default=True,
    help="Of the certificate, as a file.",
)
def run(namespaces: tuple[str, ...], image: str, pool_image: str, *, paddlejob: bool, **given: Any) -> None:
    """Run the operator until SIGTERM.

    The cluster is that of the pod's service account, or of KUBECONFIG. The operator may be ended at any moment; the next one
    finds everything in the cluster. Run one operator per cluster.
    """
    try:
        from prefeed.kubernetes.operator import service
        from prefeed.kubernetes.operator.webhook import Endpoint
    except ModuleNotFoundError as err:
        raise PrefeedError(
            f"the operator needs the package {err.name}: install it with `pip install 'prefeed[kubernetes]'`"
        ) from None
    files = given.pop("certificate"), given.pop("key")
    port = given.pop("webhook_port")
    if port and not all(map(Path.is_file, files)):
        raise PrefeedError(f"the webhook needs {files[0]} and {files[1]}: name the files by --certificate and --key")
    service.run(
        service.Options(
            namespaces=namespaces,
            choices=Choices(image=image, pool_image=pool_image, paddle_jobs=paddlejob),
            webhook=Endpoint(port=port, certificate=files[0], key=files[1]) if port else None,
            **given,
        )
    )
