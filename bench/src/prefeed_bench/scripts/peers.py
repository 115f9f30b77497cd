"""A program that reads pictures from an object store as bytes, through one of several libraries; with no model.

Endpoint, region and keys are in the environment, as the AWS command line reads them. It prints a line of JSON per
epoch: samples, bytes, seconds, and a checksum that no order changes. With ``--convert`` it writes the library's own
format to a directory, and prints how long that took. Libraries are imported before workers are forked, clients
are made after, and workers stay between epochs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from torch.utils.data import DataLoader

BATCH: Final = 64


# ---------------------------------------------------------------- formats of their own


def write_litdata(pictures: Sequence[Path], to: Path, shard_bytes: int) -> None:
    """Write LitData's chunks."""
    import litdata

    litdata.optimize(
        fn=Path.read_bytes, inputs=pictures, output_dir=str(to), chunk_bytes=shard_bytes, num_workers=1, verbose=False
    )


def write_mds(pictures: Sequence[Path], to: Path, shard_bytes: int) -> None:
    """Write MosaicML's shards."""
    from streaming import MDSWriter

    with MDSWriter(out=str(to), columns={"jpg": "bytes"}, size_limit=shard_bytes) as out:
        for picture in pictures:
            out.write({"jpg": picture.read_bytes()})


def write_tars(pictures: Sequence[Path], to: Path, shard_bytes: int) -> None:
    """Write the tar files that WebDataset reads."""
    to.mkdir()
    with contextlib.ExitStack() as opened:
        tar: tarfile.TarFile | None = None
        number = 0
        for picture in pictures:
            if tar is None or tar.offset > shard_bytes:
                opened.close()
                tar = opened.enter_context(tarfile.open(to / f"{number:04}.tar", "w"))
                number += 1
            tar.add(picture, arcname=picture.name)


WRITERS: Final[dict[str, Callable[[Sequence[Path], Path, int], None]]] = {
    "litdata": write_litdata,
    "mds": write_mds,
    "webdataset": write_tars,
}


# ---------------------------------------------------------------- loaders


def plain(options: argparse.Namespace) -> Iterable[Any]:
    """Return torch's loader over a data set that asks the store for each object, with obstore."""
    return torchs(_Plain(options.bucket, options.names), options)


class _Plain:
    """Named objects of a bucket, one request each; each process opens connections of its own, after it was forked."""

    def __init__(self, bucket: str, paths: Sequence[str]) -> None:
        import obstore  # noqa: F401

        self._bucket, self._paths = bucket, paths
        self._store: tuple[int, Any] = (0, None)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> bytes:
        import obstore
        from obstore.store import S3Store

        process = os.getpid()
        if self._store[0] != process:
            store = S3Store(self._bucket, virtual_hosted_style_request=False, client_options={"allow_http": True})
            self._store = (process, store)
        return bytes(obstore.get(self._store[1], self._paths[index]).bytes())


def prefeed(options: argparse.Namespace) -> Iterable[Any]:
    """Return prefeed's loader over the objects of the bucket."""
    from prefeed import DataLoader as PrefeedLoader
    from prefeed.datasets import Objects

    dataset = Objects(f"s3://{options.bucket}/", pattern="**/*.jpg")
    return PrefeedLoader(dataset, batch_size=BATCH, shuffle=True, **_workers(options))


def litdata_raw(options: argparse.Namespace) -> Iterable[Any]:
    """Return LitData's loader over the objects themselves, kept in its cache directory."""
    from litdata import StreamingRawDataset

    allow_http_in_litdata()
    dataset = StreamingRawDataset(f"s3://{options.bucket}", cache_dir=options.work, cache_files=True)
    return torchs(dataset, options)


def litdata(options: argparse.Namespace) -> Iterable[Any]:
    """Return LitData's loader over its chunks."""
    from litdata import StreamingDataLoader, StreamingDataset

    allow_http_in_litdata()
    dataset = StreamingDataset(f"s3://{options.shards}", cache_dir=options.work, shuffle=True, transform=bytes)
    loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=BATCH, **_workers(options))
    return loader


def allow_http_in_litdata() -> None:
    """Let LitData's client speak HTTP: the endpoint has no certificate, and LitData has no setting for it (0.2.76)."""
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def mds(options: argparse.Namespace) -> Iterable[Any]:
    """Return torch's loader over MosaicML's shards."""
    from streaming import StreamingDataset

    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    dataset = StreamingDataset(remote=f"s3://{options.shards}", local=options.work, shuffle=True, batch_size=BATCH)
    close_clients_of_mds(dataset)
    return DataLoader(dataset, batch_size=BATCH, **_workers(options))


def close_clients_of_mds(dataset: Any) -> None:
    """Let each worker make a client of its own.

    The index was fetched by a client that keeps its connection. Workers that are forked would all use this one, and get parts of
    each other's shards (streaming 0.13.0).
    """
    for stream in dataset.streams:
        stream._downloader.clean_up()


