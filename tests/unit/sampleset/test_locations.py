from __future__ import annotations

import pytest

from prefeed.errors import SpecError
from prefeed.sampleset.locations import Location, locate, locate_bucket

BOS = {"endpoint": "https://s3.hkg.bcebos.com", "region": "hkg"}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("bos://paddleflow-public.hkg.bcebos.com/imagenet/demo", Location(url="s3://paddleflow-public/imagenet/demo", **BOS)),
        ("BOS://paddleflow-public.hkg.bcebos.com", Location(url="s3://paddleflow-public", **BOS)),
        ("paddleflow-public.hkg.bcebos.com/imagenet/", Location(url="s3://paddleflow-public/imagenet", **BOS)),
        ("s3://photos/train", Location(url="s3://photos/train")),
        ("s3://my.photos/train", Location(url="s3://my.photos/train")),
        ("s3://photos.s3.eu-west-1.amazonaws.com/train", Location(url="s3://photos/train", region="eu-west-1")),
        ("photos.s3.amazonaws.com", Location(url="s3://photos")),
        (
            "s3://p.s3.cn-north-1.amazonaws.com.cn/x",
            Location(url="s3://p/x", region="cn-north-1", endpoint="https://s3.cn-north-1.amazonaws.com.cn"),
        ),
        ("minio://127.0.0.1:9000/photos/train", Location(url="s3://photos/train", endpoint="http://127.0.0.1:9000")),
        ("s3://store.local:9000/photos", Location(url="s3://photos", endpoint="http://store.local:9000")),
        (
            "oss://photos.oss-cn-beijing.aliyuncs.com/a",
            Location(
                url="s3://photos/a", region="cn-beijing", is_virtual_hosted=True,
                endpoint="https://photos.oss-cn-beijing.aliyuncs.com",
            ),
        ),
        ("gs://photos/train/", Location(url="gs://photos/train")),
        ("az://photos/train", Location(url="az://photos/train")),
        ("https://example.org/photos/", Location(url="https://example.org/photos")),
        ("file:///data/photos", Location(url="/data/photos")),
        ("/data/photos/", Location(url="/data/photos")),
        ("s3://photos/icons@2x", Location(url="s3://photos/icons@2x")),
        ("minio://h:9000/photos/@2x", Location(url="s3://photos/@2x", endpoint="http://h:9000")),
        ("/data/icons@2x", Location(url="/data/icons@2x")),
        ("pack+s3://photos/pack", Location(url="pack+s3://photos/pack")),
    ],
)  # fmt: skip
def test_places_as_the_original_writes_them(uri: str, expected: Location) -> None:
    assert locate(uri, "uri") == expected


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("redis://127.0.0.1/1", "redis:// is not known; choose one of bos://"),
        ("photos", "names no storage"),
        ("", "names no storage"),
        ("minio://127.0.0.1:9000", "no bucket after 127"),
        ("s3:///train", "not the name of a bucket"),
        ("s3://pho tos/train", "not the name of a bucket"),
        ("file://other/data", "does not name a directory of this machine"),
    ],
)
def test_what_names_no_place(uri: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        locate(uri, "spec.source.uri")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:hush@photos/train",
        "bos://AKIA:hu/sh@photos.hkg.bcebos.com/train",
        "minio://user:hush@127.0.0.1:9000/photos",
        "AKIA:hush@photos.s3.amazonaws.com/train",
        "https://user:hush@example.org/a",
        "https://AKIAhush@example.org/a",
        "AKIAhush@photos.s3.amazonaws.com/train",
        "https://example.org/a?X-Amz-Signature=hush",
    ],
)
def test_credentials_in_a_place_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(SpecError, match="document of kind Secret") as caught:
        locate(uri, "spec.source.uri")
    said = f"{caught.value!r} {caught.value} {caught.value.__cause__}"
    assert "hush" not in said
    assert "AKIA" not in said


@pytest.mark.parametrize(
    ("storage", "bucket", "expected"),
    [
        ("bos", "https://photos.hkg.bcebos.com", Location(url="s3://photos", **BOS)),
        ("bos", "photos.hkg.bcebos.com", Location(url="s3://photos", **BOS)),
        ("s3", "http://127.0.0.1:9000/photos", Location(url="s3://photos", endpoint="http://127.0.0.1:9000")),
        ("minio", "https://10.0.0.1/photos/a", Location(url="s3://photos/a", endpoint="https://10.0.0.1")),
        ("s3", "https://photos.s3.eu-west-1.amazonaws.com", Location(url="s3://photos", region="eu-west-1")),
        ("file", "/data/copies", Location(url="/data/copies")),
        ("", "/data/copies", Location(url="/data/copies")),
        ("", "s3://photos", Location(url="s3://photos")),
        ("gs", "photos", Location(url="gs://photos")),
    ],
)
def test_buckets_of_secrets(storage: str, bucket: str, expected: Location) -> None:
    assert locate_bucket(storage, bucket, "bucket") == expected


def test_a_bucket_with_credentials_is_refused() -> None:
    with pytest.raises(SpecError, match="document of kind Secret") as caught:
        locate_bucket("s3", "https://AKIA:hush@photos.s3.amazonaws.com", "bucket")
    assert "hush" not in str(caught.value)
