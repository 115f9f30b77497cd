from __future__ import annotations

import pytest
import yaml

from prefeed.errors import SpecError
from prefeed.sampleset.spec import Level, SampleSetSpec, parse_spec
from unit.sampleset.documents import apply, sample_set

EVERY_FIELD = """
partitions: 2
source:
  uri: bos://paddleflow-public.hkg.bcebos.com/imagenet
  secretRef: {name: imagenet-source}
secretRef: {name: imagenet, namespace: paddle-system}
noSync: true
csi:
  driver: juicefs
  juiceFSMountOptions:
    metrics: 127.0.0.1:9567
    attr-cache: 1.5
    entry-cache: 1
    dir-entry-cache: 1
    enable-xattr: true
    get-timeout: 60
    put-timeout: 60
    io-retries: 30
    max-uploads: 20
    buffer-size: 300
    prefetch: 1
    writeback: false
    cache-dir: /dev/shm/imagenet
    cache-size: 1024
    free-space-ratio: 0.1
    cache-partial-only: false
    open-cache: 0
    sub-dir: train
cache:
  levels:
  - {mediumType: MEM, path: /dev/shm/imagenet, cacheSize: 1024}
  - {mediumType: SSD, path: /mnt/disk/imagenet}
nodeAffinity: {required: {nodeSelectorTerms: []}}
tolerations: [{key: gpu, operator: Exists}]
"""


def parse(text: str) -> SampleSetSpec:
    return parse_spec(yaml.safe_load(text))


def test_every_field_of_the_original() -> None:
    spec = parse(EVERY_FIELD)
    assert (spec.partitions, spec.no_sync, spec.csi.driver) == (2, True, "juicefs")
    assert spec.uri == "bos://paddleflow-public.hkg.bcebos.com/imagenet"
    assert (spec.source_secret, spec.secret) == ("imagenet-source", "imagenet")
    assert len(spec.options.given()) == 18
    assert spec.levels == (
        Level(medium="MEM", path="/dev/shm/imagenet", cache_mib=1024),
        Level(medium="SSD", path="/mnt/disk/imagenet", cache_mib=None),
    )
    assert spec.for_kubernetes == ("nodeAffinity", "tolerations")


def test_the_least_that_is_a_spec() -> None:
    spec = parse("partitions: 1")
    assert (spec.uri, spec.secret, spec.no_sync, spec.levels, spec.options.given()) == ("", "", False, (), {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", r"spec\.partitions is missing"),
        ("partitions: 0", r"spec\.partitions must be a whole number of at least 1, not 0"),
        ("{partitions: 1, nosync: true}", r"spec\.nosync is not known\. Did you mean noSync\?"),
        ("{partitions: 1, source: {url: s3://a}}", r"spec\.source\.uri is missing"),
        ("{partitions: 1, source: {uri: s3://a, secret: b}}", r"spec\.source\.secret is not known.*secretRef"),
        ("{partitions: 1, secretRef: a}", r"spec\.secretRef must have fields; it is a text"),
        ("{partitions: 1, secretRef: {name: ../a}}", r"spec\.secretRef\.name must be made of"),
        ("{partitions: 1, csi: {driver: bosfs}}", r"spec\.csi\.driver must be juicefs, not 'bosfs'"),
        (
            "{partitions: 1, csi: {juiceFSMountOptions: {cachesize: 1}}}",
            r"spec\.csi\.juiceFSMountOptions\.cachesize is not known\. Did you mean cache-size\?",
        ),
        ("{partitions: 1, cache: {levels: [{path: /a}]}}", r"spec\.cache\.levels\[0\]\.mediumType is missing"),
        (
            "{partitions: 1, cache: {levels: [{mediumType: NVME}]}}",
            r"spec\.cache\.levels\[0\]\.mediumType must be one of MEM, SSD, HDD, not 'NVME'",
        ),
        (
            "{partitions: 1, cache: {levels: [{mediumType: MEM, cacheSize: 1Gi}]}}",
            r"spec\.cache\.levels\[0\]\.cacheSize must be a whole number of MiB, at least 1, not '1Gi'",
        ),
    ],
)
def test_what_is_not_understood_is_said_with_its_path(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "SampleJob"}, "choose one of SampleSet, Secret; jobs are applied with `prefeed job apply`"),
        ({"kind": "Sampleset"}, "kind: 'Sampleset' is not supported; choose one of SampleSet, Secret"),
        ({"apiVersion": "v1"}, r"apiVersion: a SampleSet has batch\.paddlepaddle\.org/v1alpha1, not 'v1'"),
        ({"metadata": None}, "metadata is missing"),
        ({"metadata": {"name": "../../etc"}}, r"metadata\.name must be made of lower-case letters"),
        ({"metadata": {"name": "a", "naspace": "b"}}, r"metadata\.naspace is not known"),
        ({"spec": None}, "spec is missing"),
        ({"other": 1}, "other is not known"),
    ],
)
def test_what_stands_around_a_spec(change: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        apply({**sample_set(source={"uri": "/data"}), **change})
