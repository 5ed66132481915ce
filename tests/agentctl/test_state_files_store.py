"""The durable store: values survive a restart, and damage affects only the damaged entry; kills for lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.agentctl.state_files import DurableStore, TokenFile
from executors_app.machine.process import identity
from executors_app.wire.token_redaction import token_fingerprint


def test_last_value_is_recalled_after_a_restart(tmp_path: Path) -> None:
    memory = DurableStore(tmp_path / "memory")
    memory.put("generation", "", 1)
    memory.put("generation", "", 2)
    memory.put("prompt", "generation", True)
    memory.close()

    memory = DurableStore(tmp_path / "memory")
    assert (memory.get("generation"), memory.get("prompt", "generation")) == (2, True)
    assert memory.get("prompt", "other") is None
    memory.close()


@pytest.mark.parametrize("torn", [b'["prompt","m2"', b'["prompt","m2",true]', b"\0\0\0", b"[]\n", b"5\n"])
def test_torn_end_is_truncated(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "memory"
    memory = DurableStore(path)
    memory.put("prompt", "m1", True)
    memory.close()
    with path.open("ab") as file:
        file.write(torn)

    memory = DurableStore(path)
    assert (memory.get("prompt", "m1"), memory.get("prompt", "m2")) == (True, None)
    memory.put("prompt", "m3", True)
    memory.close()

    memory = DurableStore(path)
    assert memory.get("prompt", "m3") is True
    memory.close()


def test_damaged_entry_loses_no_other(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b'["prompt","m1",true]\n["prompt",#\n["prompt","m3",true]\n')

    for _ in range(2):
        memory = DurableStore(path)
        assert [memory.get("prompt", f"m{number}") for number in (1, 2, 3)] == [True, None, True]
        memory.close()


def test_superseded_entries_are_removed_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_text("".join(f'["generation","",{generation}]\n' for generation in range(1100)))
    before = path.stat().st_size

    memory = DurableStore(path)
    assert memory.get("generation") == 1099
    assert path.stat().st_size < before / 100
    assert path.stat().st_mode & 0o777 == 0o600
    memory.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"resume_token":5}', b'{"resume_token":["x"]}'])
def test_damaged_token_file_holds_no_token(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "token.json"
    assert TokenFile(path).save("conversation", "uuid") is True
    kept = TokenFile(path)
    assert (kept.value, kept.last_message_uuid) == ("conversation", "uuid")
    assert kept.fingerprint == token_fingerprint("conversation") != token_fingerprint("another")
    assert kept.save("conversation", "uuid") is False

    path.write_bytes(damage)

    assert TokenFile(path).value is None
    assert TokenFile(path).fingerprint is None


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
