"""TensorFlow: its reader of our TFRecord files, and its pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frameworks.running import NUM_FILES, assert_recipe_is_served, run_program
from prefeed import datasets
from prefeed.config import current
from prefeed.packing.driver import PackRequest, pack

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: make test-frameworks", exc_type=ImportError)
pytest.importorskip("google_crc32c", reason="google-crc32c is not installed: pip install 'prefeed[pack]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks(reason="TensorFlow keeps threads and descriptors of its own to the end of the process"),
]

SIZES = (0, 1, 127, 128, 5000, 100_000)


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    datasets._readers.close()


def make_files(root: Path) -> dict[str, bytes]:
    files = {f"größe/{i:03}.bin": bytes([i]) * SIZES[i % len(SIZES)] for i in range(30)}
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return files


def parsed(record: Any) -> tuple[str, bytes]:
    wanted = {name: tf.io.FixedLenFeature([], tf.string) for name in ("path", "data")}
    features = tf.io.parse_single_example(record, wanted)
    return features["path"].numpy().decode(), features["data"].numpy()


def test_tensorflow_reads_ours(tmp_path: Path) -> None:
    files = make_files(tmp_path / "src")
    request = PackRequest(
        source=str(tmp_path / "src"), out=str(tmp_path / "out"), layout="tfrecord", shard_bytes=200_000, seed=1
    )
    pack(request, current())
    shards = sorted(str(file) for file in (tmp_path / "out").glob("*.tfrecord"))
    assert len(shards) > 1
    found = [parsed(record) for record in tf.data.TFRecordDataset(shards)]
    assert dict(found) == files
    assert len(found) == len(files)


def test_the_recipe_is_served(tmp_path: Path) -> None:
    assert_recipe_is_served("tensorflow", tmp_path)


@pytest.mark.parametrize("kind", ["function", "generator"])
def test_python_functions_read_from_the_cache(tmp_path: Path, kind: str) -> None:
    facts = run_program("tensorflow_epochs.py", tmp_path, kind)
    assert (facts["served"], facts["bypassed"]) == (["tf.numpy_function, tf.py_function"], {})
    assert facts["hits"] + facts["late_or_missed"] == 3 * NUM_FILES
    assert facts["hits"] >= 2 * NUM_FILES


def test_readers_in_cpp_are_left_alone(tmp_path: Path) -> None:
    facts = run_program("tensorflow_epochs.py", tmp_path, "cpp")
    assert (facts["served"], facts["hits"]) == ([], 0)
