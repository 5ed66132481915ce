"""The store of a chat keeps each acknowledged entry exactly once, and decides what is sent to the model."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executors_app.agentctl import conversation_store as module
from executors_app.agentctl.conversation_store import (
    AGENT,
    USER,
    WITHDRAWN,
    ConversationEntry,
    ConversationGone,
    ConversationStore,
)
from executors_app.agentctl.drivers.openai_chat_api import ChatProvider, ServerSentEvents, build_messages
from tests.agents.conftest import ROOT
from tests.waiting import eventually

HELLO = [ConversationEntry("m1", USER, "hello"), ConversationEntry("m1", AGENT, "hi \u2028 there\nfriend")]


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "conversations")


def store_conversation(store: ConversationStore, entries: list[ConversationEntry]) -> str:
    conversation = store.create()
    for entry in entries:
        conversation.append(entry)
    conversation.close()
    return conversation.id


def read(store: ConversationStore, conversation_id: str) -> tuple[list[ConversationEntry], int]:
    conversation = store.open(conversation_id)
    conversation.close()
    return list(conversation.entries), conversation.lost


def test_appended_entries_are_read_back_and_files_are_private(store: ConversationStore, tmp_path: Path) -> None:
    conversation_id = store_conversation(store, HELLO)

    assert read(store, conversation_id) == (HELLO, 0)
    file = tmp_path / "conversations" / f"{conversation_id}.jsonl"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_duplicate_entry_is_kept_once(store: ConversationStore) -> None:
    assert read(store, store_conversation(store, [*HELLO, *HELLO])) == (HELLO, 0)


def test_withdrawn_prompt_is_not_sent_again(store: ConversationStore) -> None:
    refused = [ConversationEntry("m2", USER, "again?"), ConversationEntry("m2", WITHDRAWN, "")]

    assert read(store, store_conversation(store, [*HELLO, *refused])) == (HELLO, 0)


@pytest.mark.parametrize(
    "torn", [b'{"key": "m2", "role": "us', b"\0" * 40, b'{"key": "m2", "role": "user", "text": "cut just before"}']
)
def test_torn_end_is_truncated_and_the_next_entry_is_whole(
    torn: bytes, store: ConversationStore, tmp_path: Path
) -> None:
    conversation_id = store_conversation(store, HELLO)
    with (tmp_path / "conversations" / f"{conversation_id}.jsonl").open("ab") as file:
        file.write(torn)

    conversation = store.open(conversation_id)
    conversation.append(ConversationEntry("m3", USER, "go on"))
    conversation.close()

    assert (conversation.lost, conversation.entries) == (len(torn), [*HELLO, ConversationEntry("m3", USER, "go on")])
    assert read(store, conversation_id) == ([*HELLO, ConversationEntry("m3", USER, "go on")], 0)


def test_damage_in_the_middle_loses_only_the_damaged_lines(store: ConversationStore, tmp_path: Path) -> None:
    conversation_id = store_conversation(store, HELLO)
    file = tmp_path / "conversations" / f"{conversation_id}.jsonl"
    damage = [b'{"key": 7}', b"[]", b"\xff\xfe"]
    file.write_bytes(b"\n".join([*damage, file.read_bytes()]))

    assert read(store, conversation_id) == (HELLO, sum(map(len, damage)))


def test_entry_that_does_not_fit_on_the_disk_leaves_nothing(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = store.create()
    conversation.append(HELLO[0])

    def write_partly(fd: int, data: bytes, offset: int) -> int:
        os.pwrite(fd, data[:7], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(module, "write_all", write_partly)
        with pytest.raises(OSError, match="No space"):
            conversation.append(HELLO[1])
    conversation.append(HELLO[1])
    conversation.close()

    assert read(store, conversation.id) == (HELLO, 0)


def test_lone_surrogate_costs_one_character(store: ConversationStore) -> None:
    assert read(store, store_conversation(store, [ConversationEntry("m1", USER, "a\ud83d")]))[0] == [
        ConversationEntry("m1", USER, "a?")
    ]


def test_conversation_of_another_store_is_not_found(store: ConversationStore, tmp_path: Path) -> None:
    conversation_id = store_conversation(ConversationStore(tmp_path / "other"), HELLO)

    with pytest.raises(ConversationGone):
        store.open(conversation_id)
    with pytest.raises(ConversationGone):
        store.open(f"../other/{conversation_id}")


APPENDS_FOR_EVER = """
import itertools, sys
from pathlib import Path
from executors_app.agentctl.conversation_store import ConversationEntry, ConversationStore
conversation = ConversationStore(Path(sys.argv[1])).create()
print(conversation.id, flush=True)
for number in itertools.count():
    conversation.append(ConversationEntry(f"m{number}", "user", str(number) * 2000))
    print(number, flush=True)
