"""The schemas of resources and the strict reader agree: on the documents that they take, and in the words of a refusal."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.kubernetes.api_server import refusals
from prefeed.errors import SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.jobs.spec import JobFields, parse_job
from prefeed.kubernetes.checking import problems_of
from prefeed.kubernetes.crds import KINDS, schema_of
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import PADDLE_JOB_VERSION
from prefeed.kubernetes.schema import VALIDATIONS
from prefeed.sampleset.documents import Condition, Fields
from prefeed.sampleset.spec import API_VERSION, MountOptions, SampleSetSpec
from prefeed.sampleset.spec import KIND as SAMPLE_SET
from profiles import examples

CLEAR: dict[str, Any] = {"type": "clear", "sampleSetRef": {"name": "a"}}
SET: dict[str, Any] = {"partitions": 1, "source": {"uri": "s3://bucket/a"}}


def document(kind: str, spec: dict[str, Any], name: str = "imagenet") -> dict[str, Any]:
    version = PADDLE_JOB_VERSION if kind == PADDLE_JOB else API_VERSION
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def options(**given: Any) -> dict[str, Any]:
    return {**SET, "csi": {"juiceFSMountOptions": {name.replace("_", "-"): value for name, value in given.items()}}}


def warmup(**given: Any) -> dict[str, Any]:
    return {"type": "warmup", "sampleSetRef": {"name": "a"}, "warmupOptions": given}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (SAMPLE_SET, {"partitions": 1}),
    (SAMPLE_SET, options(writeback=True)),
    (SAMPLE_SET, options(free_space_ratio="1.0")),
    (SAMPLE_SET, options(sub_dir="a/../b")),
    (SAMPLE_JOB, warmup(partition=2, partitions=2)),
    (SAMPLE_JOB, warmup(partition=1)),
    (SAMPLE_JOB, warmup(file="order.txt")),
    (SAMPLE_JOB, {"type": "warmup", "warmupOptions": {"url": "data"}}),
    (SAMPLE_JOB, {"type": "clear", "clearOptions": {"url": "data"}}),
    (SAMPLE_JOB, {"type": "rmr", "rmrOptions": {"url": "data", "paths": ["a"]}}),
    *((SAMPLE_JOB, {**CLEAR, f"{kind}Options": {"paths": ["a"]}}) for kind in ("warmup", "rmr")),
    (SAMPLE_JOB, {**CLEAR, "syncOptions": {}}),
    (SAMPLE_JOB, {"type": "sync", "syncOptions": {"source": "/a"}}),
    (SAMPLE_JOB, {**warmup(), "clearOptions": {}}),
    (SAMPLE_JOB, {"type": "rmr", "sampleSetRef": {"name": "a"}}),
    (SAMPLE_JOB, {**CLEAR, "clearOptions": {"url": "/data"}}),
    (SAMPLE_JOB, {"type": "clear"}),
    (PADDLE_JOB, {"cleanPodPolicy": "Never"}),
]


def conditions_of(*structures: type[Fields]) -> set[Condition]:
    """Return the conditions of structures and of those in them, but for those of changes."""
    found = set()
    for kind in structures:
        found |= {each for each in kind.requires if "oldSelf" not in each.cel}
        for field in msgspec.structs.fields(kind):
            inner = [field.type, *getattr(field.type, "__args__", ())]
            found |= conditions_of(*(one for one in inner if isinstance(one, type) and issubclass(one, Fields)))
    return found


@pytest.mark.parametrize(("kind", "spec"), REFUSED)
def test_both_refuse_it_in_the_same_words(kind: str, spec: dict[str, Any]) -> None:
    said = refusals(kind, document(kind, spec))
    (problem,) = problems_of(document(kind, spec), "1.29")

    assert said
    assert any(words in problem for words in said)


def test_each_condition_has_a_document_that_it_refuses() -> None:
    said = {words for kind, spec in REFUSED for words in refusals(kind, document(kind, spec))}
    conditions = conditions_of(SampleSetSpec, MountOptions, JobFields)

    assert len(conditions) >= 14
    assert said >= {f"{each.path}{each.said}".lstrip(".: ") for each in conditions}


CHANGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (SET, {**SET, "source": {"uri": "s3://bucket/b"}}, "source"),
    (SET, {**SET, "secretRef": {"name": "keys"}}, "secretRef"),
    (SET, {**SET, "noSync": True}, "noSync"),
    (SET, options(sub_dir="train"), "csi.juiceFSMountOptions.sub-dir"),
    (SET, {**SET, "cache": {"levels": [{"mediumType": "MEM"}]}}, "cache.levels: mediumType and path"),
]


@pytest.mark.parametrize(("before", "after", "path"), CHANGED, ids=[path for *_, path in CHANGED])
def test_what_a_set_keeps_for_its_life_cannot_change(before: dict[str, Any], after: dict[str, Any], path: str) -> None:
    wanted = [f"{path} cannot change: only partitions, cacheSize and mount options can"]

    assert refusals(SAMPLE_SET, document(SAMPLE_SET, after), document(SAMPLE_SET, before)) == wanted
    assert refusals(SAMPLE_SET, document(SAMPLE_SET, before), document(SAMPLE_SET, after)) == wanted
    assert refusals(SAMPLE_SET, document(SAMPLE_SET, after), document(SAMPLE_SET, after)) == []


def test_the_rest_of_a_set_can_change() -> None:
    levels = [{"mediumType": "MEM", "path": "/dev/shm/a", "cacheSize": 1}]
    before = {**options(buffer_size=300), "cache": {"levels": levels}}
    after = {**options(buffer_size=600), "partitions": 2, "cache": {"levels": [{**levels[0], "cacheSize": 2}]}}

    assert refusals(SAMPLE_SET, document(SAMPLE_SET, after), document(SAMPLE_SET, before)) == []


def test_only_a_succeeded_job_is_final() -> None:
    before, after = document(SAMPLE_JOB, CLEAR), document(SAMPLE_JOB, warmup())
    done = {**before, "status": {"phase": "Succeeded"}}

    (said,) = refusals(SAMPLE_JOB, {**after, "status": done["status"]}, done)
    assert "succeeded" in said
    assert refusals(SAMPLE_JOB, done, done) == []
    assert refusals(SAMPLE_JOB, after, before) == []
    assert refusals(SAMPLE_JOB, after, {**before, "status": {"phase": "Failed"}}) == []


@pytest.mark.parametrize("kind", [SAMPLE_JOB, PADDLE_JOB])
def test_a_job_keeps_its_set(kind: str) -> None:
    """What was made for the first set has its label: nothing would look for it in the group of another one."""
    pods = {"worker": {"template": {}}} if kind == PADDLE_JOB else {"type": "warmup", "warmupOptions": {"url": "/a"}}
    of_set = {"worker": {"template": {}}} if kind == PADDLE_JOB else {"type": "warmup"}
    with_set = [document(kind, {**of_set, "sampleSetRef": {"name": name}}) for name in "ab"]

    for before, after in [
        with_set,
        with_set[::-1],
        (with_set[0], document(kind, pods)),
        (document(kind, pods), with_set[0]),
    ]:
        (said,) = refusals(kind, after, before)
        assert "sampleSetRef cannot change" in said
        assert "another name" in said
    assert refusals(kind, with_set[0], with_set[0]) == refusals(kind, document(kind, pods), document(kind, pods)) == []


# ---------------------------------------------------------------- any document

ODD: list[Any] = [None, -1, 0, 1.5, "", "..", "a b", True, [], {}]
TEXTS = ["/data", "s3://bucket/a", "a", "a/../b", "2.5", "127.0.0.1:9000", "*.tmp"]


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of a schema, and now and then one that does not fit."""
    return st.one_of(*[_fitting(schema)] * 12, st.sampled_from(ODD[1:]))


