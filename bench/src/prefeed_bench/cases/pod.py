"""Trainings in pods with a cache, under the small kubelet, against the same trainings without pods.

``python -m prefeed_bench.cases.pod JOB`` is one training: ``JOB`` is a ``PodJob`` as JSON. It reads raw bytes in an order of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from prefeed.kubernetes.layout import SIDECAR
from prefeed.kubernetes.nodes import DIRECTORIES, IN_MEMORY, MODE, NODE, node_set, stateful_set, with_node_cache
from prefeed.kubernetes.pods import LABEL, config_map
from prefeed.kubernetes.workloads import patched
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import THROUGH_THE_CACHE, statistics_of, temporary_home
from prefeed_bench.kubelet import Document, Pod, pod_running
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import command_of, main_of_child, run_child
from prefeed_bench.s3_origin import Bucket, photo_bucket

_LATENCY_SECONDS: Final = 0.003
_EPOCHS: Final = 4
_SET: Final = "photos"
_NAMESPACE: Final = "bench"
_LEAST_MEMORY_MIB: Final = 256
_MOST_WAITING_SECONDS: Final = 300.0
_SUMS: Final = 1 << 64


# ---------------------------------------------------------------- one training


class PodJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one training has to read.

    Attributes:
        url: The origin, or the set.
        rank: Of this training.
        meeting: A directory of the machine in which trainings wait for each other before each epoch.
        trainings: How many there are.
    """

    url: str
    rank: int
    meeting: str
    trainings: int


class PodEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """What one training read in one epoch.

    Attributes:
        seconds: From ``iter(loader)`` to the last batch.
        cpu_seconds: Processor time of the training and its workers.
        checksum: Of all batches in their order.
    """

    seconds: float
    cpu_seconds: float
    checksum: int


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What one training read.

    Attributes:
        epochs: In their order.
    """

    epochs: list[PodEpoch]


def _train(job: PodJob) -> Trained:
    from torch import Generator

    from prefeed import DataLoader
    from prefeed.datasets import Objects

    generator = Generator().manual_seed(job.rank)
    dataset = Objects(job.url, pattern="**/*.jpg")
    loader: Any = DataLoader(
        dataset, batch_size=64, shuffle=True, generator=generator, num_workers=2, collate_fn=list
    )  # fmt: skip
    return Trained(epochs=[_read(loader, job, number) for number in range(_EPOCHS)])


def _read(loader: Any, job: PodJob, number: int) -> PodEpoch:
    _meet(Path(job.meeting), job, number)
    checksum = 0
    started, cpu_before = time.perf_counter(), sum(os.times()[:4])
    for batch in loader:
        for data in batch:
            checksum = (checksum * 31 + xxhash.xxh3_64_intdigest(data)) % _SUMS
    seconds = time.perf_counter() - started
    return PodEpoch(seconds=seconds, cpu_seconds=sum(os.times()[:4]) - cpu_before, checksum=checksum)


def _meet(directory: Path, job: PodJob, number: int) -> None:
    """Wait until all trainings are about to begin an epoch.

    Raises:
        BenchFailedError: One of them does not come.
    """
    (directory / f"{number}-{job.rank}").touch()
    deadline = time.monotonic() + _MOST_WAITING_SECONDS
    while len(list(directory.glob(f"{number}-*"))) < job.trainings:
        if time.monotonic() > deadline:
            raise BenchFailedError(f"another training did not begin epoch {number + 1}")
        time.sleep(0.005)


# ---------------------------------------------------------------- with and without pods


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What trainings that ran at the same time read.

    Attributes:
        trained: Of each training.
        requests_per_object: That one node made to the origin.
    """

    trained: list[Trained]
    requests_per_object: float

    def seconds(self, number: int) -> float:
        """Return how long an epoch of the slowest took."""
        return max(each.epochs[number].seconds for each in self.trained)

    def cpu_seconds(self, number: int) -> float:
        """Return the processor time of an epoch, of all together."""
        return sum(each.epochs[number].cpu_seconds for each in self.trained)


