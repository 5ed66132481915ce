"""What is kept is there after a restart, and a torn end takes nothing else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors_app.agentctl.discretion import fingerprint
from executors_app.agentctl.memory import Memory, Token


def test_the_last_value_is_recalled_after_a_restart(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory")
    memory.keep("generation", "", 1)
    memory.keep("generation", "", 2)
    memory.keep("prompt", "generation", True)
    memory.close()

    memory = Memory(tmp_path / "memory")
    assert (memory.recall("generation"), memory.recall("prompt", "generation")) == (2, True)
    assert memory.recall("prompt", "other") is None
    memory.close()


@pytest.mark.parametrize("torn", [b'["prompt","m2"', b'["prompt","m2",true]', b"\0\0\0", b"[]\n", b"5\n"])
def test_a_torn_end_is_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "memory"
    memory = Memory(path)
    memory.keep("prompt", "m1", True)
    memory.close()
    with path.open("ab") as file:
        file.write(torn)

    memory = Memory(path)
    assert (memory.recall("prompt", "m1"), memory.recall("prompt", "m2")) == (True, None)
    memory.keep("prompt", "m3", True)
    memory.close()

    memory = Memory(path)
    assert memory.recall("prompt", "m3") is True
    memory.close()


def test_a_damaged_entry_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b'["prompt","m1",true]\n["prompt",#\n["prompt","m3",true]\n')

    for _ in range(2):
        memory = Memory(path)
        assert [memory.recall("prompt", f"m{number}") for number in (1, 2, 3)] == [True, None, True]
        memory.close()


def test_what_is_superseded_is_thrown_out_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_text("".join(f'["generation","",{generation}]\n' for generation in range(1100)))
    before = path.stat().st_size

    memory = Memory(path)
    assert memory.recall("generation") == 1099
    assert path.stat().st_size < before / 100
    assert path.stat().st_mode & 0o777 == 0o600
    memory.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"resume_token":5}', b'{"resume_token":["x"]}'])
def test_a_damaged_token_file_is_no_token(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "token.json"
    assert Token(path).keep("conversation", "uuid") is True
    kept = Token(path)
    assert (kept.value, kept.last_message_uuid) == ("conversation", "uuid")
    assert kept.fingerprint == fingerprint("conversation") != fingerprint("another")
    assert kept.keep("conversation", "uuid") is False

    path.write_bytes(damage)

    assert Token(path).value is None
    assert Token(path).fingerprint is None
