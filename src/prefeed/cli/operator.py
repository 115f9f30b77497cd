"""``prefeed operator``: runs the Kubernetes operator for sample sets and their jobs."""

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
    """Run the Kubernetes operator for sample sets and their jobs."""


@command.command()
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Namespace to watch; may be repeated. Default: all.",
)
@click.option("--image", default="", envvar="RUNTIME_IMAGE", help="Image with prefeed, for servers and jobs.")
@click.option("--pool-image", default=POOL_IMAGE, show_default=True, help="Image with memcached, for the pool.")
@click.option(
    "--liveness",
    default="",
    metavar="URL",
    help="Address of the liveness probe, such as http://0.0.0.0:8080/healthz. Default: none.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), default=0, help="Port of the Prometheus metrics; 0 for none."
)
@click.option("--paddlejob", is_flag=True, help="Run PaddleJobs as well, in a cluster without Paddle's operator.")
@click.option(
    "--webhook-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the webhook that adds caches to pods; 0 for none.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    default=Path("/run/certificate/tls.crt"),
    show_default=True,
    help="File with the TLS certificate of the webhook.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    default=Path("/run/certificate/tls.key"),
    show_default=True,
    help="File with the private key of the certificate.",
)
def run(namespaces: tuple[str, ...], image: str, pool_image: str, *, paddlejob: bool, **given: Any) -> None:
    """Run the operator until SIGTERM.

    The operator connects to the cluster of the pod's service account, or of KUBECONFIG. It may be killed at any time, because
    its state is stored in the cluster. Run one operator per cluster.
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
        raise PrefeedError(f"the webhook needs {files[0]} and {files[1]}: name the files with --certificate and --key")
    service.run(
        service.Options(
            namespaces=namespaces,
            choices=Choices(image=image, pool_image=pool_image, paddle_jobs=paddlejob),
            webhook=Endpoint(port=port, certificate=files[0], key=files[1]) if port else None,
            **given,
        )
    )
