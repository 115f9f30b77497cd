from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.config import Config
from prefeed.errors import JobError
from prefeed.sources.mounts import mounts_by_number
from prefeed.transfer import mounted
from prefeed.transfer.mounted import SOURCE, TARGET, MountRecord, MountTracker, first_below, is_below

BEFORE = """\
20 1 0:20 / / rw - ext4 /dev/a rw
30 20 0:30 / /data rw - nfs4 server:/data rw
31 20 0:31 / /data/auto rw - autofs auto rw
32 20 0:32 / /elsewhere rw - tmpfs tmpfs rw
"""


def record(home: Path, *, source: str = "/a", target: str = "/b") -> MountRecord:
    return MountRecord(source, target, Config(home=home))


def test_what_is_noted_is_there_for_the_next_sync_of_the_same_places_alone(tmp_path: Path) -> None:
    odd = "m/\udcff\n"
    first = record(tmp_path)
    first.add(SOURCE, "", "/")
    first.add(SOURCE, odd, "/a/m")
    first.add(TARGET, "", "/b")
    again = record(tmp_path)

    assert again.before == {SOURCE: {odd: "/a/m"}, TARGET: {"": "/b"}}
    assert (again.file.stat().st_mode & 0o777, again.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert record(tmp_path, target="/c").before == record(tmp_path, source="/a/m").before == {SOURCE: {}, TARGET: {}}
    again.add(SOURCE, odd, "/elsewhere")  # which is not what was there
    again.add(SOURCE, "n", "/n")
    assert record(tmp_path).before == {SOURCE: {odd: "/a/m", "n": "/n"}, TARGET: {"": "/b"}}
    again.replace(SOURCE, {"n": "/n"})
    assert record(tmp_path).before == {SOURCE: {"n": "/n"}, TARGET: {"": "/b"}}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "mounts": 3}', '{"format": 1, "mounts": {}}']
)
def test_a_damaged_record_is_not_taken_for_an_empty_one(tmp_path: Path, text: str) -> None:
    file = record(tmp_path).file
    file.parent.mkdir()
    file.write_text(text)

    with pytest.raises(JobError, match=f"{file} is damaged"):
        record(tmp_path)


def test_paths_lie_in_directories_and_not_beside_them() -> None:
    assert is_below("a/b/c", {"a/b"})
    assert not is_below("a/bc", {"a/b"})
    assert not is_below("a/b", {"a/b"})
    assert first_below(["a/x", "m/1", "m/n/2"], {"m", "m/n", "z"}) == {"m": "m/1", "m/n": "m/n/2"}


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (BEFORE, []),
        (BEFORE.replace("/data rw", "/moved rw", 1), ["/data was mounted"]),
        (BEFORE.replace("nfs4 server", "tmpfs x"), ["/data was mounted"]),
        ("".join(line for line in BEFORE.splitlines(True) if "32" not in line), []),
        (BEFORE + "40 30 0:40 / /data/m rw - nfs4 server:/data/m rw\n", []),
        (BEFORE + "40 31 0:40 / /data/m rw - tmpfs x rw\n", []),
        (BEFORE + "40 30 0:40 / /data/m rw - tmpfs x rw\n", ["/data/m was mounted while"]),
    ],
)
def test_mounts_that_come_and_go_are_said_where_they_matter(
    monkeypatch: pytest.MonkeyPatch, then: str, said: list[str]
) -> None:
    now = [BEFORE]
    monkeypatch.setattr(mounted, "mounts_by_number", lambda: mounts_by_number(now[0]))
    mounts = MountTracker("/data")
    mounts.record_mount("", 30)
    now[0] = then
    if "/data/m" in then:
        mounts.record_mount("m", 40)

    assert [sentence[: len(start)] for sentence, start in zip(mounts.changes(), said, strict=True)] == said


def test_what_a_link_leads_to_matters_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [BEFORE.replace("/elsewhere", f"{tmp_path}/elsewhere")]
    monkeypatch.setattr(mounted, "mounts_by_number", lambda: mounts_by_number(now[0]))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to("../elsewhere")
    mounts = MountTracker(str(tmp_path / "root"))
    now[0] = BEFORE.replace("32", "33")
    assert not [said for said in mounts.changes() if "elsewhere" in said]
    mounts.record_link("link")

    assert [said.split()[0] for said in mounts.changes()] == [f"{tmp_path}/elsewhere"]
