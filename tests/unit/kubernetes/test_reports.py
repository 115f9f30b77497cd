"""How much of a set is cached: from what its servers say to the columns of `kubectl get`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefeed.kubernetes.nodes import MODE, MOST_NODES
from prefeed.kubernetes.operator.groups import Key
from prefeed.kubernetes.operator.reports import is_complete, servers_of
from prefeed.kubernetes.sizes import Report, parse_report
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import KEY, Operator, node_mode, now, pod, said, serve, status_of
from unit.sampleset.documents import sample_set

GIB = 1024**3
SOURCE = {"uri": "s3://photos/imagenet"}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


class Reporting(Operator):
    """An operator whose servers have said something."""

    def __init__(self, cluster: Cluster, **reports: Report) -> None:
        super().__init__(cluster)
        self.carrier._reports = lambda key: reports if key == KEY else {}


def report(cached: int, total: int | None = 4_509_715_661, **changed: Any) -> Report:
    sizes = {"disk_size": 16 * GIB, "disk_used": cached, "disk_avail": 16 * GIB - cached}
    return Report(**{"total_size": total, "total_files": 128_660, "cached_size": cached, **sizes, **changed})


def sizes_of(cluster: Cluster) -> dict[str, str]:
    return dict(status_of(cluster)["cacheStatus"])


def test_the_columns_of_the_original_are_filled(cluster: Cluster) -> None:
    """The numbers of servers are added; what is cached is never more than there is."""
    cluster.add(node_mode(partitions=2))
    Reporting(cluster).settle()
    serve(cluster, 2)
    Reporting(cluster, a=report(80), b=report(0)).settle()

    assert sizes_of(cluster) == {
        "totalSize": "4.2 GiB",
        "totalFiles": "128660",
        "cachedSize": "80 B",
        "diskSize": "32 GiB",
        "diskUsed": "80 B",
        "diskAvail": "32 GiB",
        "diskUsageRate": "0.0%",
        "errorMassage": "",
    }
    Reporting(cluster, a=report(3 * GIB), b=report(3 * GIB)).settle()
    assert (sizes_of(cluster)["cachedSize"], sizes_of(cluster)["diskUsageRate"]) == ("4.2 GiB", "18.8%")
    assert is_complete([report(3 * GIB), report(3 * GIB)])
    assert not is_complete([report(0), report(0)])
    assert not is_complete([report(0, None)])


def test_another_operator_leaves_the_sizes_until_it_has_asked(cluster: Cluster) -> None:
    cluster.add(node_mode())
    Reporting(cluster).settle()
    serve(cluster)
    Reporting(cluster, a=report(GIB)).settle()
    before = sizes_of(cluster)

    Reporting(cluster).settle()

    assert sizes_of(cluster) == before


def test_without_servers_only_the_size_of_the_data_is_known(cluster: Cluster) -> None:
    cluster.add(node_mode())
    Reporting(cluster).settle()
    serve(cluster)
    Reporting(cluster, a=report(GIB)).settle()
    serve(cluster, 0)
    Reporting(cluster, a=report(GIB)).settle()

    found = sizes_of(cluster)
    assert {name for name, value in found.items() if value} == {"totalSize", "totalFiles"}


def test_a_source_that_refuses_is_said_by_the_set(cluster: Cluster) -> None:
    cluster.add(node_mode(partitions=2))
    Reporting(cluster).settle()
    serve(cluster, 2)
    refused = report(0, None, error_message="s3://photos: access denied: check the keys of the secret")
    Reporting(cluster, a=refused, b=refused).settle()

    assert said(cluster)["Listed"] == ("SourceRefused", refused.error_message)
    assert sizes_of(cluster)["errorMassage"] == refused.error_message
    assert [each["type"] for each in cluster.of("Event").values() if each["reason"] == "SourceRefused"] == ["Warning"]

    Reporting(cluster, a=report(0), b=report(0)).settle()
    assert "Listed" not in said(cluster)


# ---------------------------------------------------------------- who is asked


def servers(cluster: Cluster) -> dict[str, str]:
    operator = Operator(cluster)
    now(operator.carrier.see_all([""]))
    return servers_of(operator.carrier._group(Key("default", "imagenet")))


def test_in_mode_node_servers_are_asked_by_the_names_of_their_service(cluster: Cluster) -> None:
    cluster.add(node_mode(partitions=2))
    Operator(cluster).settle()
    assert servers(cluster) == {}

    serve(cluster, 1)

    assert servers(cluster) == {
        f"imagenet-runtime-{index}": f"http://imagenet-runtime-{index}.imagenet-runtime.default.svc:7716/cacheStatus/cacheInfo.json"
        for index in range(2)
    }

    cluster.change("SampleSet", "imagenet", {"spec": {"partitions": 20_000}})  # which is refused
    assert len(servers(cluster)) == MOST_NODES


def test_in_mode_pod_pods_that_run_are_asked_by_their_addresses(cluster: Cluster) -> None:
    """One with the address of its node may not have its port; the first one has no address yet."""
    cluster.add(sample_set(source=SOURCE))
    cluster.add(pod("a"))
    cluster.add(pod("b", podIP="10.0.0.2", hostIP="10.1.0.1"))
    cluster.add(pod("c", podIP="fd00::3", hostIP="10.1.0.1"))
    cluster.add(pod("d", podIP="10.1.0.1", hostIP="10.1.0.1"))
    cluster.add(pod("e", podIP="10.0.0.5", phase="Succeeded"))

    assert servers(cluster) == {
        "b": "http://10.0.0.2:7716/cacheStatus/cacheInfo.json",
        "c": "http://[fd00::3]:7716/cacheStatus/cacheInfo.json",
    }


def test_of_a_set_that_goes_or_is_refused_none_is_asked(cluster: Cluster) -> None:
    document = node_mode(annotations={MODE: "both"})
    cluster.add(document)
    cluster.add(pod("b", podIP="10.0.0.2"))
    assert servers(cluster) == {}

    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {MODE: "pod"}}})
    Operator(cluster).settle()
    assert list(servers(cluster)) == ["b"]
    cluster.remove("SampleSet", "imagenet")
    assert servers(cluster) == {}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"name": "another", "cacheStatus": {}},
        {"name": "imagenet", "cacheStatus": {"totalSize": "much"}},
        [],
    ],
)
def test_what_is_no_answer_is_passed_over(answer: Any) -> None:
    assert parse_report("imagenet", json.dumps(answer).encode()) is None
    assert parse_report("imagenet", b"") is None


@pytest.mark.parametrize("number", ["-1", "1" + 400 * "0", "1e3000"])
def test_a_number_that_is_no_size_is_no_answer(number: str) -> None:
    """A server may be anybody's: what it says must not keep the operator from its work."""
    sizes = ", ".join(f'"{name}": {number}' for name in ("diskSize", "diskUsed", "diskAvail", "cachedSize"))
    text = f'{{"name": "imagenet", "cacheStatus": {{"totalSize": 1, "totalFiles": 1, {sizes}}}}}'

    assert parse_report("imagenet", text.encode()) is None


def test_an_answer_without_end_is_no_answer() -> None:
    assert parse_report("imagenet", b'{"name": "imagenet", "more": ' + 60_000 * b"[") is None


def test_an_answer_is_that_of_the_set() -> None:
    sizes = {"totalSize": 10, "totalFiles": 2, "cachedSize": 5, "diskSize": 20, "diskUsed": 5, "diskAvail": 15}
    text = json.dumps({"name": "imagenet", "cacheStatus": {**sizes, "cachedFiles": 1, "diskUsageRate": 0.5}}).encode()

    found = parse_report("imagenet", text)

    assert found is not None
    assert (found.total_size, found.cached_size, found.disk_avail) == (10, 5, 15)
    assert parse_report("other", text) is None
