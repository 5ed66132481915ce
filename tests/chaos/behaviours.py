"""What each misbehaving agent supports. A crash point that needs more cannot be reached with that agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from executors_app.machine import crash_points

SILENT: Final = "its agent produces no output"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One way to misbehave, by its name in ``tests.support.faulty_agent``."""

    name: str
    unreachable_stages: Mapping[str, str] = field(default_factory=dict)
    """Stages of a session that it does not reach, with the reasons."""
    args: tuple[str, ...] = ()
    only_on_load: bool = False
    """Whether it misbehaves only when a conversation is resumed."""


_ALL: Final = (
    Behaviour("honest"),
    Behaviour(
        "hangs_at_initialize",
        dict.fromkeys(("agent", "turn", "ask", "long"), SILENT),
    ),
    Behaviour("hangs_at_load", only_on_load=True),
    Behaviour("refuses_load", only_on_load=True),
    Behaviour("lies_about_load", only_on_load=True),
    Behaviour("forgets", only_on_load=True),
    Behaviour("loads_without_replay", only_on_load=True),
    Behaviour("no_load", only_on_load=True),
    Behaviour(
        "dies_in_turn",
        {"ask": "it dies first", "long": "it dies first", "later": "its session has failed by then"},
    ),
    Behaviour("refuses_turns", dict.fromkeys(("ask", "long"), SILENT)),
    Behaviour("reaches_limit", {"ask": "its prompt is quoted when it goes on"}),
    Behaviour("says_nothing", dict.fromkeys(("ask", "long"), SILENT)),
    Behaviour("asks_by_id", {"long": "it asks for permission first, and nobody answers"}),
    Behaviour("floods", {"ask": "it never asks", "long": "its output ends too soon"}, ("--count", "300")),
    Behaviour("garbage"),
    Behaviour("big_line", dict.fromkeys(("ask", "long"), "it sends a single message")),
    Behaviour("stderr_flood"),
    Behaviour("forks"),
    Behaviour("relaunches_itself"),
    Behaviour("ignores_term"),
    Behaviour("slow_start"),
)
BEHAVIOURS: Final = {each.name: each for each in _ALL}
DRILLED: Final = frozenset({"leaves_processes", "works_alone", "ignores_end_of_input"})
"""Behaviours with tests of their own: in ``tests/drills``, which kill Kandev's processes at the moments that matter,
or, for an agent that does not end with its input, in ``tests/agents``."""

