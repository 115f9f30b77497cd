from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefeed.errors import SpecError
from prefeed.sampleset.options import MAPPED, MOUNT_OPTIONS, NO_EFFECT, REFUSED, take_options
from prefeed.sampleset.strict import Section

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "sample-sets.md"


def take(**options: object) -> dict[str, object]:
    return dict(take_options(Section({k.replace("_", "-"): v for k, v in options.items()}, "o")))


def test_the_guide_has_every_option_as_it_is() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (mapped|no effect|refused) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: (effect, meaning) for name, effect, meaning in rows} == {
        name: (option.effect, option.meaning) for name, option in MOUNT_OPTIONS.items()
    }


def test_each_is_mapped_or_has_a_reason() -> None:
    assert {option.effect for option in MOUNT_OPTIONS.values()} == {MAPPED, NO_EFFECT, REFUSED}
    assert all(len(option.meaning) > 20 for option in MOUNT_OPTIONS.values())


def test_what_is_not_given_is_not_there() -> None:
    assert take() == {}
    assert take(prefetch=0, writeback=False) == {"prefetch": 0, "writeback": False}
    assert take_options(None) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"writeback": True}, r"o\.writeback: the source is only read"),
        ({"free_space_ratio": 1}, r"o\.free-space-ratio must be less than 1"),
        ({"metrics": "here"}, r"o\.metrics: 'here' is no address"),
        ({"get_timeout": 0}, r"o\.get-timeout must be at least 1 second"),
        ({"get_timeout": "60s"}, r"o\.get-timeout must be a whole number"),
        ({"sub_dir": "a/../../b"}, r"o\.sub-dir must name a directory below the source, without \.\."),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        take(**options)
