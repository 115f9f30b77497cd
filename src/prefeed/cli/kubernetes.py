"""``prefeed kubernetes``: prints manifests, adds caches to pods, and runs the sidecar of such pods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import yaml

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.commands import Commands
from prefeed.cli.options import config_of
from prefeed.errors import SpecError
from prefeed.kubernetes.crds import definition, definitions
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.sidecar import run_job, run_sidecar
from prefeed.kubernetes.sizes import PORT
from prefeed.kubernetes.workloads import patched
from prefeed.sampleset.documents import Document
from prefeed.sampleset.yaml_files import load_documents

STDIN: Final = "-"


@click.group(name="kubernetes", cls=Commands)
def command() -> None:
    """Print Kubernetes manifests, and add caches to their pods.

    These commands need no access to a cluster. Pass the YAML that they print to `kubectl apply -f -`.
    """


@command.command()
@click.option(
    "--paddlejob",
    is_flag=True,
    help="Print the definition of PaddleJob instead, for clusters without Paddle's operator.",
)
def crds(paddlejob: bool) -> None:
    """Print the CustomResourceDefinitions of SampleSet and SampleJob."""
    click.echo(yaml_of([definition(PADDLE_JOB)] if paddlejob else definitions()), nl=False)


@command.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def patch(files: tuple[str, ...]) -> None:
    """Add a cache to the pods of manifests, and print the manifests.

    FILE contains documents with pods, such as a Deployment or a Job, and the SampleSets that they read; - is stdin. The label
    `prefeed.io/sampleset: NAME` in the template of a pod selects its set. The command adds volumes and a sidecar that runs the
    node server, and converts the set to a ConfigMap. All other documents are printed unchanged.

    Pass the result to `kubectl apply -f -`. It may be patched again.
    """
    documents, notes = patched([document for _, document in documents_in(files)])
    for note in notes:
        render.say(note)
    click.echo(yaml_of(documents), nl=False)


@command.command(hidden=True)
@click.argument("name")
@click.option("--clear", is_flag=True, help="Delete the cache at the end.")
@click.option(
    "--sizes-port", type=click.IntRange(0, 65535), default=PORT, help="Port at which the operator requests sizes."
)
@click.pass_context
def sidecar(ctx: click.Context, name: str, *, clear: bool, sizes_port: int) -> None:
    """Run the node server of the set NAME until SIGTERM, as the sidecar of a pod or the server of a node."""
    serve = backend_of(ctx).run_foreground
    ctx.exit(run_sidecar(name, config_of(), serve, render.say, is_cleared=clear, port=sizes_port))


@command.command(hidden=True)
@click.argument("name")
@click.argument("document")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Number of pods that share a warm-up.")
@click.option("--again", is_flag=True, help="Run the job even if it has succeeded before.")
@click.pass_context
def job(ctx: click.Context, name: str, document: str, partitions: int, *, again: bool) -> None:
    """Run a job of the set NAME in a pod of the operator. DOCUMENT is its SampleJob, as JSON."""
    ctx.exit(run_job(name, document, config_of(), partitions=partitions, is_again=again))


def documents_in(files: tuple[str, ...]) -> Iterator[tuple[str, Document]]:
    """Yield the documents of files, each with the name of its file.

    Raises:
        SpecError: A file cannot be read, is not YAML, or contains no document.
    """
    for file in files:
        name = "stdin" if file == STDIN else file
        try:
            text = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        except OSError as err:
            raise SpecError(f"{file} cannot be read: {err.strerror}") from err
        there = list(load_documents(text, name))
        if not there:
            raise SpecError(f"{name} contains no YAML document")
        yield from ((name, document) for document in there)


def yaml_of(documents: list[Document]) -> str:
    """Format documents as a YAML stream, with their fields in the given order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=True, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """YAML writer without anchors, which the strict reader refuses. Texts of several lines are literal blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
