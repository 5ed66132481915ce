"""What the evidence of a receipt says in words."""

from typing import Any

import pytest

from sessions_app.recovery.rules.evidence import MAX_LENGTH, evidence_sentences


@pytest.mark.parametrize(
    ("evidence", "sentences"),
    [
        ({}, []),
        ({"agent_pid": 41}, ["The agent’s process has the id 41."]),
        ({"journal_lines_drained": 1}, ["1 line that it had written meanwhile was read."]),
        ({"journal_lines_drained": 2}, ["2 lines that it had written meanwhile were read."]),
        ({"journal_lines_drained": 0}, []),
        ({"fingerprint_before": "a", "fingerprint_after": "a"}, ["Its conversation has the same id as before."]),
        ({"fingerprint_before": "a", "fingerprint_after": "b"}, ["Its conversation has another id than before."]),
        (
            {"fingerprint_before": None, "fingerprint_after": "b"},
            ["It named its conversation, which had no known id before."],
        ),
        ({"fingerprint_before": "a", "fingerprint_after": None}, []),
        ({"replayed_messages": 4, "log_messages": 5}, ["It replayed 4 messages; the log has 5."]),
        ({"replayed_messages": 1}, ["It replayed 1 message."]),
        ({"replayed_messages": 0, "log_messages": 5}, []),
        ({"cwd_matches": True}, ["It works in the same directory as before."]),
        ({"cwd_matches": False}, ["It works in another directory than before."]),
        ({"cwd_matches": None}, []),
        ({"completed_turns": 1}, ["1 turn had been completed before."]),
        ({"prompts_held": 2}, ["2 prompts were held back."]),
        (
            {"workspace_head": {"branch": "main", "head": "a" * 40}, "workspace_head_matches": True},
            ["The workspace is where the newest snapshot was: main (aaaaaaaaaaaa)."],
        ),
        (
            {
                "workspace_head": {"branch": "main", "head": "a" * 40},
                "workspace_head_before": {"branch": "other", "head": ""},
                "workspace_head_matches": False,
            },
            ["The workspace is at main (aaaaaaaaaaaa); at the newest snapshot it was at other."],
        ),
        (
            {"injection": {"entries_told": 7, "entries_cut": 1}, "injected_with": "m"},
            ["A prompt carried 7 entries of the conversation; 1 older one was left out."],
        ),
        (
            {"injection": {"entries_told": 1, "entries_cut": 0}},
            ["The next prompt carries 1 entry of the conversation."],
        ),
        ({"injection": {"entries_told": None}}, []),
        ({"log_is_a_prefix": True}, ["The newest output before it may be missing from the log."]),
        ({"log_is_a_prefix": False}, []),
        ({"message": "the agent ended"}, ["The agent ended."]),
        ({"agent": {"name": "codex-acp", "version": "0.9"}}, ["The agent calls itself codex-acp 0.9."]),
        ({"timings_ms": {"initialize": 20}, "generation": 3}, []),
    ],
)
def test_evidence_in_words(evidence: dict[str, Any], sentences: list[str]) -> None:
    assert evidence_sentences(evidence) == sentences


KEYS = (
    "agent", "agent_pid", "journal_lines_drained", "fingerprint_before", "fingerprint_after", "known_by", "injection",
    "replayed_messages", "log_messages", "replay_compared", "completed_turns", "tool_calls_interrupted", "cwd_matches",
    "workspace_head", "workspace_head_before", "workspace_head_matches", "workspace_rebuilt", "workspace_lacks",
    "workspace_restored", "work_outside_turn", "injected_with", "log_is_a_prefix", "prompts_held", "accepted_by_user",
    "memory_check", "message", "capability_note",
)  # fmt: skip


@pytest.mark.parametrize("value", [None, "", " ", [], {}, [1], {"a": {"b": 1}}, 1.5], ids=repr)
def test_value_of_an_unexpected_type_says_nothing(value: object) -> None:
    assert evidence_sentences(dict.fromkeys(KEYS, value)) == []


def test_long_text_is_cut() -> None:
    (sentence,) = evidence_sentences({"message": "x" * 10_000})
    assert len(sentence) <= MAX_LENGTH + 1
