"""New names in place of old ones, before anything is parsed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from prefeed.cli.main import cli
from prefeed.old_names import renamed

WITH_VALUES = {
    "delete": {"--home"},
    "stage": {"--to", "--size", "--order", "--home"},
    "sync": {"--exclude", "--include", "--start", "-s", "--end", "-e", "--home"},
}


@pytest.mark.parametrize(
    ("typed", "meant", "num_notes"),
    [
        ("job rmr url a --dry --yes", "delete url a --dry-run --yes", 2),
        ("-v job -v rmr url", "-v delete -v url", 1),
        ("job terminate one", "job stop one", 1),
        ("unstage src", "stage delete src", 1),
        ("stage --home h --list --json", "stage list --home h --json", 1),
        ("sync -uf a b", "sync -u --force-update a b", 1),
        ("job sync -f a b", "sync --force-update a b", 2),
        ("job sync a b -- --dry", "sync a b -- --dry", 1),
        ("sync -s f -e f -f a b", "sync -s f -e f --force-update a b", 1),
        ("sync --exclude=-f a b", "sync --exclude=-f a b", 0),
        ("sync --exclude -f a b", "sync --exclude -f a b", 0),
        ("sync --exclude -f -f a b", "sync --exclude -f --force-update a b", 1),
        ("sync -us -f -f a b", "sync -us -f --force-update a b", 1),
        ("sync -s --dry a b --dry", "sync -s --dry a b --dry-run", 1),
        ("stage a --to --list", "stage a --to --list", 0),
        ("delete a --home --dry", "delete a --home --dry", 0),
        ("-- delete a b --dry", "-- delete a b --dry-run", 1),
        ("-- delete a b --dry-run", "-- delete a b --dry-run", 0),
        ("job apply -f sync", "job apply -f sync", 0),
        ("run stage --list", "run stage --list", 0),
        ("stage job", "stage job", 0),
        ("warm job sync", "warm job sync", 0),
        ("-v", "-v", 0),
        ("", "", 0),
    ],
)
def test_words(typed: str, meant: str, num_notes: int) -> None:
    words, notes = renamed(typed.split(), WITH_VALUES.__getitem__)

    assert words == meant.split()
    assert len(notes) == num_notes
    assert renamed(words, WITH_VALUES.__getitem__) == (words, []) or "--" in words


def test_the_command_line_knows_its_options_with_values() -> None:
    """A value that looks like an old option stays one: DST is missing, and no line names a new option."""
    result = CliRunner().invoke(cli, ["sync", "--exclude", "-f", "src"])

    assert result.exit_code == 2
    assert result.stderr.startswith("prefeed: missing argument 'DST'")
