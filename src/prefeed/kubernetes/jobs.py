"""Converts warm-up jobs of sample sets for the sidecars of pods, each of which fills the cache of its own pod. Pure."""

from __future__ import annotations

from typing import Final

from prefeed.errors import SpecError
from prefeed.jobs.spec import CLEAR, KIND, RMR, SYNC, parse_job
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import API_VERSION

REFUSED: Final = {
    CLEAR: "the cache of a pod ends with the pod, and there is nothing to clear",
    RMR: "an rmr removes data at its origin: run it with `prefeed job apply` on a node, which asks first",
    SYNC: "run `prefeed sync` where the keys of both places are; the bucket of a set's secret is filled by the sidecar",
}


def warmup_of(document: Document) -> tuple[str, Document]:
    """Return the name of the set of a warm-up, and the document that a sidecar runs.

    Raises:
        SpecError: The job is invalid, or sidecars cannot run it.
    """
    said = parse_job(document)
    name = said.metadata.name
    if why := REFUSED.get(said.spec.type):
        raise SpecError(f"the job {name} has the type {said.spec.type}: {why}")
    if said.spec.schedule is not None:
        raise SpecError(
            f"the job {name} has a schedule, and sidecars run warm-ups once, when their pod starts: leave it out"
        )
    if not said.spec.sample_set:
        raise SpecError(f"the job {name} has no sampleSetRef: name the set whose pods run it")
    plain = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": document["spec"]}
    return said.spec.sample_set, plain