REQUIRED_STAGE: Final = {
    **dict.fromkeys(("supervisor.agent_started", "supervisor.agent_start_written"), "agent"),
    **dict.fromkeys(("agentctl.token_kept", "agentctl.agent_ready", "agentctl.launch_remembered"), "agent"),
    **dict.fromkeys(("supervisor.prompt_sending", "supervisor.prompt_sent"), "turn"),
    **dict.fromkeys(("agentctl.prompt_journaled", "agentctl.prompt_accepted", "agentctl.prompt_handed_over"), "turn"),
    "agentctl.prompt_delivered": "turn",
    "agentctl.turn_ended": "end",
    **dict.fromkeys(("request.prompt_written", "request.prompt_committed"), "later"),
    "sweep.leftovers_ended": "leftovers",
    **dict.fromkeys(("supervisor.answer_sent", "agentctl.permission_asked", "agentctl.answer_journaled"), "ask"),
    **dict.fromkeys(("supervisor.cancel_sent", "agentctl.cancel_remembered", "agentctl.cancel_asked"), "long"),
    **dict.fromkeys(("supervisor.start_failed", "supervisor.start_failure_written"), "failure"),
    **dict.fromkeys(("agentctl.job_prepared", "agentctl.job_remembered"), "script"),
    **dict.fromkeys(("agentctl.job_spawned", "agentctl.job_ended"), "script"),
    **dict.fromkeys(("workflow.step_written", "workflow.step_committed"), "workflow"),
    **dict.fromkeys(("workflow.job_asked", "workflow.jobs_ended"), "workflow"),
    **dict.fromkeys(("queue.change_written", "queue.change_committed"), "queue"),
    **dict.fromkeys(("wait.change_written", "wait.change_committed"), "wait"),
    **dict.fromkeys(("own_turn.begun", "own_turn.ended", "own_turn.end_committed"), "own turn"),
    "background.reported": "background",
    "usage.turn_counted": "turn",
    **dict.fromkeys(("budget.hold_written", "budget.hold_committed"), "budget"),
    **dict.fromkeys(("schedule.run_written", "schedule.slot_moved", "schedule.run_committed"), "schedule"),
    **dict.fromkeys(("suspension.begun", "suspension.continued", "suspension.committed"), "limit"),
    **dict.fromkeys(("lost.declared", "lost.unwritten", "lost.ended"), "lost"),
    "returned.ended": "returned",
    **dict.fromkeys(("finish_request.written", "finish_request.committed", "finish.prepared"), "finish"),
    **dict.fromkeys(("finish.planned", "finish.applied", "finish.end_written", "finish.end_committed"), "finish"),
    **dict.fromkeys(("supervisor.setting_sent", "agentctl.setting_journaled"), "setting"),
    **dict.fromkeys(("supervisor.steer_sending", "supervisor.steer_sent", "agentctl.steer_journaled"), "steering"),
    **dict.fromkeys(("agentctl.steer_handed_over", "agentctl.steer_settled"), "steering"),
    **dict.fromkeys(("agentctl.segment_added", "agentctl.segment_dropped"), "segment"),
}
"""The stage of a session that reaches a crash point; points without an entry need nothing from the agent."""

FAILING_STARTS: Final = frozenset({"hangs_at_initialize", "hangs_at_load", "refuses_load"})
"""Behaviours whose starts always fail."""


OTHER_TESTS: Final = {
    "queue": "nobody changes its queue; tests/drills covers it",
    "wait": "it does not wait for anything outside; tests/drills covers it",
    "own turn": "it works only when it is prompted; tests/drills covers it",
    "background": "it leaves nothing running that is reported; tests/drills covers it",
    "budget": "it has no budget; tests/drills covers it",
    "lost": "nobody declares its host lost; tests/drills covers it",
    "returned": "no host of it comes back; tests/hosts covers it",
    "finish": "nobody merges or pushes its branch; tests/drills covers it",
    "schedule": "no schedule starts it; tests/drills covers it",
    "steering": "it takes no text during a turn; tests/drills covers it",
    "setting": "nobody changes its settings; tests/drills covers it",
    "script": "its session is not part of a workflow; tests/agentctl covers it",
    "workflow": "its session is not part of a workflow; tests/drills covers it",
}


def why_unreachable(point: str, behaviour: Behaviour) -> str:
    """Return why a session with this agent never reaches the point; an empty string if it must reach it."""
    stage = REQUIRED_STAGE.get(point, "")
    if stage == "failure":
        return "" if behaviour.name in FAILING_STARTS else "its starts do not fail"
    if stage in OTHER_TESTS:
        return OTHER_TESTS[stage]
    if stage == "segment":
        return "" if behaviour.name == "floods" else "its output is too short for a second journal segment"
    if stage == "limit":
        return "" if behaviour.name == "reaches_limit" else "it reaches no limit"
    if stage == "leftovers":
        return "" if behaviour.name == "forks" else "its agent ends with its guard"
    if stage == "end":
        stage = "turn"
        if behaviour.name == "dies_in_turn":
            return "its turns end with its process"
    return behaviour.unreachable_stages.get(stage, "")


def args_for(points: Iterable[str], behaviour: Behaviour) -> tuple[str, ...]:
    """Return the behaviour's arguments; a flood has to be large enough to fill a journal segment."""
    if behaviour.name == "floods" and any(REQUIRED_STAGE.get(point) == "segment" for point in points):
        return ("--count", "60", "--size", "300000")
    return behaviour.args


assert set(REQUIRED_STAGE) <= set(crash_points.POINT_NAMES)