"""


def test_kill_loses_and_duplicates_no_acknowledged_entry(store: ConversationStore, tmp_path: Path) -> None:
    command = [sys.executable, "-c", APPENDS_FOR_EVER, str(tmp_path / "conversations")]
    recording = tmp_path / "said"
    with recording.open("wb") as output:
        writer = subprocess.Popen(command, stdout=output, env={"PYTHONPATH": str(ROOT)})
    try:
        eventually(lambda: len(recording.read_bytes().splitlines()) > 20)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    conversation_id, *acknowledged = recording.read_text().split()

    entries, _ = read(store, conversation_id)

    assert [entry.key for entry in entries] == [f"m{number}" for number in range(len(entries))]
    assert len(entries) - len(acknowledged) in (0, 1)


@pytest.mark.parametrize(
    ("entries", "limit", "messages", "left_out"),
    [
        ([("user", "a"), ("assistant", "b"), ("user", "c")], 99, [("user", "a"), ("assistant", "b"), ("user", "c")], 0),
        ([("user", "a"), ("user", "b")], 99, [("user", "a\n\nb")], 0),
        ([("user", "aaa"), ("assistant", "bbb"), ("user", "ccc")], 7, [("user", "ccc")], 2),
        ([("user", "aaa"), ("assistant", "bbb"), ("user", "ä" * 50)], 7, [("user", "ä" * 50)], 2),
    ],
    ids=["unchanged", "two prompts in a row", "the oldest is left out", "the newest is sent at any size"],
)
def test_prompt_is_sent_with_as_much_history_as_fits(
    entries: list[tuple[str, str]], limit: int, messages: list[tuple[str, str]], left_out: int
) -> None:
    earlier_entries = [ConversationEntry(f"m{number}", role, text) for number, (role, text) in enumerate(entries)]

    sent, missing = build_messages(earlier_entries, limit)

    assert ([(message["role"], message["content"]) for message in sent], missing) == (messages, left_out)


@pytest.mark.parametrize(
    ("env", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy:1", "no_proxy": "internal, .example.org"}, "http://proxy:1"),
        ({"https_proxy": "http://proxy:1", "no_proxy": "api.example.com"}, None),
        ({"all_proxy": "http://proxy:2", "NO_PROXY": "ple.com"}, "http://proxy:2"),
        ({"https_proxy": "http://proxy:1", "no_proxy": ".example.com"}, None),
        ({"http_proxy": "http://proxy:1"}, None),
        ({"https_proxy": "http://proxy:1", "no_proxy": "*"}, None),
    ],
)
def test_proxy_is_taken_from_the_environment(
    env: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    provider = ChatProvider.of(
        {"OPENAI_BASE_URL": "https://api.example.com/v1/?v=2", "OPENAI_API_KEY": "k3y", **env}, "m"
    )

    assert (provider.url, provider.proxy) == ("https://api.example.com/v1/chat/completions?v=2", proxy)
    assert "k3y" not in repr(provider)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_do_not_depend_on_how_bytes_are_split(size: int) -> None:
    raw = "data: {ä\r\ndata:b}\r\n\r\n: nothing\n\nevent: x\ndata: two\n\ndata: [DONE]".encode()
    events = ServerSentEvents()

    seen = [data for start in range(0, len(raw), size) for data in events.feed(raw[start : start + size])]

    assert [*seen, *events.end()] == ["{ä\nb}".encode(), b"two", b"[DONE]"]