def webdataset(options: argparse.Namespace) -> Iterable[Any]:
    """Return WebDataset's loader over tar files, which it keeps in its cache directory."""
    import webdataset as wds

    urls = [f"pipe:curl -s -f {os.environ['AWS_ENDPOINT_URL']}/{options.shards}/{name}" for name in options.names]
    samples: Any = wds.WebDataset(urls, shardshuffle=len(urls), cache_dir=options.work, empty_check=False)
    loader: Iterable[Any] = wds.WebLoader(
        samples.shuffle(1000).to_tuple("jpg").batched(BATCH, collation_fn=_first_of_each),
        batch_size=None,
        **_workers(options),
    )
    return loader


def _first_of_each(samples: Sequence[tuple[bytes]]) -> list[bytes]:
    return [sample[0] for sample in samples]


def s3torchconnector(options: argparse.Namespace) -> Iterable[Any]:
    """Return torch's loader over Amazon's data set of the objects; it keeps nothing."""
    from s3torchconnector import S3ClientConfig, S3MapDataset

    dataset = S3MapDataset.from_prefix(
        f"s3://{options.bucket}/", region=os.environ["AWS_REGION"], endpoint=os.environ["AWS_ENDPOINT_URL"], transform=_read,
        s3client_config=S3ClientConfig(force_path_style=True),
    )  # fmt: skip
    return torchs(dataset, options)


def _read(reader: Any) -> bytes:
    data: bytes = reader.read()
    return data


def msc(options: argparse.Namespace) -> Iterable[Any]:
    """Return torch's loader over the objects, opened with NVIDIA's Multi-Storage Client, which caches them."""
    return torchs(_Opened(options), options)


class _Opened:
    """Named objects, read with the Multi-Storage Client; each process makes a client of its own, after it was forked."""

    def __init__(self, options: argparse.Namespace) -> None:
        import multistorageclient  # noqa: F401

        storage = {
            "base_path": options.bucket,
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "region_name": os.environ["AWS_REGION"],
        }
        self._config = {
            "profiles": {
                "bench": {
                    "storage_provider": {"type": "s3", "options": {**storage, "rust_client": {"allow_http": True}}},
                    "caching_enabled": True,
                }
            },
            "cache": {"size": "100G", "check_source_version": False, "location": options.work},
        }
        self._paths = options.names
        self._client: tuple[int, Any] = (0, None)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> bytes:
        from multistorageclient import StorageClient, StorageClientConfig

        process = os.getpid()
        if self._client[0] != process:
            self._client = (process, StorageClient(StorageClientConfig.from_dict(self._config, profile="bench")))
        return bytes(self._client[1].read(self._paths[index]))


def torchs(dataset: Any, options: argparse.Namespace) -> Iterable[Any]:
    """Return torch's loader of batches in random order."""
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, **_workers(options))


def _workers(options: argparse.Namespace) -> dict[str, Any]:
    return {"num_workers": options.workers, "persistent_workers": True}


LOADERS: Final[dict[str, Callable[[argparse.Namespace], Iterable[Any]]]] = {
    loader.__name__: loader for loader in (plain, s3torchconnector, litdata_raw, msc, webdataset, litdata, mds, prefeed)
}


# ---------------------------------------------------------------- program


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert the pictures, or read all of them epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LOADERS, required=True)
    parser.add_argument("--convert", nargs=2, type=Path, metavar=("PICTURES", "TO"))
    parser.add_argument("--shard-bytes", type=int, default=64_000_000)
    parser.add_argument("--bucket", help="bucket of the pictures")
    parser.add_argument("--shards", help="bucket of the converted pictures")
    parser.add_argument("--names", nargs="*", help="objects to read, where the library does not list them")
    parser.add_argument("--work", help="empty directory for the library's cache")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)

    if options.convert:
        pictures, to = options.convert
        started = time.perf_counter()
        WRITERS[options.library](sorted(pictures.glob("*/*.jpg")), to, options.shard_bytes)
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        return
    loader = LOADERS[options.library](options)
    for _ in range(options.epochs):
        sys.stdout.write(json.dumps(read_epoch(loader)) + "\n")
        sys.stdout.flush()


def read_epoch(loader: Iterable[Any]) -> dict[str, Any]:
    """Return what was seen in one epoch, and how long it took from its start on."""
    samples = size = checksum = 0
    started = time.perf_counter()
    for batch in loader:
        found = batch["jpg"] if isinstance(batch, dict) else batch
        for data in found:
            samples, size = samples + 1, size + len(data)
            checksum ^= zlib.crc32(data[-64:], len(data))  # the end tells pictures apart and costs little
    return {"samples": samples, "bytes": size, "seconds": time.perf_counter() - started, "checksum": checksum}


if __name__ == "__main__":
    main()
