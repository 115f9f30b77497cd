from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefeed.errors import SpecError
from prefeed.sampleset.documents import decode
from prefeed.sampleset.spec import MAPPED, NO_EFFECT, REFUSED, MountOptions, mount_options

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "sample-sets.md"


def options_of(**options: object) -> MountOptions:
    return decode({name.replace("_", "-"): value for name, value in options.items()}, MountOptions, "o")


def take(**options: object) -> dict[str, object]:
    return options_of(**options).given()


def test_the_guide_has_every_option_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (mapped|no effect|refused) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: (effect, meaning) for name, effect, meaning in rows} == {
        name: (option.effect, option.meaning) for name, option in mount_options().items()
    }


def test_each_is_mapped_or_has_a_reason() -> None:
    assert {option.effect for option in mount_options().values()} == {MAPPED, NO_EFFECT, REFUSED}
    assert all(len(option.meaning) > 20 for option in mount_options().values())


def test_what_is_not_given_is_not_there() -> None:
    assert take() == {}
    assert take(prefetch=0, writeback=False) == {"prefetch": 0, "writeback": False}


@pytest.mark.parametrize("given", ["0.1", "1e-1", ".1", "+0.10", 0.1], ids=repr)
def test_the_ratio_may_be_a_text_as_in_the_original(given: object) -> None:
    """Its type there is a string; those of all other numbers are numbers."""
    assert options_of(free_space_ratio=given).free_ratio == 0.1


@pytest.mark.parametrize(
    "given", ["10%", "", " 0.1", "-0.1", "nan", "inf", "0_1", "\u0661", "0x1p-4", True, -0.1, []], ids=repr
)
def test_what_is_no_ratio_is_refused_with_what_to_write(given: object) -> None:
    with pytest.raises(
        SpecError, match=r"o\.free-space-ratio must be a number that is not negative, such as 0\.1 or '0\.1', not "
    ):
        take(free_space_ratio=given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"free_space_ratio": "1"}, r"o\.free-space-ratio must be less than 1"),
        ({"free_space_ratio": "1e999"}, r"o\.free-space-ratio must be less than 1"),
        (
            {"cache_size": "1024"},
            r"o\.cache-size must be a whole number of at least 0, not '1024': write it without quotes",
        ),
        (
            {"attr_cache": "0.5"},
            r"o\.attr-cache must be a number that is not negative, not '0\.5': write it without quotes",
        ),
        ({"sub_dir": 2012}, r"o\.sub-dir must be a text, not 2012: put it into quotes"),
        ({"enable_xattr": "true"}, r"o\.enable-xattr must be true or false, not 'true'$"),
        ({"writeback": True}, r"o\.writeback: the source is only read"),
        ({"free_space_ratio": 1}, r"o\.free-space-ratio must be less than 1"),
        ({"metrics": "here"}, r"o\.metrics: 'here' is not an address"),
        ({"get_timeout": 0}, r"o\.get-timeout must be a whole number of seconds, at least 1, not 0"),
        ({"get_timeout": "60s"}, r"o\.get-timeout must be a whole number"),
        ({"sub_dir": "a/../../b"}, r"o\.sub-dir must name a directory below the source, without \.\."),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        take(**options)
