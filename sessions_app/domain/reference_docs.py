"""Generate ``docs/states.md`` and ``docs/recovery.md`` from the tables in the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sessions_app.domain.derived_status import RunFacts, derive_status
from sessions_app.domain.recovery import RULES, decide
from sessions_app.domain.recovery_examples import EXAMPLES, NOW, RESUME_EXAMPLES
from sessions_app.domain.recovery_facts import Decision
from sessions_app.domain.resumability import Mode, ResumeFacts, assess, assess_mode
from sessions_app.domain.states import MACHINES, DesiredState, Machine, RunState, SessionState, TaskState, task_state
from sessions_app.domain.wait_tokens import TokenState

_GENERATED = "<!-- Written by `manage.py write_docs`. Change the tables, not this file. -->"
_TITLES = {
    "session": "Session (`task_sessions.state`)",
    "executor": "Executor (`executors_running.status`)",
    "work": "Work (`work_state`)",
    "prompt": "Prompt (the ledger)",
    "run": "Run (one turn or wait)",
}
_S, _R = SessionState, RunState
_TASKS: tuple[tuple[str, list[SessionState]], ...] = (
    ("one is STARTING or RUNNING", [_S.RUNNING, _S.ERROR]),
    ("one is WAITING_FOR_INPUT, in ERROR or COMPLETED", [_S.COMPLETED, _S.FAILED]),
    ("all are FAILED", [_S.FAILED]),
    ("anything else", []),
)
_NEWEST = (
    ("has no end and its agent is gone", RunFacts(_R.RUNNING, waited=False, process_gone=True)),
    ("was interrupted, other than in a wait", RunFacts(_R.INTERRUPTED, waited=False, process_gone=True)),
    ("was interrupted in a wait", RunFacts(_R.INTERRUPTED, waited=True, process_gone=True)),
    (
        "waits, and the key to answer it is of no use any more",
        RunFacts(_R.WAITING, waited=True, token=TokenState.EXPIRED),
    ),
    ("waits", RunFacts(_R.WAITING, waited=True, process_gone=False)),
    ("goes on", RunFacts(_R.RUNNING, waited=False, process_gone=False)),
    ("has ended, or there is none", None),
)


def build_documents() -> dict[str, str]:
    """Return the text of each document by its file name in ``docs/``."""
    return {"states.md": states_document(), "recovery.md": recovery_document()}


def state_diagram(machine: Machine) -> str:
    """Return a Mermaid diagram of a machine; moves between the same two states share one arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, move, target in machine.edges():
        arrows.setdefault((source, target), []).append(move)
    lines = [f"    {source} --> {target}: {', '.join(moves)}" for (source, target), moves in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def states_document() -> str:
    """Return ``states.md``: diagram and moves of every machine, and the derived states."""
    sections = [
        "# The machines",
        _GENERATED,
        (
            "A move that is in no table raises and changes nothing. The derived status and the task's state follow "
            "from these and are never moved by themselves."
        ),
    ]
    for machine in MACHINES:
        rows = [
            (f"`{move}`", ", ".join(sorted(map(str, sources))), str(target))
            for move, (sources, target) in machine.moves.items()
        ]
        sections += [
            f"## {_TITLES[machine.name]}",
            state_diagram(machine),
            markdown_table(("move", "from", "to"), rows),
        ]
    return _joined([*sections, *_derived_states()])


def _derived_states() -> Iterator[str]:
    """Yield the sections about states that are derived, or set by users."""
    yield "## Task (`tasks.state`)"
    yield "The first line that fits."
    said = ("a user has set it; it stays until the task is reopened", f"{TaskState.DONE}, {TaskState.CANCELLED}")
    followed = [(words, str(task_state(TaskState.TODO, states))) for words, states in _TASKS]
    yield markdown_table(("its sessions", "the task"), [said, *followed])
    yield "## Derived status"
    yield "Of the newest run; never stored."
    yield markdown_table(
        ("the newest run", "derived status"), [(words, f"`{derive_status(run)}`") for words, run in _NEWEST]
    )
    yield "## Wanted (`desired_state`)"
    words = {DesiredState.RUNNING: "it is kept running", DesiredState.STOPPED: "it was stopped, closed or archived"}
    yield markdown_table(("wanted", "means"), [(f"`{wanted}`", words[wanted]) for wanted in DesiredState])


def recovery_document() -> str:
    """Return ``recovery.md``: what a sweep decides, and whether a session can be resumed."""
    return _joined(
        [
            "# Recovery",
            _GENERATED,
            "## What a sweep decides",
            (
                "The first rule that fits decides. Each is shown with what it decides about a session that was in the "
                "middle of a turn, in a sweep at boot where nothing else is said."
            ),
            _decisions(),
            (
                "A dead execution's leftovers are ended before anything else, on proof, except where somebody else is "
                "at work on it (`foreign_lease`, `attached`, `start_under_way`). An error `unreachable` goes with the "
                "next answer."
            ),
            (
                "A session whose rows hold what cannot be (`damaged_row`: an unknown state, a negative cursor, a "
                "secret that no key opens, an execution or agent type that is not there) is said and passed over; "
                "all others recover. What a wrong clock has dated more than a day ahead is not waited for."
            ),
            "## Whether a session can be resumed",
            "The first row that fits speaks.",
            _assessments(),
            "## What a request to resume comes to",
            (
                "By row and mode: the strategy, or the code of the refusal. Rows 1 and 2 and a user's stop answer for "
                "the row under them, but a running agent is never started twice."
            ),
            _modes(),
        ]
    )


def _joined(sections: Iterable[str]) -> str:
    return "\n\n".join(sections) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a ``|`` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _decisions() -> str:
    says = {rule.name: rule.says for rule in RULES}
    rows = [
        (f"`{example.rule}`", says[example.rule], *_cells(decide(example.facts, example.observation, NOW)))
        for example in EXAMPLES
    ]
    return markdown_table(("rule", "meaning", "observed", "executor", "session", "agent", "open run"), rows)


def _cells(decision: Decision) -> tuple[str, ...]:
    code = f" `{decision.session_error_code}`" if decision.session_error_code else ""
    return (
        str(decision.observed),
        decision.executor_move or "–",
        f"{decision.session_move}{code}" if decision.session_move else "–",
        " ".join(filter(None, (decision.agent_action, decision.strategy and f"({decision.strategy})"))),
        "interrupted" if decision.interrupt_run else "as it is",
    )


def _assessments() -> str:
    rows = []
    for row, words, facts in RESUME_EXAMPLES:
        said = assess(facts, NOW)
        needed = "yes" if said.needs_resume else "no"
        resumable = "yes" if said.is_resumable else "no"
        rows.append((str(row), words, resumable, needed, f"`{said.resume_reason}`", str(said.strategy or "–")))
    return markdown_table(("row", "condition", "is_resumable", "needs_resume", "resume_reason", "strategy"), rows)


def _modes() -> str:
    rows = [(str(row), words, *(_verdict(facts, mode) for mode in Mode)) for row, words, facts in RESUME_EXAMPLES]
    return markdown_table(("row", "condition", *(f"`{mode}`" for mode in Mode)), rows)


def _verdict(facts: ResumeFacts, mode: Mode) -> str:
    verdict = assess_mode(assess(facts, NOW), mode)
    return f"409 `{verdict.refusal}`" if verdict.refusal else str(verdict.strategy or "no agent")
