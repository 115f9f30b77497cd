from __future__ import annotations

import pytest

from prefeed.errors import SpecError
from prefeed.sampleset.yaml_fields import Section, load_documents, require_name


def test_an_unknown_field_is_named_with_its_path_and_what_is_known() -> None:
    section = Section({"cacheSise": 1}, "spec.cache.levels[0]")
    section.take("cacheSize")
    section.take("path")
    with pytest.raises(SpecError) as caught:
        section.end()
    assert str(caught.value) == (
        "spec.cache.levels[0].cacheSise is not known. Did you mean cacheSize? Known there: cacheSize, path"
    )


def test_a_missing_field_that_was_meant_by_another_is_said_so() -> None:
    with pytest.raises(SpecError) as caught:
        Section({"partition": 1, "size": 2}, "spec").whole("partitions")
    assert str(caught.value) == "spec.partitions is missing: partition stands there, which is not known"


def test_a_number_with_a_unit_names_it() -> None:
    with pytest.raises(SpecError, match="a whole number of MiB, at least 1, not '8GiB'"):
        Section({"cacheSize": "8GiB"}, "level").whole("cacheSize", least=1, unit="MiB")


@pytest.mark.parametrize(
    ("method", "value", "said"),
    [
        ("text", 5, "a.f must be a text, not 5"),
        ("text", None, "a.f is missing"),
        ("whole", True, "a.f must be a whole number of at least 0, not True"),
        ("whole", "5", "a.f must be a whole number of at least 0, not '5'"),
        ("whole", -1, "a.f must be a whole number of at least 0, not -1"),
        ("flag", "yes", "a.f must be true or false, not 'yes'"),
        ("texts", ["a", 1], "a.f must be a list of texts, not a list"),
        ("section", 5, "a.f must have fields; it is a number"),
        ("sections", {}, "a.f must be a list, not a mapping"),
        ("name", "../x", "a.f must be made of lower-case letters"),
    ],
)
def test_wrong_types_are_refused(method: str, value: object, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace(".", r"\.")):
        getattr(Section({"f": value}, "a"), method)("f")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "1", True])
def test_numbers_are_numbers(value: object) -> None:
    with pytest.raises(SpecError, match="a number that is not negative"):
        Section({"f": value}, "a").number("f", 0.0)


def test_a_secret_section_shows_no_value() -> None:
    with pytest.raises(SpecError) as caught:
        Section({"f": 12345}, "a", secret=True).text("f")
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "..", "a\n", "ä", "a" * 64])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SpecError):
        require_name(name, "name")


@pytest.mark.parametrize("name", ["a", "imagenet-1k", "0", "a" * 63])
def test_names(name: str) -> None:
    require_name(name, "name")


def test_documents_that_are_empty_are_left_out() -> None:
    assert [section.fields for section in load_documents("---\n---\na: 1\n---\nb: 2\n", "f")] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secret-key: hush\nsecret-key: hush\n", r"f\.yaml, line 2, column 1: this field is given twice"),
        ("secret-key: [hush\n", r"f\.yaml, line 2"),
        ("a: &x hush\nb: *x\n", r"aliases \(\*name\) are not taken"),
        ("a: !!python/name:os.system hush\n", "could not determine a constructor"),
        ("secret-key: !hush\n", "could not determine a constructor"),
        ("secret-key: !hush!hush\n", "found undefined tag handle"),
        ("%hush\n---\na: b\n%hush", "f.yaml"),
        ("a: \x00hush", "no YAML"),
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
