"""The kernel's count of processes killed for lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.agentctl.process import identity


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("oom_kill_disable 0\nunder_oom 0\n", 0),
        ("oom_kill many\n", 0),
        ("\xff", 0),
    ],
)
def test_oom_kills_are_read_from_both_cgroup_versions(tmp_path: Path, text: str, count: int) -> None:
    place = tmp_path / "events"
    place.write_text(text)
    assert identity.count_oom_kills((tmp_path / "absent", place)) == count


def test_missing_counter_is_zero(tmp_path: Path) -> None:
    assert identity.count_oom_kills((tmp_path / "absent",)) == 0
