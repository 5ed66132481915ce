"""docs/states.md: every state machine with its moves, and the derived states."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.documents.markdown import join_sections, markdown_table, written_by
from sessions_app.kernel.rules.states import (
    MACHINES,
    DesiredState,
    Machine,
    RunFacts,
    RunState,
    SessionState,
    TaskState,
    derive_status,
    task_state,
)
from sessions_app.waits.rules.wait_keys import WaitKeyState

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
    ("one is WAITING_FOR_INPUT, ERROR or COMPLETED", [_S.COMPLETED, _S.FAILED]),
    ("all are FAILED", [_S.FAILED]),
    ("anything else", []),
)
_NEWEST = (
    ("has not ended, and its agent is gone", RunFacts(_R.RUNNING, waited=False, process_gone=True)),
    ("was interrupted outside a wait", RunFacts(_R.INTERRUPTED, waited=False, process_gone=True)),
    ("was interrupted during a wait", RunFacts(_R.INTERRUPTED, waited=True, process_gone=True)),
    (
        "waits, and its key can no longer be used",
        RunFacts(_R.WAITING, waited=True, token=WaitKeyState.EXPIRED),
    ),
    ("waits", RunFacts(_R.WAITING, waited=True, process_gone=False)),
    ("is in progress", RunFacts(_R.RUNNING, waited=False, process_gone=False)),
    ("was interrupted because a user stopped the session", RunFacts(_R.INTERRUPTED, ended_by_user=True)),
    ("has ended, or there is none", None),
)


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
        "# State machines",
        written_by("the tables in sessions_app/kernel/rules/states.py"),
        (
            "A transition that is not in these tables raises an error and changes nothing. The derived status and the "
            "task's state follow from these states; they have no transitions of their own."
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
    return join_sections([*sections, *_derived_states()])


def _derived_states() -> Iterator[str]:
    """Yield the sections about states that are derived, or set by users."""
    yield "## Task (`tasks.state`)"
    yield "The first matching row applies."
    by_user = ("any: a user marked the task, and has not reopened it", f"{TaskState.DONE}, {TaskState.CANCELLED}")
    derived = [(words, str(task_state(TaskState.TODO, states))) for words, states in _TASKS]
    yield markdown_table(("its sessions", "the task"), [by_user, *derived])
    yield "## Derived status"
    yield "Derived from the newest run, and never stored."
    yield markdown_table(
        ("the newest run", "derived status"), [(words, f"`{derive_status(run)}`") for words, run in _NEWEST]
    )
    yield "## Desired state (`desired_state`)"
    words = {DesiredState.RUNNING: "keep it running", DesiredState.STOPPED: "stopped, closed or archived"}
    yield markdown_table(("desired state", "meaning"), [(f"`{wanted}`", words[wanted]) for wanted in DesiredState])
