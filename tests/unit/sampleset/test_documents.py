from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta

from prefeed.errors import SpecError
from prefeed.sampleset.documents import (
    Fields,
    Name,
    Number,
    Positive,
    Ratio,
    Unused,
    Whole,
    decode,
    require_name,
)
from prefeed.sampleset.yaml_files import load_documents


class Inner(Fields, frozen=True, kw_only=True):
    cache_size: Annotated[int, Meta(ge=1, description="a whole number of MiB, at least 1")] | None = None
    path: str = ""


class Outer(Fields, frozen=True, kw_only=True):
    text: str = ""
    whole: Whole = 0
    flag: bool = False
    texts: tuple[str, ...] = ()
    section: Inner | None = None
    sections: tuple[Inner, ...] = ()
    name: Name = "a"
    number: Number = 0.0
    ratio: Ratio = 0.0
    named: Name | Inner | None = None
    unused: Unused | None = None


class Required(Fields, frozen=True, kw_only=True):
    partitions: Positive
    size: Whole = 0


def said_of(value: object, kind: type = Outer, path: str = "a", *, is_secret: bool = False) -> str:
    with pytest.raises(SpecError) as caught:
        decode(value, kind, path, is_secret=is_secret)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_an_unknown_field_is_named_with_its_path_and_what_is_known() -> None:
    assert said_of({"sections": [{}, {"cacheSise": 1}]}) == (
        "a.sections[1].cacheSise is not known. Did you mean cacheSize? Known fields: cacheSize, path"
    )
    assert said_of({"sise": 1}, Inner, "") == "sise is not known. Known fields: cacheSize, path"


def test_a_missing_field_that_was_meant_by_another_is_said_so() -> None:
    assert said_of({}, Required) == "a.partitions is missing"
    assert said_of({"partition": 1, "size": 2}, Required) == (
        "a.partitions is missing: partition is there, which is not known"
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("text", 5, "a.text must be a text, not 5: put it into quotes"),
        ("text", True, "a.text must be a text, not True"),
        ("whole", True, "a.whole must be a whole number of at least 0, not True"),
        ("whole", 1.0, "a.whole must be a whole number of at least 0, not 1.0"),
        ("whole", "5", "a.whole must be a whole number of at least 0, not '5': write it without quotes"),
        ("whole", -1, "a.whole must be a whole number of at least 0, not -1"),
        ("flag", "yes", "a.flag must be true or false, not 'yes'"),
        ("texts", "a", "a.texts must be a list of texts, not 'a'"),
        ("texts", ["a", 1], "a.texts[1] must be a text, not 1: put it into quotes"),
        ("section", 5, "a.section must have fields; it is a number"),
        ("section", "b", "a.section must have fields; it is a text"),
        ("section", {1: 2}, "a.section has a field whose name is a number; put it into quotes"),
        ("section", {"cacheSize": "8GiB"}, "a.section.cacheSize must be a whole number of MiB, at least 1, not '8GiB'"),
        ("sections", {}, "a.sections must be a list, not a mapping"),
        ("sections", [None], "a.sections[0] must have fields; it is empty"),
        (
            "name",
            "../x",
            "a.name must be made of lower-case letters, digits and - between them, at most 63, not '../x'",
        ),
        ("name", "a\n", "a.name must be made of lower-case letters, digits and - between them, at most 63, not 'a\\n'"),
        ("named", "A", "a.named must be made of lower-case letters, digits and - between them, at most 63, not 'A'"),
        ("named", {"pat": ""}, "a.named.pat is not known. Did you mean path? Known fields: cacheSize, path"),
    ],
)
def test_wrong_types_are_refused(field: str, value: object, said: str) -> None:
    assert said_of({field: value}) == said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "1", True])
def test_numbers_are_numbers(value: object) -> None:
    assert said_of({"number": value}).startswith("a.number must be a number that is not negative, not ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "a document must have fields; it is a number"),
        ({"\udcff": 1}, "the document has a field whose name or value is no UTF-8 text"),
        ({"cachSize": None}, "cachSize is not known. Did you mean cacheSize? Known fields: cacheSize, path"),
        ({"a - at `$.b`": 1}, "a - at `$.b` is not known. Known fields: cacheSize, path"),
        ({"a - at `$.b": 1}, "Object contains unknown field `a - at `$.b`"),
        ({"a`\n": 1}, "a`\n is not known. Known fields: cacheSize, path"),
    ],
)
def test_whatever_a_document_holds_it_is_said(value: object, said: str) -> None:
    assert said_of(value, Inner, "") == said


def test_what_is_null_is_not_there_and_what_is_unused_may_be_anything() -> None:
    assert decode({"whole": None, "unused": {1: [None]}}, Outer).whole == 0
    assert decode({"unused": 1}, Outer) == decode({"unused": {}}, Outer) != decode({}, Outer)
    assert decode({"text": "\udcff"}, Outer).text == "\udcff"


def test_a_secret_shows_no_value() -> None:
    assert said_of({"text": 12345}, is_secret=True) == "a.text must be a text"


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "..", "a\n", "ä", "a" * 64])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SpecError):
        require_name(name, "name")


@pytest.mark.parametrize("name", ["a", "imagenet-1k", "0", "a" * 63])
def test_names(name: str) -> None:
    require_name(name, "name")


def test_documents_that_are_empty_are_left_out() -> None:
    assert [*load_documents("---\n---\na: 1\n---\nb: 2\n", "f")] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secret-key: hush\nsecret-key: hush\n", r"f\.yaml, line 2, column 1: this field is given twice"),
        ("secret-key: [hush\n", r"f\.yaml, line 2"),
        ("a: &x hush\nb: *x\n", r"aliases \(\*name\) are not allowed"),
        ("a: !!python/name:os.system hush\n", "could not determine a constructor"),
        ("secret-key: !hush\n", "could not determine a constructor"),
        ("secret-key: !hush!hush\n", "found undefined tag handle"),
        ("%hush\n---\na: b\n%hush", "f.yaml"),
        ("a: \x00hush", "not valid YAML"),
        ("[" * 1000 + "hush", "no YAML|f.yaml"),
        ("- hush", "must have fields; it is a list"),
    ],
)
def test_what_is_no_yaml_is_said_without_a_piece_of_it(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        list(load_documents(text, "f.yaml"))
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_document_is_not_read_without_bound() -> None:
    with pytest.raises(SpecError, match="larger than"):
        list(load_documents("a" * (4 * 1024**2 + 1), "f"))
