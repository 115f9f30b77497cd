"""Jobs that reach stores in ways of their own: endpoints, accounts, tokens and profiles, and one server for all."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import prefeed
import prefeed.api
from leaks import wait_until
from namespaces import enter_own_network
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import AccessDeniedError, CredentialsError
from process.children import child_running
from sandbox import Sandbox, servers_of
from tenants import Tenants, tenants_server

NUM_OBJECTS = 32
SECRET = "hush/hush+hush=="
TOKEN = "token/that/is/nobodys"
OLD, FRESH = "ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPL2"
"""Two temporary keys of one account."""


def objects(word: str) -> Mapping[str, bytes]:
    return {f"train/{number:03}.bin": f"{word} {number} ".encode() * 40 for number in range(NUM_OBJECTS)}


@pytest.fixture
def open_stores() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def _no_speaker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    prefeed.datasets._readers.close()


def speak(
    monkeypatch: pytest.MonkeyPatch, store: Tenants | None, key: str, secret: str = SECRET, token: str = ""
) -> None:
    if store is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    else:
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def epoch(dataset: prefeed.datasets.Objects | None = None) -> list[bytes]:
    """Return what a new job reads in an epoch, or one that goes on with its dataset."""
    opened = dataset or prefeed.datasets.Objects("s3://bucket/train")
    return list(prefeed.DataLoader(opened, batch_size=None))


def test_two_endpoints_with_buckets_of_one_name(open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job trains on its own store, whoever started the server, and each store is asked once an object."""
    stores = {word: open_stores.enter_context(tenants_server({"both": objects(word)})) for word in ("ours", "else")}
    for _ in range(2):
        for word, store in stores.items():
            speak(monkeypatch, store, "both")
            assert epoch() == list(objects(word).values())
            assert prefeed.read("s3://bucket/train/003.bin") == objects(word)["train/003.bin"]
    assert [len(store.objects_asked()) for store in stores.values()] == [NUM_OBJECTS, NUM_OBJECTS]