def run(options: Options) -> BenchResult:
    """Measure epochs of one training in a pod of mode pod and of two in pods of mode node, and the same without pods."""
    photos = options.photos()
    with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
        variants: dict[str, Callable[[], Run]] = {
            "plain": partial(_without_pods, bucket, photos, 1),
            "pod": partial(_mode_pod, bucket, photos),
            "plain_two": partial(_without_pods, bucket, photos, 2),
            "node": partial(_mode_node, bucket, photos),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        samples.add(**figures({name: each[number] for name, each in runs.items()}))
    return samples.result(
        "pod",
        runs,
        "pod: one training in a pod with its sidecar; node: two trainings in pods of a node, each with an order of its own, beside its server",
        "plain, plain_two: the same trainings without pods, with one server",
        f"the origin is an S3 endpoint with {_LATENCY_SECONDS * 1000:.0f} ms; raw bytes, two workers; later: mean of epochs 2 to {_EPOCHS}",
        "*_over_plain: the worse of first and later epochs; *_cpu_over_plain: of the processor time of the trainings",
        objects=photos.num_photos,
    )


def figures(found: Mapping[str, Run]) -> dict[str, float]:
    """Return the figures of one run of each variant.

    Raises:
        BenchFailedError: With and without pods they read other batches.
    """
    result: dict[str, float] = {}
    for name, plain in (("pod", "plain"), ("node", "plain_two")):
        ours, theirs = found[name], found[plain]
        if _checksums(ours) != _checksums(theirs):
            raise BenchFailedError(f"{name}: the variants saw different batches")
        for measure, of in (("over_plain", Run.seconds), ("cpu_over_plain", Run.cpu_seconds)):
            first = of(ours, 0) / of(theirs, 0)
            later = _sum_of_later(ours, of) / _sum_of_later(theirs, of)
            result |= {
                f"{name}_{measure}": max(first, later),
                f"{name}_first_{measure}": first,
                f"{name}_later_{measure}": later,
            }
        result[f"{name}_requests_per_object"] = ours.requests_per_object
        result[f"{plain}_requests_per_object"] = theirs.requests_per_object
    return result


def _sum_of_later(run: Run, of: Callable[[Run, int], float]) -> float:
    return sum(of(run, number) for number in range(1, len(run.trained[0].epochs)))


def _checksums(run: Run) -> list[list[int]]:
    return [[epoch.checksum for epoch in each.epochs] for each in run.trained]


def _without_pods(bucket: Bucket, photos: PhotoFolder, trainings: int) -> Run:
    with (
        temporary_home(_memory_mib(photos) * 1024**2) as home,
        _jobs(bucket.url, trainings) as jobs,
        ThreadPoolExecutor(trainings) as pool,
    ):
        begun = [
            pool.submit(run_child, __name__, job, Trained, name=f"training {job.rank}", env=home.env) for job in jobs
        ]
        trained = [each.result() for each in begun]
        requests = statistics_of(home).origin_requests
    return Run(trained=trained, requests_per_object=requests / photos.num_photos)


def _mode_pod(bucket: Bucket, photos: PhotoFolder) -> Run:
    with _jobs(f"sampleset://{_SET}", 1) as (job,), _directory() as root:
        documents, _ = patched([_pod(job), *_documents(bucket, photos)])
        with pod_running(documents, _name(job), root / "pod") as pod:
            return _trained([pod], pod, photos)


def _mode_node(bucket: Bucket, photos: PhotoFolder) -> Run:
    """Run a server and two trainings in pods of one node."""
    with _jobs(f"sampleset://{_SET}", 2) as jobs, ExitStack() as stack:
        directory, memory = stack.enter_context(_directory()), stack.enter_context(_directory("/dev/shm"))
        sample_set, keys = _documents(bucket, photos)
        sample_set["metadata"]["annotations"] = {MODE: NODE}
        given = node_set(sample_set, image="prefeed")
        server = {"kind": "Pod", **stateful_set(given)["spec"]["template"]}
        server["metadata"] = {**server["metadata"], "name": "server"}
        pods = [with_node_cache(_pod(job), given) for job in jobs]
        documents = [server, *pods, config_map(given.found), keys]
        on_node = {DIRECTORIES: directory / "node", IN_MEMORY: memory / "node"}
        started, *trainings = (
            stack.enter_context(pod_running(documents, name, directory / name, on_node))
            for name in ("server", *map(_name, jobs))
        )
        return _trained(trainings, started, photos)


def _trained(pods: Sequence[Pod], server: Pod, photos: PhotoFolder) -> Run:
    """Train in pods at the same time; then end their server.

    Raises:
        BenchFailedError: A training failed.
    """
    for pod in pods:
        pod.begin("train")
    trained = []
    for pod in pods:
        status, text = pod.finish("train")
        if status:
            raise BenchFailedError(f"a training in a pod ended with status {status}:\n{text}")
        trained.append(msgspec.json.decode(text.splitlines()[-1], type=Trained))
    status, text = server.execute(SIDECAR, "prefeed", "stats", "--home", f"sampleset://{_SET}", "--json")
    if status:
        raise BenchFailedError(f"prefeed stats ended with status {status}:\n{text}")
    requests = msgspec.json.decode(text.splitlines()[-1])["origin_requests"]
    server.stop(SIDECAR)
    return Run(trained=trained, requests_per_object=requests / photos.num_photos)


# ---------------------------------------------------------------- documents


def _documents(bucket: Bucket, photos: PhotoFolder) -> list[Document]:
    """Return the set and the Secret with its keys."""
    keys = {"access-key": bucket.env["AWS_ACCESS_KEY_ID"], "secret-key": bucket.env["AWS_SECRET_ACCESS_KEY"]}
    levels = [{"mediumType": "MEM", "path": "/dev/shm/photos", "cacheSize": _memory_mib(photos)}]
    return [
        {
            "apiVersion": "batch.paddlepaddle.org/v1alpha1",
            "kind": "SampleSet",
            "metadata": {"name": _SET, "namespace": _NAMESPACE},
            "spec": {
                "partitions": 1,
                "source": {"uri": bucket.url, "secretRef": {"name": "keys"}},
                "cache": {"levels": levels},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "keys", "namespace": _NAMESPACE},
            "stringData": {**keys, "endpoint": bucket.endpoint},
        },
    ]


def _pod(job: PodJob) -> Document:
    container = {
        "name": "train",
        "image": "train",
        "command": command_of(__name__, job),
        "env": [{"name": name, "value": value} for name, value in THROUGH_THE_CACHE.items()],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _name(job), "namespace": _NAMESPACE, "labels": {LABEL: _SET}},
        "spec": {"containers": [container]},
    }


def _name(job: PodJob) -> str:
    return f"train-{job.rank}"


@contextmanager
def _jobs(url: str, trainings: int) -> Iterator[list[PodJob]]:
    with _directory() as meeting:
        yield [PodJob(url=url, rank=rank, meeting=str(meeting), trainings=trainings) for rank in range(trainings)]


@contextmanager
def _directory(parent: str | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-", dir=parent) as made:
        yield Path(made)


def _memory_mib(photos: PhotoFolder) -> int:
    return max(_LEAST_MEMORY_MIB, 2 * photos.total_bytes // 1024**2)


if __name__ == "__main__":
    main_of_child(PodJob, _train)
