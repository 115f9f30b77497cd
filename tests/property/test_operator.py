"""Whatever users do, and in whatever order it is seen: the operator comes to an end, makes nothing twice, and leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prefeed.kubernetes.nodes import MODE, NODE, POD
from prefeed.kubernetes.operator.groups import Key
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import REF, Operator, active, end, node_mode, now, phases, pod
from unit.sampleset.documents import sample_job

NAMES = ("a", "b", "c")
TYPES = ("warmup", "clear", "sync")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from([POD, NODE]), st.integers(1, 3)),
        st.tuples(st.just("job"), st.sampled_from(NAMES), st.sampled_from(TYPES), st.booleans()),
        st.tuples(st.just("options"), st.sampled_from(NAMES), st.integers(1, 3)),
        st.tuples(st.just("drop"), st.sampled_from(NAMES)),
        st.tuples(st.just("drop set")),
        st.tuples(st.just("ready"), st.integers(0, 3)),
        st.tuples(st.just("end"), st.sampled_from(["Complete", "Failed"])),
        st.tuples(st.just("pod"), st.sampled_from(["p", "q"])),
        st.tuples(st.just("gone"), st.sampled_from(["p", "q"])),
        st.tuples(st.just("another")),  # the operator is replaced by one that knows nothing
        st.tuples(st.just("carry")),  # a piece of work, of what it has seen before
    ),
    max_size=25,
)


class World:
    """A cluster, and an operator that sees it now and then."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.operator = Operator(self.cluster)
        self.ended: dict[str, str] = {}

    def do(self, step: tuple[Any, ...]) -> None:
        self._by_users(step)
        self._by_others(step)
        self.check()

    def _by_users(self, step: tuple[Any, ...]) -> None:
        cluster = self.cluster
        match step:
            case ("set", mode, partitions):
                if "imagenet" in cluster.of("SampleSet"):
                    change = {"metadata": {"annotations": {MODE: mode}}, "spec": {"partitions": partitions}}
                    cluster.change("SampleSet", "imagenet", change)
                else:
                    cluster.add(node_mode(partitions, {MODE: mode}))
            case ("job", name, kind, terminate) if name not in cluster.of("SampleJob"):
                target = {"syncOptions": {"destination": "s3://b/c"}} if kind == "sync" else {}
                cluster.add(sample_job(name, type=kind, terminate=terminate, **target, **REF))
            case ("options", name, threads) if (
                cluster.of("SampleJob").get(name, {}).get("spec", {}).get("type") == "warmup"
            ):
                if phases(cluster)[name] != "Succeeded":  # the API server refuses it
                    cluster.change("SampleJob", name, {"spec": {"warmupOptions": {"threads": threads}}})
            case ("drop", name) if name in cluster.of("SampleJob"):
                cluster.remove("SampleJob", name)
            case ("drop set",) if "imagenet" in cluster.of("SampleSet"):
                cluster.remove("SampleSet", "imagenet")

    def _by_others(self, step: tuple[Any, ...]) -> None:
        cluster = self.cluster
        match step:
            case ("ready", number) if made := cluster.of("StatefulSet").get("imagenet-runtime"):
                ready = min(number, made["spec"]["replicas"])
                cluster.change("StatefulSet", "imagenet-runtime", {"status": {"readyReplicas": ready}})
            case ("end", kind) if running := active(cluster):
                end(cluster, running[0], kind)
            case ("pod", name) if name not in cluster.of("Pod"):
                cluster.add(pod(name))
            case ("gone", name) if name in cluster.of("Pod"):
                cluster.remove("Pod", name)
            case ("another",):
                self.operator = Operator(cluster)
            case ("carry",):
                now(self.operator.carrier.see_all([""]))
                now(self.operator.carrier.carry(Key("default", "imagenet")))

    def check(self) -> None:
        """Hold now, and always: one job at a time, one object of a kind, and what has succeeded stays so."""
        assert len(active(self.cluster)) <= 1
        owners = Counter(
            (made["kind"], owner["uid"])
            for kind in ("StatefulSet", "Service", "ConfigMap")
            for made in self.cluster.of(kind).values()
            for owner in made["metadata"]["ownerReferences"]
        )
        assert all(count == 1 for count in owners.values())
        uids = {each["metadata"]["uid"]: name for name, each in self.cluster.of("SampleJob").items()}
        for uid, phase in self.ended.items():
            assert uid not in uids or phases(self.cluster)[uids[uid]] == phase
        self.ended |= {
            each["metadata"]["uid"]: "Succeeded"
            for each in self.cluster.of("SampleJob").values()
            if each.get("status", {}).get("phase") == "Succeeded"
        }


def requests(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Return the requests that change something; an event of a pod that is told again is refused."""
    return [each for each in cluster.asked if each[1] != "events"]


@given(STEPS)
def test_any_sequence_converges_once_and_leaves_nothing(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    for step in steps:
        world.do(step)
    world.operator.settle()
    world.check()

    asked, changed = requests(world.cluster), len(world.cluster.log)
    Operator(world.cluster).settle()
    assert requests(world.cluster) == asked  # another one finds nothing to do
    assert len(world.cluster.log) == changed
    told = world.cluster.of("SampleJob").values()
    assert all(each["status"]["conditions"][0]["message"] for each in told)

    for kind in ("Pod", "SampleJob", "SampleSet"):
        for name in list(world.cluster.of(kind)):
            world.cluster.remove(kind, name)
    world.operator.settle()
    left = {plural for plural, _, _ in world.cluster.objects} - {"events", "secrets"}
    assert left == set()
