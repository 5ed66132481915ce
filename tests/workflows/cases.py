"""The acceptance cases of loop workflows, and the tests that hold them (``test_cases`` sees that they are there)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ACCEPTED: Final = "workflows/test_acceptance.py::test_a_case_comes_to_what_it_says"
REAL: Final = "workflows/test_real_runs.py::"
BOTH: Final = (ACCEPTED, f"{REAL}test_a_case_comes_to_what_it_says")
COUNTS: Final = f"{REAL}test_a_loop_counts_from_42_to_52_in_one_session"
WORD: Final = f"{REAL}test_a_word_goes_from_one_agent_to_the_next_in_its_session"
IN_MEMORY: Final = "workflows/test_agents.py::"
TRIGGERS: Final = "workflows/test_triggers.py::"
LOST: Final = "supervisor/test_lost_conversations.py::"
COMMAND: Final = "workflows/test_run_workflow.py::"
DRIVERS: Final = "agents/test_driver_contract.py::"

CASES: Final[Mapping[str, tuple[str, ...]]] = {
    "30 named outputs, the trigger's text": BOTH,
    "31 stderr, exit code, continueOnFailure": BOTH,
    "32 a failure stops the workflow": BOTH,
    "33 a missing input": BOTH,
    "34 loop with docks: 5 iterations": BOTH,
    "35 nested loops: outer 3": BOTH,
    "36 continue true: cap 3": BOTH,
    "37 continue false: 1 iteration": BOTH,
    "38 function: 13": BOTH,
    "39 logic": BOTH,
    "40 array ports": BOTH,
    "41 a workflow as component": (*BOTH, "workflows/test_engine.py::test_a_plain_workflow_in_a_file_is_a_component"),
    "42 the same one alone": BOTH,
    "43 shells side by side": (f"{REAL}test_shells_that_wait_for_nothing_run_side_by_side",),
    "44 a join waits": BOTH,
    "45 a failure beside others": BOTH,
    "46 one that may fail": BOTH,
    "47 all files valid": (
        "workflows/test_loading.py::test_a_shipped_example_can_be_run_and_keeps_to_the_published_schema",
        "workflows/test_shapes.py::test_a_file_of_this_shape_runs",
    ),
    "48 a session goes on, claude": (WORD,),
    "49 a session goes on, codex": (WORD,),
    "50 a session goes on, openai": (
        f"{IN_MEMORY}test_a_loop_counts_from_42_to_52_in_one_session",
        "drills/test_chat_model_resume.py::test_drill_b_a_chat_that_was_killed_in_mid_answer_still_knows",
    ),
    "51 42 to 52": (COUNTS,),
    "52 cron: next, due, disabled": (
        "workflows/test_cron.py::test_the_next_time_is_found",
        f"{TRIGGERS}test_saving_says_when_the_clock_starts_it_next",
        f"{TRIGGERS}test_what_is_off_wrong_or_put_away_is_not_started",
    ),
    "53 one idle trigger": (f"{TRIGGERS}test_two_that_wait_for_idleness_do_not_both_begin",),
    "54 work ends idleness": (f"{TRIGGERS}test_a_turn_of_the_team_is_no_idleness",),
    "55 what is not there is a 404": ("api/test_scoping.py::test_a_stranger_finds_nothing_of_the_team",),
    "56 a run that is over is not cancelled": (
        "api/test_workflows.py::test_runs_are_listed_shown_cancelled_and_gone_on_with",
    ),
    "57 --cwd of the command": (f"{COMMAND}test_scripts_run_in_a_worktree_of_the_repository_that_is_named",),
    "58 a workflow by its name": (f"{COMMAND}test_a_bare_name_is_looked_for_in_the_project",),
    "59 a middle array slot is gone": BOTH,
    "O killed in iteration 3": (
        "workflows/test_kills.py::test_a_run_that_is_killed_in_iteration_three_of_five_ends_right",
    ),
    "P nodes that nothing can begin": ("workflows/test_loading.py::test_what_cannot_be_run_is_refused",),
    "Q a loop's output keeps its type": BOTH,
    "R a loop in a component": BOTH,
    "S a gate retries": (*BOTH, f"{REAL}test_pattern_b_sends_back_with_the_feedback_in_the_same_session"),
    "T a new conversation id is fed forward": (
        "supervisor/test_token_rules.py::test_a_running_agent_may_go_on_under_another_name",
        COUNTS,
    ),
    "U a conversation that vanished": (
        f"{DRIVERS}test_a_conversation_that_is_gone_is_told_from_other_failures_and_never_begun_anew",
        f"{LOST}test_a_conversation_that_is_gone_sets_its_token_aside_and_leaves_the_rest_to_the_user",
    ),
}