def test_a_dataset_stays_with_the_store_that_it_was_made_of(
    open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that names one endpoint after the other reads each dataset where it was listed, whoever reads, and how."""
    words = ("ours", "else")
    stores = {word: open_stores.enter_context(tenants_server({"both": objects(word)})) for word in words}
    expected = {word: list(objects(word).values()) for word in words}

    def made(*, enabled: bool) -> dict[str, prefeed.datasets.Objects]:
        found = {}
        for word, store in stores.items():
            speak(monkeypatch, store, "both")
            found[word] = prefeed.datasets.Objects("s3://bucket/train", config=replace(resolve(), enabled=enabled))
        return found

    datasets = made(enabled=True)
    for word in words:
        assert [datasets[word][index] for index in range(NUM_OBJECTS)] == expected[word]
        assert epoch(datasets[word]) == expected[word]
    prefeed.datasets._readers.close()
    with NodeClient.connect(resolve()) as node:
        node.stop()
    for word in words:  # a new server is told of them
        assert epoch(copy.deepcopy(datasets[word])) == expected[word]
    prefeed.datasets._readers.close()
    with NodeClient.connect(resolve()) as node:
        node.stop()
    pickled = pickle.dumps(datasets)
    assert SECRET.encode() not in pickled
    left = pickle.loads(pickled)
    with pytest.raises(CredentialsError, match="pickled without credentials"):
        left["ours"][3]
    assert epoch(left["else"]) == expected["else"]
    speak(monkeypatch, stores["ours"], "both")
    assert epoch(left["ours"]) == expected["ours"]
    for word, dataset in made(enabled=False).items():
        assert [dataset[index] for index in range(3)] == expected[word][:3]
        for method in ("fork", "spawn"):
            loader = prefeed.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
            assert list(loader) == expected[word]


def in_own_network(port: int, pipe: Connection) -> None:
    """Read from the store that a container has at its own loopback address, each time it is told to."""
    enter_own_network()
    with tenants_server({"both": objects("else")}, port=port):
        while pipe.recv():
            pipe.send((epoch(), prefeed.read("s3://bucket/train/003.bin")))


@pytest.mark.cold
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_one_address_in_two_networks(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is at ``localhost`` in one container is not in the other: whoever started the server, each reads its own."""
    ours, other = (list(objects(word).values()) for word in ("ours", "else"))
    with tenants_server({"both": objects("ours")}) as store:
        speak(monkeypatch, store, "both")
        with child_running(in_own_network, int(store.url.rpartition(":")[2])) as (_, container):
            assert epoch() == ours
            container.send(True)
            assert container.recv() == (other, other[3])
            assert "runs in another network namespace" in capfd.readouterr().err
            (server,) = servers_of(sandbox)
            os.kill(server, signal.SIGKILL)
            assert wait_until(lambda: not servers_of(sandbox), timeout_seconds=60)
            container.send(True)  # a server of its own takes over what that one had
            assert container.recv() == (other, other[3])
            assert epoch() == ours


def test_two_accounts_at_one_endpoint(open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("anna", "bert", "")
    store = open_stores.enter_context(tenants_server({word: objects(word or "none") for word in words}))
    for _ in range(2):
        for word in words:
            speak(monkeypatch, store, word)
            if not word:
                monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
            assert epoch() == list(objects(word or "none").values())
        monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    assert len(store.objects_asked()) == 3 * NUM_OBJECTS


def test_a_fresh_token_is_the_same_account(open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was started with a token that has expired: the next job is not asked for it, nor is its cache cold."""
    store = open_stores.enter_context(tenants_server({OLD: objects("ours"), FRESH: objects("ours")}))
    speak(monkeypatch, store, OLD, token=TOKEN)
    start_server(resolve())
    assert epoch() == list(objects("ours").values())
    store.expired.add(OLD)
    speak(monkeypatch, store, FRESH, token=TOKEN + "2")
    assert epoch() == list(objects("ours").values())
    assert len(store.objects_asked()) == NUM_OBJECTS
    with NodeClient.connect(resolve()) as node:
        node.clear(None)
    assert epoch() == list(objects("ours").values())
    assert prefeed.read("s3://bucket/train/003.bin") == objects("ours")["train/003.bin"]
    assert (len(store.objects_asked(FRESH)), prefeed.statistics().direct_reads) == (NUM_OBJECTS, 0)


def test_a_token_that_expires_in_a_run(open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's chain gives a fresh one: the readers try it when the server was refused, and the server has it then."""
    store = open_stores.enter_context(tenants_server({OLD: objects("ours"), FRESH: objects("ours")}))
    speak(monkeypatch, store, OLD, token=TOKEN)
    loader = prefeed.DataLoader(prefeed.datasets.Objects("s3://bucket/train"), batch_size=None)
    assert list(loader) == list(objects("ours").values())
    store.expired.add(OLD)
    speak(monkeypatch, store, FRESH, token=TOKEN + "2")
    with NodeClient.connect(resolve()) as node:
        node.clear(None)
    assert list(loader) == list(objects("ours").values())
    refused = prefeed.statistics()
    assert refused.errors["access-denied"] > 0
    assert refused.direct_reads > 0
    for _ in range(2):
        assert list(loader) == list(objects("ours").values())
    after = prefeed.statistics()
    assert after.errors["access-denied"] == refused.errors["access-denied"]
    assert after.direct_reads == refused.direct_reads
    assert len(store.objects_asked(FRESH)) <= 2 * NUM_OBJECTS


def test_who_was_refused_is_said(open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_stores.enter_context(tenants_server({OLD: objects("ours")}))
    speak(monkeypatch, store, OLD, token=TOKEN)
    dataset = prefeed.datasets.Objects("s3://bucket/train")
    store.expired.add(OLD)
    with pytest.raises(AccessDeniedError, match="the node server was refused before") as caught:
        epoch(dataset)
    assert "s3://bucket/train/000.bin" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_profile_of_the_user(
    open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sandbox: Sandbox
) -> None:
    """``AWS_PROFILE`` means what it means to boto3: here a program that gives keys, and an endpoint."""
    store = open_stores.enter_context(tenants_server({"team": objects("ours"), "mine": objects("else")}))
    program = tmp_path / "keys"
    program.write_text(f'#!/bin/sh\necho \'{{"Version": 1, "AccessKeyId": "team", "SecretAccessKey": "{SECRET}"}}\'\n')
    program.chmod(0o700)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        f"[default]\naws_access_key_id = mine\naws_secret_access_key = {SECRET}\nendpoint_url = {store.url}\n"
        f"region = us-east-1\n[profile team]\ncredential_process = {program}\nendpoint_url = {store.url}\nregion = eu-1\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert epoch() == list(objects("ours").values())
    monkeypatch.delenv("AWS_PROFILE")
    assert epoch() == list(objects("else").values())
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AccessDeniedError, match="nobody"):
        epoch()
    assert_hushed(sandbox)


def test_what_a_job_says_is_kept_nowhere(
    open_stores: ExitStack, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor is what the server was started with used: a job without keys speaks without."""
    monkeypatch.setenv("PREFEED_DISK", f"16MiB:{sandbox.root / 'disk'}")
    store = open_stores.enter_context(tenants_server({"key-of-a-job": objects("ours"), "": objects("none")}))
    speak(monkeypatch, store, "key-of-a-job", token=TOKEN)
    assert epoch() == list(objects("ours").values())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert epoch() == list(objects("none").values())
    assert_hushed(sandbox)
    said = capfd.readouterr()
    assert not any(word in said.out + said.err for word in (SECRET, TOKEN))


def assert_hushed(sandbox: Sandbox) -> None:
    """No file of prefeed's holds a secret; the server runs, so what it writes at its end is not looked at."""
    assert servers_of(sandbox)
    files = [path for top in (sandbox.root, sandbox.memory_dir) for path in top.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        held = path.read_bytes()
        assert not any(word.encode() in held for word in (SECRET, TOKEN)), path
