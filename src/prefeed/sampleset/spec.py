"""What a document of kind SampleSet says, as the original's fields have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.sampleset.options import OptionValue, take_options
from prefeed.sampleset.yaml_fields import Section

API_VERSION: Final = "batch.paddlepaddle.org/v1alpha1"
KIND: Final = "SampleSet"
MEDIA: Final = ("MEM", "SSD", "HDD")
DEFAULT_NAMESPACE: Final = "default"
_OF_THE_CLUSTER: Final = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences", "finalizers", "selfLink",
)  # fmt: skip
"""What `kubectl get -o yaml` writes beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of the cache.

    Attributes:
        medium: ``MEM``, ``SSD`` or ``HDD``.
        path: Directory, or several with ``:`` between them.
        cache_mib: The most that it may take, MiB; None: not said.
    """

    medium: str
    path: str
    cache_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSetSpec:
    """What was asked for.

    Attributes:
        partitions: Nodes that cache it.
        uri: Where the data is, as it was written; empty when it is in the secret's bucket already.
        source_secret: Name of the secret for ``uri``; empty: none.
        secret: Name of the secret for the bucket; empty: none.
        no_sync: Nothing is to be copied into the bucket.
        driver: ``juicefs``, or empty.
        options: JuiceFS's mount options that were given, by name.
        levels: Levels of the cache, in the order in which they were written.
        for_kubernetes: Fields that only Kubernetes has a use for.
        document: The ``spec`` as it was written.
    """

    partitions: int
    uri: str
    source_secret: str
    secret: str
    no_sync: bool
    driver: str
    options: Mapping[str, OptionValue]
    levels: tuple[Level, ...]
    for_kubernetes: tuple[str, ...]
    document: Mapping[str, Any] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Name and namespace of a document."""

    name: str
    namespace: str


def take_metadata(document: Section) -> Metadata:
    """Return a document's name and namespace.

    Raises:
        SpecError: There is no name, or it is none.
    """
    section = document.section("metadata")
    if section is None:
        document.missing("metadata")
    metadata = Metadata(name=section.name("name"), namespace=section.name("namespace", DEFAULT_NAMESPACE))
    section.ignore("labels", "annotations", *_OF_THE_CLUSTER)
    section.end()
    return metadata


def take_kind(document: Section, kinds: Mapping[str, str]) -> str:
    """Return the document's kind, one of ``kinds``, which say the ``apiVersion`` of each.

    Raises:
        SpecError: It is none of them, or of another version.
    """
    kind = document.text("kind")
    if kind not in kinds:
        hint = "; jobs are applied with `prefeed job apply`" if kind == "SampleJob" else ""
        raise SpecError(f"kind: {kind!r:.60} is not known here; known are {', '.join(kinds)}{hint}")
    version = document.text("apiVersion")
    if version != kinds[kind]:
        raise SpecError(f"apiVersion: a {kind} has {kinds[kind]}, not {version!r:.60}")
    return kind


def parse_spec(section: Section) -> SampleSetSpec:
    """Return what the fields of ``spec`` say.

    Raises:
        SpecError: A field is unknown, missing, or of another type; the message has its path.
    """
    csi = section.section("csi")
    driver, options = ("", {}) if csi is None else _take_csi(csi)
    source = section.section("source")
    uri, source_secret = ("", "") if source is None else _take_source(source)
    cache = section.section("cache")
    spec = SampleSetSpec(
        partitions=section.whole("partitions", least=1),
        uri=uri,
        source_secret=source_secret,
        secret=_take_reference(section, "secretRef"),
        no_sync=section.flag("noSync"),
        driver=driver,
        options=options,
        levels=() if cache is None else _take_levels(cache),
        for_kubernetes=tuple(name for name in ("nodeAffinity", "tolerations") if section.has(name)),
        document=section.fields,
    )
    section.ignore("nodeAffinity", "tolerations")
    section.end()
    return spec


def _take_csi(section: Section) -> tuple[str, dict[str, OptionValue]]:
    driver = section.text("driver", "juicefs")
    if driver != "juicefs":
        raise SpecError(f"{section.at('driver')}: {driver!r:.60} is not known; the one that there is is juicefs")
    options = take_options(section.section("juiceFSMountOptions"))
    section.end()
    return driver, options


def _take_source(section: Section) -> tuple[str, str]:
    uri, secret = section.text("uri"), _take_reference(section, "secretRef")
    section.end()
    return uri, secret


def _take_reference(section: Section, name: str) -> str:
    reference = section.section(name)
    if reference is None:
        return ""
    found = reference.name("name")
    reference.ignore("namespace")
    reference.end()
    return found


def _take_levels(section: Section) -> tuple[Level, ...]:
    levels = tuple(_take_level(level) for level in section.sections("levels"))
    section.end()
    return levels


def _take_level(section: Section) -> Level:
    medium = section.text("mediumType")
    if medium not in MEDIA:
        section.wrong("mediumType", f"one of {', '.join(MEDIA)}")
    level = Level(
        medium=medium,
        path=section.text("path", ""),
        cache_mib=section.whole("cacheSize", least=1, unit="MiB") if section.has("cacheSize") else None,
    )
    section.ignore("cacheSize")
    section.end()
    return level
