"""``prefeed operator``: sample sets and jobs as resources of a cluster."""

from __future__ import annotations

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
@click.option("--peering", default="", metavar="NAME", help="Name of a KopfPeering: of several operators, one works.")
def run(
    namespaces: tuple[str, ...],
    image: str,
    pool_image: str,
    liveness: str,
    metrics_port: int,
    paddlejob: bool,
    peering: str,
) -> None:
    """Run the operator until SIGTERM.

    The cluster is that of the pod's service account, or of KUBECONFIG. The operator may be ended at any moment; the next one
    finds everything in the cluster.
    """
    try:
        from prefeed.kubernetes.operator import service
    except ModuleNotFoundError as err:
        raise PrefeedError(
            f"the operator needs the package {err.name}: install it with `pip install 'prefeed[kubernetes]'`"
        ) from None
    service.run(
        service.Options(
            namespaces=namespaces,
            choices=Choices(image=image, pool_image=pool_image, paddle_jobs=paddlejob),
            liveness=liveness,
            metrics_port=metrics_port,
            peering=peering,
        )
    )
