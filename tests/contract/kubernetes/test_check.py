"""``prefeed kubernetes check`` on documents of all kinds. resnet.yaml is that of the Paddle operator's page on benchmarks, unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from prefeed.cli.main import cli
from prefeed.kubernetes.checking import problems_of

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(path for path in (ROOT / "examples" / "sampleset").glob("*.yaml") if path.name != "secret.yaml")
RESNET = Path(__file__).with_name("resnet.yaml")
VERSIONS = ("1.29", "1.33", "1.37")


def check(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["kubernetes", "check", *map(str, arguments)], input=text, catch_exceptions=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_of_the_original_and_our_resources_are_ok(version: str) -> None:
    files = [*EXAMPLES, RESNET, ROOT / "deploy" / "kubernetes" / "crds.yaml"]

    result = check(*files, "--version", version)

    assert (result.exit_code, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == len(files) + 1
    assert all(line.endswith(": ok") for line in result.stdout.splitlines())


def test_each_refused_field_is_named_and_the_status_is_1() -> None:
    text = RESNET.read_text().replace("emptyDir:", "emptydir:") + "\n---\n" + EXAMPLES[0].read_text()

    result = check("-", text=text)

    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert re.match(r"stdin: PaddleJob resnet50: spec\.worker\.template\.spec\.volumes\[0\]: .*emptydir", first)
    assert second.endswith(": ok")


REFUSED = [
    ("{kind: SampleSet, apiVersion: v1}", "apiVersion: a SampleSet has batch.paddlepaddle.org/v1alpha1, not 'v1'"),
    ("{kind: Pods, apiVersion: v1}", "kind: Kubernetes 1.29 has no 'Pods' of apiVersion 'v1'"),
    (
        "{kind: PaddleJob, apiVersion: batch.paddlepaddle.org/v2}",
        "a PaddleJob has apiVersion batch.paddlepaddle.org/v1",
    ),
    ("{apiVersion: v1}", "kind is missing"),
    (
        "{kind: PaddleJob, apiVersion: batch.paddlepaddle.org/v1, metadata: {name: a}, spec: {}}",
        "spec.worker is missing: a job has at least one kind of pods",
    ),
    (
        "{kind: PaddleJob, apiVersion: batch.paddlepaddle.org/v1, metadata: {name: a}, spec: {worker: {template: {}}, workers: 2}}",
        "spec.workers is not known. Did you mean worker?",
    ),
    (
        "{kind: SampleJob, apiVersion: batch.paddlepaddle.org/v1alpha1, metadata: {name: a}, spec: {type: clear, sampleSetRef: b}}",
        "spec.sampleSetRef: 'b' is not of type 'object'",
    ),
    ("{kind: Secret, apiVersion: v1, stringData: {a: {env: B}}}", "stringData.a: "),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said[:30] for _, said in REFUSED])
def test_a_problem_has_the_path_of_its_field(text: str, said: str) -> None:
    (problem,) = problems_of(yaml.safe_load(text), "1.29")

    assert said in problem


def test_json_is_one_object() -> None:
    result = check(EXAMPLES[0], "--json")

    (document,) = json.loads(result.stdout)["documents"]
    assert (document["kind"], document["problems"]) == ("SampleJob", [])


@pytest.mark.parametrize(("text", "said"), [("", "holds no document"), ("a: [", "stdin, line 1, column 5")])
def test_a_file_that_cannot_be_read_is_named(text: str, said: str) -> None:
    result = check("-", text=text)

    assert result.exit_code == 1
    assert said in result.stderr


@pytest.mark.parametrize("version", ["1.99", "2", "newest"])
def test_a_version_that_is_not_known_is_named(version: str) -> None:
    result = check(RESNET, "--version", version)

    assert result.exit_code == 1
    assert version in result.stderr