def _fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            required = schema.get("required", ())
            fields = {name: values_of(inner) for name, inner in schema["properties"].items()}
            optional = {name: fields[name] for name in fields if name not in required}
            chosen = st.lists(st.sampled_from(sorted(optional)), max_size=3, unique=True) if optional else st.just([])
            return chosen.flatmap(lambda names: st.fixed_dictionaries({n: fields[n] for n in (*required, *names)}))
        case "array":
            return st.lists(values_of(schema["items"]), max_size=2)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(0, 3)
        case "number":
            return st.sampled_from([0, 1, 0.5])
        case "string":
            return st.sampled_from(TEXTS)
    return st.just({})


ONLY_THE_READER: tuple[str, ...] = (
    "credentials or parameters",  # a URL may hold keys in many ways
    "spec.csi.juiceFSMountOptions.metrics",
    "spec.syncOptions.exclude",
    "spec.syncOptions.include",
    "spec.source.uri",  # whether it names a place that can be read
)
"""Of what no expression says: it is refused when it is used."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(200))
@given(data=st.data())
def test_of_any_document(kind: str, data: st.DataObject) -> None:
    """What the schema takes, the reader takes, but for a few; what the reader takes, the schema takes, but for other types."""
    spec = data.draw(values_of(schema_of(kind)["properties"]["spec"]))
    given_ = document(kind, spec)
    said = refusals(kind, given_)
    problems = [] if said else problems_of(copy.deepcopy(given_), "1.29")

    assert all(any(words in problem for words in ONLY_THE_READER) for problem in problems)
    if said and not _is_refused_by_the_reader(kind, given_):
        assert all("is not of type" in each or "does not match" in each for each in said), said


def _is_refused_by_the_reader(kind: str, given_: dict[str, Any]) -> bool:
    try:
        if kind == SAMPLE_JOB:
            parse_job(given_)
        else:
            msgspec_spec(given_)
    except SpecError:
        return True
    return False


def msgspec_spec(given_: dict[str, Any]) -> None:
    """Read a set as ``prefeed sampleset apply`` does, with a secret that has no bucket."""
    from prefeed.sampleset.applying import Secret, plan_places
    from prefeed.sampleset.spec import parse_spec

    spec = parse_spec(given_["spec"])
    plan_places(spec, "imagenet", lambda name: Secret(name=name, values={}, bucket=None))


def test_every_rule_of_a_schema_compiles() -> None:
    from contract.kubernetes.api_server import _compiled

    rules = [rule for kind in KINDS for rule in _rules(schema_of(kind))]

    assert len(rules) == len(set(rules)) + 2  # the url of three kinds of options
    for rule in rules:
        _compiled(rule)


def _rules(schema: dict[str, Any]) -> list[str]:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [each["rule"] for each in schema.get(VALIDATIONS, ())] + [rule for one in inner for rule in _rules(one)]
