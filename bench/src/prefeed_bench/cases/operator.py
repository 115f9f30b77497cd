"""The operator with many sets and jobs, against an API server in memory: what it asks for, and what that costs. Nothing waits in it."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from prefeed.kubernetes.nodes import MODE, NODE, runtime_name
from prefeed.kubernetes.operator.carrying import Carrier
from prefeed.kubernetes.operator.groups import Choices, Key
from prefeed.kubernetes.operator.world import World
from prefeed_bench.cluster import Cluster
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate

_SETS: Final = 1000
_QUICK_SETS: Final = 20
_NAMESPACE: Final = "training"
_API_VERSION: Final = "batch.paddlepaddle.org/v1alpha1"
_MOST_ROUNDS: Final = 20
_MIB: Final = 1024**2
_WRITES: Final = ("create", "apply", "patch", "delete")
_RESIDENT: Final = """
import prefeed.kubernetes.operator.service
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""

T = TypeVar("T")


def run(options: Options) -> BenchResult:
    """Measure requests, processor time and memory: sets that become ready, a job for each of them, one change, a restart."""
    num_sets = _QUICK_SETS if options.quick else _SETS
    runs = alternate({"operator": partial(_measure, num_sets)}, runs=options.runs, say=options.say)
    samples = Samples()
    for figures in runs["operator"]:
        samples.add(**figures)
    return BenchResult(
        name="operator",
        fields={"sets": num_sets, "jobs": num_sets, **samples.medians()},
        spread=samples.spread(),
        runs=runs,
        notes=(
            "requests: all but the lists of whole kinds, events among them; _per_set from an applied set to Ready, _per_job from an applied job to Succeeded",
            "processor seconds: the operator's own, without those of the API server in memory, which does not check schemas",
            "objects_mib: of what it knows, by tracemalloc; program_mib: resident memory of the program before it knows anything",
        ),
    )


class _Operator:
    """An operator that knows nothing yet; what the API server in memory does is not counted as its time."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = _Counted(cluster)
        self._now = datetime(2026, 11, 27, tzinfo=UTC)
        self._lists = 0
        self.world = World()
        self.carrier = Carrier(self._api, self.world, Choices(image="prefeed:1"), self._clock)

    def _clock(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    def settle(self) -> dict[str, float]:
        """Look at everything until nothing changes; return what that took."""
        self._api.asked.clear()
        self._api.seconds, begun, lists = 0.0, time.process_time(), 0
        for _ in range(_MOST_ROUNDS):
            before = self._api.num_writes
            keys = self._see_all()
            lists += self._lists
            for key in sorted(keys):
                _now(self.carrier.carry(key))
            if self._api.num_writes == before:
                break
        else:
            raise BenchFailedError(f"the operator has not come to an end in {_MOST_ROUNDS} rounds")
        return {
            "writes": self._api.num_writes,
            "requests": self._api.asked.total() - lists,
            "seconds": time.process_time() - begun - self._api.seconds,
        }

    def carry(self, name: str) -> dict[str, float]:
        """Work at one set, as after a change; return how many requests that took."""
        self._api.asked.clear()
        self._see_all()
        _now(self.carrier.carry(Key(_NAMESPACE, name)))
        return {"requests": self._api.asked.total() - self._lists, "lists": self._lists}

    def _see_all(self) -> set[Key]:
        """Look at everything, which is counted apart: it takes as many requests as there are kinds."""
        before = self._api.asked.total()
        keys = _now(self.carrier.see_all([""]))
        self._lists = self._api.asked.total() - before
        return keys


class _Counted:
    """Counts requests, and the processor time of who answers them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.asked: Counter[str] = Counter()
        self.seconds = 0.0

    @property
    def num_writes(self) -> int:
        return sum(self.asked[verb] for verb in _WRITES)

    def __getattr__(self, verb: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            self.asked[verb] += 1
            begun = time.process_time()
            try:
                return await getattr(self._cluster, verb)(*arguments, **named)
            finally:
                self.seconds += time.process_time() - begun

        return ask


def _measure(num_sets: int) -> dict[str, float]:
    cluster = Cluster()
    names = [f"set-{number:04}" for number in range(num_sets)]
    operator = _Operator(cluster)
    for name in names:
        cluster.add(_set(name))
    made = operator.settle()
    for name in names:
        change = {"status": {"replicas": 2, "readyReplicas": 2}}
        cluster.change("StatefulSet", runtime_name(name), change, namespace=_NAMESPACE)
    served = operator.settle()
    for name in names:
        cluster.add(_job(name))
    started = operator.settle()
    for name in list(cluster.of("Job", _NAMESPACE)):
        ended = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        cluster.change("Job", name, ended, namespace=_NAMESPACE)
    done = operator.settle()
    _require_ends(cluster)
    quiet = operator.carry(names[0])
    cluster.change("SampleSet", names[0], {"spec": {"partitions": 3}}, namespace=_NAMESPACE)
    changed = operator.carry(names[0])
    restarted = _Operator(cluster).settle()
    return {
        "requests_per_set": (made["requests"] + served["requests"]) / num_sets,
        "requests_per_job": (started["requests"] + done["requests"]) / num_sets,
        "seconds_of_sets": made["seconds"] + served["seconds"],
        "seconds_of_jobs": started["seconds"] + done["seconds"],
        "requests_of_a_change": changed["requests"],
        "requests_of_no_change": quiet["requests"],
        "requests_of_a_look_at_all": quiet["lists"],
        "writes_of_a_restart": restarted["writes"],
        "seconds_of_a_restart": restarted["seconds"],
        "objects_mib": _objects_mib(cluster),
        "program_mib": _program_mib(),
    }


def _require_ends(cluster: Cluster) -> None:
    phases = {
        each["status"]["phase"] for kind in ("SampleSet", "SampleJob") for each in cluster.of(kind, _NAMESPACE).values()
    }
    if phases != {"Ready", "Succeeded"}:
        raise BenchFailedError(f"sets and jobs must end Ready and Succeeded, and are {', '.join(sorted(phases))}")


def _objects_mib(cluster: Cluster) -> float:
    operator = _Operator(cluster)
    tracemalloc.start()
    try:
        _now(operator.carrier.see_all([""]))
        return tracemalloc.get_traced_memory()[0] / _MIB
    finally:
        tracemalloc.stop()


def _program_mib() -> float:
    result = subprocess.run([sys.executable, "-c", _RESIDENT], capture_output=True, text=True, check=True)
    return int(result.stdout) / 1024


def _set(name: str) -> dict[str, Any]:
    spec = {
        "partitions": 2,
        "source": {"uri": f"s3://photos/{name}"},
        "cache": {"levels": [{"mediumType": "MEM", "path": "/dev/shm", "cacheSize": 4096}]},
    }
    metadata = {"name": name, "namespace": _NAMESPACE, "annotations": {MODE: NODE}}
    return {"apiVersion": _API_VERSION, "kind": "SampleSet", "metadata": metadata, "spec": spec}


def _job(name: str) -> dict[str, Any]:
    spec = {"type": "warmup", "sampleSetRef": {"name": name}}
    metadata = {"name": f"warm-{name}", "namespace": _NAMESPACE}
    return {"apiVersion": _API_VERSION, "kind": "SampleJob", "metadata": metadata, "spec": spec}


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")
