"""The acceptance cases of loop workflows: run in memory (``test_real_runs`` has a real supervisor), and their tests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.services import ROOT
from tests.workflows.acceptance_cases import CASES
from tests.workflows.memory_runs import drive


@pytest.mark.parametrize("name", CASES)
def test_acceptance_case_has_expected_results(name: str, tmp_path: Path) -> None:
    assert shutil.which("sh")
    case = CASES[name]
    run = drive(case.text, cwd=tmp_path)
    assert run.outcome.succeeded is case.succeeds, run.outcome.error
    for path, outputs in case.outputs.items():
        assert outputs.items() <= run[path].outputs.items(), path
    for path, words in case.errors.items():
        assert words in (run[path].error if path else run.outcome.error)
    assert not run.paths & set(case.not_run)


ACCEPTED: Final = "workflows/test_acceptance.py::test_acceptance_case_has_expected_results"
REAL: Final = "workflows/test_real_runs.py::"
BOTH: Final = (ACCEPTED, f"{REAL}test_acceptance_case_has_expected_results")
COUNTS: Final = f"{REAL}test_loop_counts_from_42_to_52_in_one_session"
WORD: Final = f"{REAL}test_word_passes_between_agents_in_one_session"
IN_MEMORY: Final = "workflows/test_agents.py::"
TRIGGERS: Final = "workflows/test_triggers.py::"
LOST: Final = "recovery/test_lost_conversations.py::"
COMMAND: Final = "workflows/test_run_workflow.py::"
DRIVERS: Final = "agents/test_driver_contract.py::"

TESTS_BY_CASE: Final[Mapping[str, tuple[str, ...]]] = {
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
    "41 a workflow as component": (
        *BOTH,
        "workflows/test_engine.py::test_plain_workflow_file_can_be_used_as_a_component",
    ),
    "42 the same one alone": BOTH,
    "43 shells side by side": (f"{REAL}test_independent_shells_run_concurrently",),
    "44 a join waits": BOTH,
    "45 a failure beside others": BOTH,
    "46 one that may fail": BOTH,
    "47 all files valid": (
        "workflows/test_loading.py::test_shipped_example_is_valid_and_conforms_to_schema",
        "workflows/test_loading_file_formats.py::test_file_of_this_shape_runs",
    ),
    "48 a session goes on, claude": (WORD,),
    "49 a session goes on, codex": (WORD,),
    "50 a session goes on, openai": (
        f"{IN_MEMORY}test_loop_counts_from_42_to_52_in_one_session",
        "drills/test_chat_model_resume.py::test_drill_b_chat_killed_in_mid_answer_keeps_its_conversation",
    ),
    "51 42 to 52": (COUNTS,),
    "52 cron: next, due, disabled": (
        "workflows/test_trigger_cron.py::test_next_time_is_computed",
        f"{TRIGGERS}test_saving_computes_the_next_scheduled_time",
        f"{TRIGGERS}test_disabled_invalid_or_archived_workflow_is_not_started",
    ),
    "53 one idle trigger": (f"{TRIGGERS}test_two_idle_triggers_start_one_run",),
    "54 work ends idleness": (f"{TRIGGERS}test_active_turn_of_team_prevents_idle_trigger",),
    "55 what is not there is a 404": ("api/test_scoping.py::test_stranger_finds_nothing_of_the_team",),
    "56 a run that is over is not cancelled": (
        "workflows/api/test_views.py::test_runs_can_be_listed_shown_cancelled_and_resumed",
    ),
    "57 --cwd of the command": (f"{COMMAND}test_scripts_run_in_worktree_of_named_repository",),
    "58 a workflow by its name": (f"{COMMAND}test_bare_name_is_searched_in_the_project",),
    "59 a middle array slot is gone": BOTH,
    "O killed in iteration 3": ("workflows/test_crashes.py::test_run_killed_in_third_iteration_ends_correctly",),
    "P nodes that nothing can begin": ("workflows/test_loading.py::test_invalid_workflow_is_refused",),
    "Q a loop's output keeps its type": BOTH,
    "R a loop in a component": BOTH,
    "S a gate retries": (*BOTH, f"{REAL}test_gate_sends_back_with_feedback_in_same_session"),
    "T a new conversation id is fed forward": (
        "recovery/test_token_rules.py::test_running_agent_may_change_its_conversation_id",
        COUNTS,
    ),
    "U a conversation that vanished": (
        f"{DRIVERS}test_lost_conversation_is_recognised_and_never_started_anew",
        f"{LOST}test_lost_conversation_sets_its_token_aside_and_waits_for_the_user",
    ),
}

WANTED = {*map(str, range(30, 60)), *"OPQRSTU"}


def test_table_has_every_acceptance_case() -> None:
    assert {case.split()[0] for case in TESTS_BY_CASE} == WANTED


@pytest.mark.parametrize("case", TESTS_BY_CASE)
def test_tests_in_the_table_exist(case: str) -> None:
    for named in TESTS_BY_CASE[case]:
        file, _, function = named.partition("::")
        found = re.search(rf"^(async )?def {function}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        assert found, named
