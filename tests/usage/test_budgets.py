"""A budget stops a session before its next prompt, and lets it go on once it allows that."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.accounts.models import TeamRole
from sessions_app.attention.services.inbox import overdue_prompts
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import AttentionItem, BudgetHold, Prompt, Supervisor, TaskSession, Turn, TurnUsage, UsageBudget
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.prompts.services import queue_prompt, withdraw_prompt
from sessions_app.sessions.services.intents import request_stop
from sessions_app.sessions.services.status import load_status
from sessions_app.usage import budgets
from sessions_app.usage.rules.budgets import (
    BudgetScope,
    Hold,
    HoldReason,
    Limits,
    Spent,
    find_hold,
    hold_sentence,
    limits_from_stored,
    limits_problem,
    limits_text,
)
from sessions_app.workflows.driver.prompt_progress import WAITS_FOR_USER, follow_prompt
from tests.portable.records import delete_sessions, export, run_import
from tests.supervisor.journals import ingest
from tests.supervisor.rows import MINE, change, fresh, last_payload, make_user, names, prompt_states, running_session
from tests.turns.test_agent_turns import after_a_turn, own_turn
from tests.usage.ledger import used

pytestmark = pytest.mark.django_db(transaction=True)
USD = {"cost": 2.0, "currency": "USD"}


# limits, spent, the reason of the hold
RULES: list[tuple[Limits, Spent, HoldReason | None]] = [
    (Limits(), Spent(10**9, {"USD": 10.0}), None),
    (Limits(tokens=100), Spent(), None),
    (Limits(tokens=100), Spent(99), None),
    (Limits(tokens=100), Spent(100), HoldReason.USED_UP),
    (Limits(tokens=0), Spent(), HoldReason.USED_UP),
    (Limits(tokens=100), Spent(50, running=1, largest_tokens=49), None),
    (Limits(tokens=100), Spent(50, running=1, largest_tokens=50), HoldReason.RUNNING),
    (Limits(tokens=100), Spent(50, running=0, largest_tokens=50), None),
    (Limits(tokens=100), Spent(0, running=9, largest_tokens=0), None),
    (Limits(cost=1.0, currency="USD"), Spent(10**9, {"EUR": 5.0}), None),
    (Limits(cost=1.0, currency="USD"), Spent(0, {"USD": 1.0, "EUR": 5.0}), HoldReason.USED_UP),
    (Limits(cost=1.0, currency="USD"), Spent(0, {"USD": 0.5}, 2, 0, {"USD": 0.25}), HoldReason.RUNNING),
    (Limits(cost=0.0, currency="USD"), Spent(), HoldReason.USED_UP),
    (Limits(tokens=100, cost=1.0, currency="USD"), Spent(5, {"USD": 3.0}), HoldReason.USED_UP),
]


@pytest.mark.parametrize(("limits", "spent", "reason"), RULES)
def test_prompt_may_begin_while_anything_is_left(limits: Limits, spent: Spent, reason: HoldReason | None) -> None:
    found = find_hold(BudgetScope.TEAM, limits, spent)
    assert (found.reason if found else None) == reason


def test_hold_says_whose_budget_it_is_and_what_was_used() -> None:
    hold = find_hold(BudgetScope.SESSION, Limits(tokens=1000), Spent(1234))
    assert hold == Hold(BudgetScope.SESSION, HoldReason.USED_UP, "1,000 tokens", "1,234 tokens")
    text = hold_sentence(hold.scope, hold.reason, hold.limit, hold.used)
    assert text == "This session’s budget of 1,000 tokens is used up; used when it held the prompt back: 1,234 tokens."
    running = hold_sentence("team", "running", "2.00 USD", "1.50 USD")
    assert running == (
        "Turns that run now may use up the rest of the team’s budget for today of 2.00 USD; "
        "used when it held the prompt back: 1.50 USD."
    )


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(), None),
        (Limits(0, 0.0, "USD"), None),
        (Limits(tokens=-1), "tokens"),
        (Limits(tokens=10**16), "tokens"),
        (Limits(cost=-1, currency="USD"), "cost"),
        (Limits(cost=float("nan"), currency="USD"), "cost"),
        (Limits(cost=float("inf"), currency="USD"), "cost"),
        (Limits(cost=1.0), "currency"),
        (Limits(cost=1.0, currency="usd"), "currency"),
        (Limits(currency="USD"), "cost"),
    ],
)
def test_wrong_limits_are_refused(limits: Limits, field: str | None) -> None:
    found = limits_problem(limits)
    assert (found.field if found else None) == field


def test_limits_in_words() -> None:
    assert [limits_text(each) for each in (Limits(), Limits(1000), Limits(5, 2.0, "USD"))] == [
        "",
        "1,000 tokens",
        "5 tokens and 2.00 USD",
    ]


# -- sessions


def waiting_session(**limits: Any) -> TaskSession:
    """Return a running session with a queued prompt, whose budget is set."""
    session = running_session()
    queue_prompt(session.id, "p1", "do it", make_user())
    if limits:
        budgets.set_session_budget(session.id, Limits(**limits), make_user())
    return fresh(session)


def team_budget(session: TaskSession, **limits: Any) -> None:
    budgets.set_team_budget(
        session.task.team, Limits(**limits), User.objects.get_or_create(username="s", is_staff=True)[0]
    )


def updated_holds() -> int:
    """Check all open holds, as the job does; return how many have changed."""
    updated, after = 0, None
    while True:
        done = budgets.update_holds(after)
        updated, after = updated + done.updated, done.after
        if after is None:
            return updated


def claimed(session: TaskSession) -> str | None:
    """Return the message id of the prompt that would be sent now."""
    delivery = claim_next_prompt(session.id, MINE, "epoch-1", frozenset())
    return delivery.message_id if delivery else None


def open_kinds(session: TaskSession) -> set[str]:
    return set(AttentionItem.objects.filter(session=session, resolved_at=None).values_list("kind", flat=True))


def test_used_up_budget_holds_the_prompt_with_a_reason_on_status_and_inbox() -> None:
    session = waiting_session(tokens=100)
    used(session.task, session_id=session.id, tokens=100)
    assert claimed(session) is None
    assert claimed(session) is None
    assert prompt_states(session) == {"p1": "queued"}
    assert names(session).count("session.budget.held") == 1
    assert last_payload(session, "session.budget.held")["limit"] == "100 tokens"
    now = timezone.now()
    Supervisor.objects.create(boot_id="boot", host_id="host", started_at=now, beat_at=now, swept_at=now)
    status = load_status(fresh(session))
    assert status.budget_hold is not None and status.budget_hold["reason"] == "used_up"
    assert "This session’s budget of 100 tokens is used up" in status.stillness["text"]  # type: ignore[index]
    assert open_kinds(session) == {"budget"}


def test_item_about_a_budget_stays_while_the_agent_works_on_its_own() -> None:
    session, journal = after_a_turn()
    queue_prompt(session.id, "p2", "do it", make_user())
    budgets.set_session_budget(session.id, Limits(tokens=0), make_user())
    assert claimed(session) is None
    ingest(session, [journal.tool("own", title="step")])
    assert own_turn(session).state == "running"
    assert "budget" in open_kinds(session)
    request_stop(session.id, make_user())
    assert updated_holds() == 1
    assert open_kinds(session) == set()


def test_raised_budget_lets_the_prompt_go_once() -> None:
    session = waiting_session(tokens=100)
    used(session.task, session_id=session.id, tokens=150)
    assert claimed(session) is None
    assert updated_holds() == 0
    budgets.set_session_budget(session.id, Limits(tokens=200), make_user())
    assert updated_holds() == 1
    assert updated_holds() == 0
    assert claimed(session) == "p1"
    assert names(session).count("session.budget.released") == 1
    assert open_kinds(session) == set()
    assert load_status(fresh(session)).budget_hold is None


def test_prompt_that_nobody_held_back_is_sent_without_a_line_in_the_log() -> None:
    session = waiting_session()
    assert claimed(session) == "p1"
    assert not BudgetHold.objects.exists()


@pytest.mark.parametrize("limits", [{"tokens": 0}, {"cost": 0.0, "currency": "USD"}])
def test_budget_of_nothing_stops_the_first_prompt(limits: dict[str, Any]) -> None:
    assert claimed(waiting_session(**limits)) is None


def test_turns_without_figures_use_nothing_of_a_budget() -> None:
    session = waiting_session(tokens=100, cost=1.0, currency="USD")
    used(session.task, session_id=session.id)
    used(session.task, session_id=session.id, cost=5.0, currency="EUR")
    assert claimed(session) == "p1"


def test_team_budget_counts_all_its_sessions_of_today() -> None:
    session = waiting_session()
    used(session.task, days_ago=1, tokens=100)
    team_budget(session, tokens=100)
    used(session.task, tokens=60)
    used(session.task, tokens=40)
    assert claimed(session) is None
    assert last_payload(session, "session.budget.held")["scope"] == "team"
    yesterday = timezone.now() - timedelta(days=1)
    TurnUsage.objects.update(day=yesterday.date())
    assert updated_holds() == 1
    assert claimed(session) == "p1"


def test_budget_of_another_team_holds_nothing_back() -> None:
    session = waiting_session()
    other = Group.objects.create(name="others")
    UsageBudget.objects.create(team=other, tokens=0)
    assert claimed(session) == "p1"


def test_sessions_of_a_team_do_not_pass_the_rest_of_a_budget_side_by_side() -> None:
    first = waiting_session()
    second = running_session(task=first.task)
    queue_prompt(second.id, "p2", "do it", make_user())
    team_budget(first, tokens=100)
    used(first.task, tokens=50)
    assert claimed(first) == "p1"
    assert claimed(second) is None
    assert last_payload(second, "session.budget.held")["reason"] == "running"
    assert "budget" not in open_kinds(second)
    Prompt.objects.filter(session=first).update(state="done")
    used(first.task, tokens=10)
    assert updated_holds() == 1
    assert claimed(second) == "p2"


def test_hold_for_running_turns_becomes_one_of_a_used_up_budget() -> None:
    first = waiting_session()
    second = running_session(task=first.task)
    queue_prompt(second.id, "p2", "do it", make_user())
    team_budget(first, tokens=100)
    used(first.task, tokens=50)
    assert (claimed(first), claimed(second)) == ("p1", None)
    Prompt.objects.filter(session=first).update(state="done")
    used(first.task, tokens=50)
    assert updated_holds() == 1
    assert [hold.reason for hold in BudgetHold.objects.filter(session=second)] == ["running", "used_up"]
    assert open_kinds(second) == {"budget"}


def test_running_turns_count_until_they_end() -> None:
    session = waiting_session()
    other = running_session(task=session.task)
    Turn.objects.create(session=other, message_id="m", started_at=timezone.now())
    team_budget(session, tokens=100)
    used(session.task, tokens=50)
    assert claimed(session) is None
    Turn.objects.update(state="completed")
    assert claimed(session) == "p1"


def test_turn_that_ends_while_a_budget_is_checked_is_counted() -> None:
    session = waiting_session()
    other = running_session(task=session.task)
    Turn.objects.create(session=other, message_id="m", started_at=timezone.now())
    team_budget(session, tokens=100)
    used(session.task, tokens=50)
    begun: list[str] = []

    def end_the_turn(execute: Any, sql: str, *rest: Any) -> Any:
        """Let the turn end after the first of the two tables was read."""
        found = execute(sql, *rest)
        reads_turns, reads_sums = "COUNT(*)" in sql and '"session_runs"' in sql, 'SUM("turn_usage"' in sql
        if not begun and (reads_turns or reads_sums):
            begun.append(sql)
            Turn.objects.filter(session=other).update(state="completed")
            used(session.task, tokens=50)
        return found

    with connection.execute_wrapper(end_the_turn):
        assert claimed(session) is None
    assert begun


def test_withdrawn_prompt_and_stopped_session_end_the_hold() -> None:
    for end in (lambda row: withdraw_prompt(row.id, "p1"), lambda row: request_stop(row.id, make_user())):
        session = waiting_session(tokens=0)
        assert claimed(session) is None
        end(session)
        assert updated_holds() == 1
        assert BudgetHold.objects.get(session=session).end == "obsolete"
        assert open_kinds(session) == set()


def test_deleted_session_of_an_earlier_release_leaves_no_hold() -> None:
    session = waiting_session(tokens=0)
    claimed(session)
    BudgetHold.objects.update(session_id=uuid.uuid4())
    assert updated_holds() == 0
    assert not BudgetHold.objects.exists()


def test_held_prompt_is_not_overdue_and_its_workflow_step_waits() -> None:
    session = waiting_session(tokens=0)
    claimed(session)
    Prompt.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert not overdue_prompts().exists()
    assert follow_prompt(session, "p1").waiting_for == WAITS_FOR_USER


def test_next_check_is_at_the_end_of_the_day_while_something_is_held() -> None:
    assert budgets.next_check() is None
    claimed(waiting_session(tokens=0))
    end = budgets.next_check()
    assert end is not None and timedelta(0) < end - timezone.now() <= timedelta(days=1)


def test_budget_of_a_session_is_in_its_log_once() -> None:
    session = waiting_session()
    for _ in range(2):
        budgets.set_session_budget(session.id, Limits(tokens=5), make_user())
    assert names(session).count("session.budget.changed") == 1
    with pytest.raises(Invalid):
        budgets.set_session_budget(session.id, Limits(cost=5.0), make_user())
    assert budgets.budget_of_session(session.id) == Limits(tokens=5)


def test_only_staff_and_admins_change_the_budget_of_a_team() -> None:
    session = waiting_session()
    team, member = session.task.team, make_user("grace")
    member.groups.add(team)
    with pytest.raises(ReadOnly):
        budgets.set_team_budget(team, Limits(tokens=5), member)
    TeamRole.objects.create(user=member, team=team, role=TeamRole.Role.ADMIN)
    budgets.set_team_budget(team, Limits(tokens=5), member)
    assert budgets.budget_of_team(team) == Limits(tokens=5)


def test_change_of_the_launch_does_not_end_a_hold() -> None:
    session = waiting_session(tokens=0)
    claimed(session)
    change(session, launch_id="other")
    assert updated_holds() == 0


def test_hold_that_lasts_another_day_ends_on_that_day_and_is_no_news() -> None:
    session = waiting_session()
    team_budget(session, tokens=0)
    assert claimed(session) is None
    yesterday = timezone.now() - timedelta(days=1)
    BudgetHold.objects.update(began_at=yesterday, ends_at=yesterday)
    assert updated_holds() == 0
    hold = BudgetHold.objects.get(ended_at=None)
    assert hold.began_at == yesterday
    assert hold.ends_at is not None and hold.ends_at > timezone.now()
    assert names(session).count("session.budget.held") == 1


# -- many held sessions


def add_held_sessions(number: int, session: TaskSession) -> None:
    """Create sessions like ``session``, each with a queued prompt that a budget holds back."""
    fields = {field.attname: getattr(session, field.attname) for field in TaskSession._meta.concrete_fields}
    copies = [TaskSession(**{**fields, "id": uuid.uuid4(), "agent_execution_id": None}) for _ in range(number)]
    TaskSession.objects.bulk_create(copies)
    Prompt.objects.bulk_create([Prompt(session=row, message_id="p", text="do it") for row in copies])
    hold = {"scope": "team", "reason": "used_up", "limit": "100 tokens", "used": "100 tokens"}
    BudgetHold.objects.bulk_create([BudgetHold(session=row, **hold) for row in copies])


def test_number_of_queries_of_a_check_does_not_grow_with_the_held_sessions() -> None:
    session = waiting_session(tokens=1000)
    team_budget(session, tokens=100)
    used(session.task, tokens=100)
    assert claimed(session) is None
    with CaptureQueriesContext(connection) as few:
        budgets.update_holds()
    add_held_sessions(100, session)
    UsageBudget.objects.bulk_create(
        [UsageBudget(session_id=each, tokens=1000) for each in BudgetHold.objects.values_list("session_id", flat=True)],
        ignore_conflicts=True,
    )
    with CaptureQueriesContext(connection) as many:
        assert budgets.update_holds() == budgets.HoldPass(0, None)
    assert len(many) == len(few)


def test_check_of_thousands_of_held_sessions_is_read_in_pages() -> None:
    session = waiting_session()
    team_budget(session, tokens=100)
    used(session.task, tokens=100)
    number = 5000
    add_held_sessions(number, session)
    passes, after = 0, None
    most_queries = 0
    while True:
        with CaptureQueriesContext(connection) as queries:
            done = budgets.update_holds(after)
        passes, after, most_queries = passes + 1, done.after, max(most_queries, len(queries))
        assert done.updated == 0
        if after is None:
            break
    assert passes == number // budgets.PAGE + 1
    assert most_queries <= 8


def test_check_reaches_every_session_when_more_may_go_on_than_one_pass_updates() -> None:
    session = waiting_session()
    team_budget(session, tokens=200)
    add_held_sessions(budgets.BATCH + 5, session)
    first = budgets.update_holds()
    assert first.updated == budgets.BATCH
    assert budgets.update_holds(first.after).updated == 5
    assert not BudgetHold.objects.filter(ended_at=None).exists()


# -- import


def test_budget_of_a_session_survives_its_deletion_and_import(tmp_path: Path) -> None:
    session = running_session()
    budgets.set_session_budget(session.id, Limits(tokens=5), make_user())
    budgets.set_session_budget(session.id, Limits(tokens=7, cost=2.5, currency="USD"), make_user())
    export(fresh(session), tmp_path / "record")
    delete_sessions()
    assert run_import(tmp_path / "record") == 0
    assert budgets.budget_of_session(session.id) == Limits(7, 2.5, "USD")


def test_budget_that_was_removed_stays_removed_after_an_import(tmp_path: Path) -> None:
    session = running_session()
    for limits in (Limits(tokens=5), Limits()):
        budgets.set_session_budget(session.id, limits, make_user())
    export(fresh(session), tmp_path / "record")
    delete_sessions()
    assert run_import(tmp_path / "record") == 0
    assert budgets.budget_of_session(session.id) == Limits()


@pytest.mark.parametrize("limits", [Limits(tokens=5), Limits()], ids=["with a budget", "without one"])
def test_budget_that_an_earlier_release_left_of_a_deleted_session_does_not_outlive_an_import(
    limits: Limits, tmp_path: Path
) -> None:
    session = running_session()
    budgets.set_session_budget(session.id, limits, make_user())
    export(fresh(session), tmp_path / "record")
    delete_sessions()
    UsageBudget.objects.create(session_id=session.id, tokens=99)
    assert run_import(tmp_path / "record") == 0
    assert budgets.budget_of_session(session.id) == limits


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"tokens": "5", "cost": None, "currency": ""},
        {"tokens": True, "cost": None, "currency": ""},
        {"tokens": -1, "cost": None, "currency": ""},
        {"tokens": 2**63, "cost": None, "currency": ""},
        {"tokens": None, "cost": float("nan"), "currency": "USD"},
        {"tokens": None, "cost": 1e308, "currency": "USD"},
        {"tokens": None, "cost": 5.0, "currency": "X" * 2**20},
        {"tokens": None, "cost": 5.0, "currency": None},
    ],
)
def test_budget_of_a_foreign_log_that_is_none_is_not_taken_over(stored: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="budget"):
        limits_from_stored(stored)
