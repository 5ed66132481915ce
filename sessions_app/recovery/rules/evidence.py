"""The evidence of a receipt in words (pure). Pages show these sentences first, and the raw record behind a toggle.

A record may come from an earlier release or an import: what has an unexpected type is only in the raw record.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sessions_app.kernel.rules.wording import count_text, plural

MAX_LENGTH: Final = 600
"""Characters of a sentence that an agent or an error had a part in."""


def evidence_sentences(evidence: Mapping[str, Any]) -> list[str]:
    """Return what ``evidence`` shows, a sentence for each thing that is known, most telling first."""
    return [sentence for describe in _SENTENCES for sentence in describe(evidence)]


def _process(evidence: Mapping[str, Any]) -> Iterator[str]:
    pid = _number(evidence.get("agent_pid"))
    if pid:
        yield f"The agent’s process has the id {pid}."


def _missed_lines(evidence: Mapping[str, Any]) -> Iterator[str]:
    lines = _number(evidence.get("journal_lines_drained"))
    if lines:
        yield f"{count_text(lines, 'line')} that it had written meanwhile {plural(lines, 'was', 'were')} read."


def _conversation(evidence: Mapping[str, Any]) -> Iterator[str]:
    before, after = _text(evidence.get("fingerprint_before")), _text(evidence.get("fingerprint_after"))
    if before and after == before:
        yield "Its conversation has the same id as before."
    elif before and after:
        yield "Its conversation has another id than before."
    elif after:
        yield "It named its conversation, which had no known id before."


def _same_id(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _as_written(evidence.get("known_by"))


def _replay(evidence: Mapping[str, Any]) -> Iterator[str]:
    replayed, in_log = _number(evidence.get("replayed_messages")), _number(evidence.get("log_messages"))
    if not replayed:
        return
    if in_log is None:
        yield f"It replayed {count_text(replayed, 'message')}."
    else:
        yield f"It replayed {count_text(replayed, 'message')}; the log has {in_log:,}."


def _compared(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _as_written(evidence.get("replay_compared"))


def _turns(evidence: Mapping[str, Any]) -> Iterator[str]:
    turns = _number(evidence.get("completed_turns"))
    if turns:
        yield f"{count_text(turns, 'turn')} had been completed before."


def _tool_calls(evidence: Mapping[str, Any]) -> Iterator[str]:
    calls = _number(evidence.get("tool_calls_interrupted"))
    if calls:
        yield f"{count_text(calls, 'tool call')} {plural(calls, 'is', 'are')} interrupted in the log."


def _directory(evidence: Mapping[str, Any]) -> Iterator[str]:
    matches = evidence.get("cwd_matches")
    if matches is True:
        yield "It works in the same directory as before."
    elif matches is False:
        yield "It works in another directory than before."


def _head(evidence: Mapping[str, Any]) -> Iterator[str]:
    matches = evidence.get("workspace_head_matches")
    now = _head_text(evidence.get("workspace_head"))
    before = _head_text(evidence.get("workspace_head_before"))
    if matches is True and now:
        yield f"The workspace is where the newest snapshot was: {now}."
    elif matches is False and now and before:
        yield f"The workspace is at {now}; at the newest snapshot it was at {before}."
    elif now:
        yield f"The workspace is at {now}."


def _head_text(head: Any) -> str:
    if not isinstance(head, Mapping):
        return ""
    branch, commit = _text(head.get("branch")), _text(head.get("head"))[:12]
    if not commit:
        return branch
    return f"{branch} ({commit})"


def _rebuilt(evidence: Mapping[str, Any]) -> Iterator[str]:
    source = _text(evidence.get("workspace_rebuilt"))
    if source:
        yield f"The workspace was lost, and rebuilt from: {source}."
    yield from _as_written(evidence.get("workspace_lacks"))
    yield from _as_written(evidence.get("workspace_restored"))


def _outside_work(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _as_written(evidence.get("work_outside_turn"))


def _history(evidence: Mapping[str, Any]) -> Iterator[str]:
    facts = evidence.get("injection")
    if not isinstance(facts, Mapping):
        return
    entries, left_out = _number(facts.get("entries_told")), _number(facts.get("entries_cut"))
    if entries is None:
        return
    sentence = f"The next prompt carries {plural(entries, '1 entry', '{:,} entries')} of the conversation"
    if _text(evidence.get("injected_with")):
        sentence = f"A prompt carried {plural(entries, '1 entry', '{:,} entries')} of the conversation"
    if left_out:
        sentence += f"; {plural(left_out, '1 older one was', '{:,} older ones were')} left out"
    yield f"{sentence}."


def _partial_log(evidence: Mapping[str, Any]) -> Iterator[str]:
    if evidence.get("log_is_a_prefix") is True:
        yield "The newest output before it may be missing from the log."


def _held(evidence: Mapping[str, Any]) -> Iterator[str]:
    prompts = _number(evidence.get("prompts_held"))
    if prompts:
        yield f"{count_text(prompts, 'prompt')} {plural(prompts, 'was', 'were')} held back."


def _accepted(evidence: Mapping[str, Any]) -> Iterator[str]:
    contradiction = _text(evidence.get("accepted_by_user"))
    if contradiction:
        yield f"A user accepted this: {_as_sentence(contradiction)}"


def _memory_check(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _as_written(evidence.get("memory_check"))


def _agent(evidence: Mapping[str, Any]) -> Iterator[str]:
    agent = evidence.get("agent")
    if not isinstance(agent, Mapping):
        return
    named = f"{_text(agent.get('name'))} {_text(agent.get('version'))}".strip()
    if named:
        yield f"The agent calls itself {named[:MAX_LENGTH]}."


def _notes(evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _as_written(evidence.get("message"))
    yield from _as_written(evidence.get("capability_note"))


_SENTENCES: Final[tuple[Callable[[Mapping[str, Any]], Iterator[str]], ...]] = (
    _notes, _compared, _conversation, _same_id, _replay, _memory_check, _history, _process, _missed_lines, _directory,
    _head, _rebuilt, _outside_work, _turns, _tool_calls, _partial_log, _held, _accepted, _agent,
)  # fmt: skip


def _as_written(value: Any) -> Iterator[str]:
    text = _text(value)
    if text:
        yield _as_sentence(text)


def _as_sentence(text: str) -> str:
    text = text[:MAX_LENGTH]
    if text[-1] in ".!?…":
        return text[0].upper() + text[1:]
    return f"{text[0].upper()}{text[1:]}."


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    return ""


def _number(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None
