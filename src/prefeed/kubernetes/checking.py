"""Holds documents against the schemas of resources, without a cluster.

Documents of prefeed's kinds are read first, whose messages say what to write; the schema then has what only an API server wants. Those
of Kubernetes are held against the schemas that it publishes, which the package kubernetes-validate ships. Of kinds that operators of
others define, such as JobSet, the pods are held against them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from prefeed.errors import PrefeedError, SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.jobs.spec import parse_job
from prefeed.kubernetes.crds import KINDS, schema_of
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import parse_paddle_job
from prefeed.kubernetes.schema import strict
from prefeed.kubernetes.workloads import OF_OTHERS, templates_of
from prefeed.sampleset.documents import Document, decode, kind_of
from prefeed.sampleset.locations import locate
from prefeed.sampleset.spec import API_VERSION, NO_PLACE, SampleSetDocument
from prefeed.sampleset.spec import KIND as SAMPLE_SET

LEAST_VERSION: Final = "1.29"
"""The first release in which native sidecars are on, and conditions in schemas are stable."""

_EXTRA: Final = "install it with `pip install 'prefeed[kubernetes]'`"


def problems_of(document: Document, version: str) -> list[str]:
    """Return what is wrong with a document, each with the path of its field; nothing when it can be applied.

    Args:
        document: Of any kind.
        version: Of Kubernetes, such as ``1.32``.

    Raises:
        PrefeedError: The schemas are not installed, or none of this version is known.
    """
    if not re.fullmatch(r"1\.[0-9]+(\.[0-9]+)?", version):
        raise PrefeedError(f"{version!r:.60} is not a version of Kubernetes; write one such as {LEAST_VERSION}")
    try:
        kind, api_version = kind_of(document)
        if kind in KINDS or kind == PADDLE_JOB:
            pods = _read(kind, api_version, document)
        elif kind in OF_OTHERS:
            pods = dict(templates_of(document))
        else:
            return list(_of_kubernetes(document, version))
    except SpecError as err:
        return [str(err)]
    found = list(_of_schema(document, kind)) if kind not in OF_OTHERS else []
    for name, template in pods.items():
        wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}
        found += [each.replace("template", name, 1) for each in _of_kubernetes(wrapped, version)]
    return found


def _read(kind: str, api_version: str, document: Document) -> dict[str, Any]:
    """Hold a document against the strict reader; return its templates of pods by their path.

    Raises:
        SpecError: It is refused.
    """
    if kind == PADDLE_JOB:
        return {f"spec.{name}.template": given.template for name, given in parse_paddle_job(document).spec.pods.items()}
    if api_version != API_VERSION:
        raise SpecError(f"apiVersion: a {kind} has {API_VERSION}, not {api_version!r:.60}")
    if kind == SAMPLE_JOB:
        parse_job(document)
    elif kind == SAMPLE_SET:
        spec = decode(document, SampleSetDocument).spec
        if spec.uri:
            locate(spec.uri, "spec.source.uri")
        elif not spec.secret:
            raise SpecError(f"spec{NO_PLACE.path}{NO_PLACE.said}")
    return {}


def _of_schema(document: Document, kind: str) -> Iterator[str]:
    schema = strict(schema_of(kind))
    del schema["properties"]["metadata"]  # an API server has a schema of its own for it
    schema["properties"]["metadata"] = {"type": "object"}
    yield from _said(_validator(schema).iter_errors(document))


def _validator(schema: dict[str, Any]) -> Any:
    try:
        from jsonschema.validators import Draft202012Validator
    except ModuleNotFoundError:
        raise PrefeedError(f"checking needs the package kubernetes-validate: {_EXTRA}") from None
    return Draft202012Validator(schema)


def _of_kubernetes(document: Document, version: str) -> Iterator[str]:
    try:
        import kubernetes_validate
    except ModuleNotFoundError:
        raise PrefeedError(f"checking needs the package kubernetes-validate: {_EXTRA}") from None
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as err:
        yield from _said([err])
    except kubernetes_validate.utils.VersionNotSupportedError:
        known = kubernetes_validate.latest_version().rpartition(".")[0]
        raise PrefeedError(f"no schemas of Kubernetes {version} are known; the newest are of {known}") from None
    except kubernetes_validate.SchemaNotFoundError:
        kind, api_version = kind_of(document)
        yield f"kind: Kubernetes {version} has no {kind!r:.60} of apiVersion {api_version!r:.60}"


def _said(errors: Iterable[Any]) -> Iterator[str]:
    """Yield the path and the message of errors of jsonschema; where no alternative fits, of the one that came nearest."""
    for error in errors:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        yield f"{path.lstrip('.') or 'the document'}: {error.message:.300}"
