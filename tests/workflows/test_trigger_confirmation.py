"""Scheduled runs: whose rights they have, and which changes pause them until an entitled user confirms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test.utils import override_settings

from executors_app.models import AgentProfile, Executor
from sessions_app.accounts.models import TeamRole
from sessions_app.attention.services import inbox
from sessions_app.confined.client import ConfinedPool
from sessions_app.kernel.services.errors import Conflict, Invalid, ReadOnly, SessionsError
from sessions_app.models import AttentionItem, Repository
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import schedules, trigger_confirmation
from sessions_app.workflows.services.schedules import start_due_runs
from sessions_app.workflows.services.trigger_confirmation import COMPARISON_LIMITS, compare_parts
from sessions_app.workflows.services.trigger_settings import confirm_triggers, triggers_document
from sessions_app.workflows.services.workflows import archive_workflow, save_workflow
from tests.api.world import World, make_world
from tests.attention.reading import as_read
from tests.growth import measure_growth
from tests.supervisor.rows import change, fresh
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db
NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)
CLOCK = node("clock", "trigger", triggerType="cron", cron="0 * * * *")
PART = "{version: 3, metadata: {name: x}, interface: {}, nodes: [{id: a, type: constant}], edges: []}"


def text(*nodes: dict[str, Any], **cron: Any) -> str:
    return workflow([{**CLOCK, "data": {**CLOCK["data"], **cron}}, *nodes])


PLAIN = text(node("part", "component", workflowPath="part.yaml"), node("coder", "agent", prompt="Go", runner="demo"))
SHELL = text(node("say", "shell", script="cat secret.key"))


@dataclass(frozen=True)
class Office:
    """A team's world and a workflow in it whose triggers are enabled."""

    world: World
    row: Workflow

    def now(self) -> Workflow:
        return fresh(self.row)

    def document(self, user: User | None = None) -> dict[str, Any]:
        return triggers_document(user or self.world.member, self.now())

    def save(self, user: User, **values: Any) -> Workflow:
        return save_workflow(user, values, self.now())[0]

    def confirm(self, user: User) -> Workflow:
        return confirm_triggers(user, self.now(), self.document()["fingerprint"])

    def due(self) -> int:
        Workflow.objects.filter(id=self.row.id, triggers_enabled=True).update(next_run_at=NOON)
        return start_due_runs(NOON)

    def items(self) -> list[str]:
        return [as_read(item).why for item in inbox.open_items_for(self.world.member).filter(workflow=self.row)]


def scheduled(world: World, user: User, written: str = PLAIN, **values: Any) -> Office:
    given = {"team": world.team, "name": "Nightly", "text": written, "files": {"part.yaml": PART}, **values}
    places = {"repository": world.repository, "executor": world.executor, "triggers_enabled": True}
    return Office(world, save_workflow(user, {**places, **given})[0])


@pytest.fixture
def office(db: None) -> Office:
    world = make_world()
    return scheduled(world, world.staff)


def test_scheduled_run_has_the_rights_of_whoever_enabled_its_triggers(office: Office) -> None:
    office.save(office.world.member, triggers_enabled=False)
    assert office.now().triggers_enabled_by is None
    office.save(office.world.member, triggers_enabled=True)
    assert office.due() == 1
    assert WorkflowRun.objects.get().started_by == office.world.member
    assert office.now().created_by == office.world.staff


def test_shell_node_of_a_member_never_runs_as_staff(office: Office) -> None:
    office.save(office.world.member, text=SHELL)
    assert office.due() == 0
    assert not WorkflowRun.objects.exists()
    with pytest.raises(ReadOnly, match="requires staff"):
        office.confirm(office.world.member)
    assert not office.now().triggers_enabled
    office.confirm(office.world.staff)
    assert office.due() == 1
    assert WorkflowRun.objects.get().started_by == office.world.staff


CHANGES: dict[str, Callable[[Office], Any]] = {
    "text": lambda office: office.save(office.world.staff, text=PLAIN.replace("Go", "Stop")),
    "file “part.yaml”": lambda office: office.save(office.world.staff, files={"part.yaml": f"{PART}\n"}),
    "file “more.sh”": lambda office: office.save(office.world.staff, files={"part.yaml": PART, "more.sh": "x"}),
    "triggers": lambda office: office.save(office.world.staff, text=PLAIN.replace("0 * * * *", "* * * * *")),
    "repository": lambda office: office.save(office.world.staff, repository=another_repository(office.world)),
    "repository's branch": lambda office: change(office.world.repository, default_branch="other"),
    "executor": lambda office: office.save(office.world.staff, executor=another_executor()),
    "executor's runtime": lambda office: change(office.world.executor, runtime="local_docker"),
    "executor's settings": lambda office: change(office.world.executor, config={"image": "another"}),
    "agent's command": lambda office: change(office.world.profile, command=["/bin/sh"]),
    "agent's environment": lambda office: change(office.world.profile, env={"PATH": "/tmp"}),
    "agent's tools": lambda office: change(office.world.profile, mcp_servers=[{"name": "x", "command": "sh"}]),
    "agent's permissions": lambda office: change(office.world.profile, permission_mode="auto_approve"),
    "agent that comes first now": lambda office: AgentProfile.objects.create(name="DEMO", agent_type="demo"),
}


def another_repository(world: World) -> Repository:
    return Repository.objects.create(name="other", team=world.team, path="/srv/other")


def another_executor() -> Executor:
    return Executor.objects.create(name="there", runtime="local_docker")


@pytest.mark.parametrize("what", CHANGES)
def test_change_of_what_runs_pauses_triggers_until_confirmed(office: Office, what: str) -> None:
    CHANGES[what](office)
    assert office.due() == 0
    row = office.now()
    assert (row.triggers_enabled, row.next_run_at, bool(row.triggers_paused)) == (False, None, True)
    assert office.items() == [row.triggers_paused]
    assert any(one.name.split()[0] in what for one in office.document()["changes"])
    assert office.due() == 0, "the triggers stay paused"
    office.confirm(office.world.member)
    assert (office.items(), office.document()["changes"], office.now().triggers_paused) == ([], [], "")
    assert office.due() == 1
    assert WorkflowRun.objects.get().started_by == office.world.member


def test_new_name_or_description_pauses_nothing(office: Office) -> None:
    office.save(office.world.member, name="Weekly", description="that")
    assert office.due() == 1
    assert WorkflowRun.objects.get().started_by == office.world.staff


def test_new_secret_key_alone_pauses_nothing(office: Office, settings: Any) -> None:
    change(office.world.executor, config={"image": "it"})
    office.confirm(office.world.staff)
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[settings.SECRET_KEY]):
        assert office.due() == 1


LOSSES: dict[str, Callable[[Office], Any]] = {
    "does not have write access": lambda office: office.world.staff.groups.clear(),
    "not have write access in the team": lambda office: TeamRole.objects.create(
        user=office.world.staff, team=office.world.team, role=TeamRole.Role.VIEWER
    ),
    "no longer has an active account": lambda office: change(office.world.staff, is_active=False),
    "is not staff": lambda office: change(office.world.staff, is_staff=False),
    "was deleted": lambda office: User.objects.filter(id=office.world.staff.pk).delete(),
}


@pytest.mark.parametrize("why", LOSSES)
def test_user_who_lost_a_right_starts_no_scheduled_runs(why: str) -> None:
    world = make_world()
    office = scheduled(world, world.staff, SHELL)
    assert (office.due(), WorkflowRun.objects.update(state="succeeded")) == (1, 1)
    LOSSES[why](office)
    Workflow.objects.update(next_run_at=NOON.replace(hour=13))
    assert start_due_runs(NOON.replace(hour=13)) == 0
    assert why in office.now().triggers_paused
    assert office.items()
    assert WorkflowRun.objects.count() == 1


def test_member_of_a_team_with_the_right_may_confirm(office: Office) -> None:
    office.save(office.world.member, text=SHELL)
    office.world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    office.confirm(office.world.member)
    assert office.due() == 1
    office.world.team.permissions.clear()
    WorkflowRun.objects.update(state="succeeded")
    Workflow.objects.update(next_run_at=NOON.replace(hour=13))
    assert start_due_runs(NOON.replace(hour=13)) == 0
    assert "operate_unisolated" in office.now().triggers_paused


@pytest.mark.parametrize(("written", "why"), [(SHELL, "requires staff"), ("nodes: [", "cannot be run")])
def test_enabling_without_the_right_waits_for_an_entitled_user(written: str, why: str) -> None:
    world = make_world()
    office = scheduled(world, world.member, written)
    assert (office.now().triggers_enabled, why in office.now().triggers_paused) == (False, True)
    assert office.due() == 0
    (item,) = inbox.open_items_for(world.staff).filter(workflow=office.row)
    assert (item.kind, item.path) == ("workflow", f"/workflows/{office.row.id}/")
    assert "who is staff" in item.next_step or why == "cannot be run"


def test_saving_a_paused_workflow_with_triggers_on_confirms_nothing(office: Office) -> None:
    office.save(office.world.member, text=SHELL)
    office.save(office.world.staff, triggers_enabled=True)
    assert office.now().triggers_paused
    assert office.due() == 0


def test_disabling_triggers_resolves_the_item_and_keeps_the_confirmed_state(office: Office) -> None:
    office.save(office.world.member, text=SHELL)
    office.save(office.world.member, triggers_enabled=False)
    assert (office.items(), office.now().triggers_paused) == ([], "")
    (changed, *_) = office.document()["changes"]
    assert (changed.part, "+" in changed.text) == ("text", True)


def refuse(office: Office, user: User, error: type[SessionsError], fingerprint: str = "") -> None:
    with pytest.raises(error):
        confirm_triggers(user, office.now(), fingerprint or office.document()["fingerprint"])
    assert not office.now().triggers_enabled


def test_confirmation_must_match_the_latest_change(office: Office) -> None:
    office.save(office.world.member, text=PLAIN.replace("Go", "Come"))
    seen = office.document()["fingerprint"]
    office.save(office.world.member, text=PLAIN.replace("Go", "Leave"))
    refuse(office, office.world.staff, Conflict, seen)
    change(office.world.profile, args=["--all"])
    refuse(office, office.world.staff, Conflict, seen)


def test_viewers_cannot_confirm_and_invalid_workflows_cannot_be_confirmed(office: Office) -> None:
    office.save(office.world.staff, text="nodes: [")
    refuse(office, office.world.staff, Invalid)
    TeamRole.objects.create(user=office.world.member, team=office.world.team, role=TeamRole.Role.VIEWER)
    refuse(office, office.world.member, ReadOnly)
    archive_workflow(office.world.staff, office.now())
    refuse(office, office.world.staff, Conflict)
    assert not AttentionItem.objects.filter(workflow=office.row, resolved_at=None).exists()


def test_start_checks_the_locked_row_for_changes(office: Office) -> None:
    """The worker read the row before the change; the start checks the locked row."""
    Workflow.objects.update(next_run_at=NOON)
    stale = office.now()
    save_workflow(office.world.member, {"text": SHELL}, office.now())
    assert schedules._start_if_due(stale, NOON) is False
    assert not WorkflowRun.objects.exists()


def test_difference_is_readable_and_hides_nothing(office: Office) -> None:
    evil = json.dumps(json.loads(PLAIN.replace("Go", "Go \u202e hide")), ensure_ascii=False, indent=1)
    office.save(office.world.member, text=evil, files={"part.yaml": "x\n" * 3000 + "y" * 5000})
    change(office.world.profile, env={"API_KEY": "changed-value"})
    changes = {one.part: one for one in office.document()["changes"]}
    assert set(changes) - {"triggers"} == {"text", "file:part.yaml", 'agent:["demo", ""]'}
    assert ("\u202e" in changes["text"].text, "⟦RLO⟧ hide" in changes["text"].text) == (False, True)
    assert changes["file:part.yaml"].is_cut
    assert "environment: API_KEY" in changes['agent:["demo", ""]'].text
    assert "changed-value" not in str(changes)


def test_two_large_hostile_texts_are_compared_quickly(office: Office) -> None:
    before, after = "a\nb\n" * 200_000, "b\na\na\n" * 150_000
    (found,) = compare_parts({"text": before}, {"text": after}, "ada")
    assert found.is_cut


def test_cost_of_many_changed_files_is_bounded() -> None:
    def compare(files: int) -> None:
        lines = [f"{number % 50}" for number in range(500)]
        before = {f"file:{number}": "\n".join(lines) for number in range(files)}
        after = {f"file:{number}": "\n".join([*reversed(lines), str(number)]) for number in range(files)}
        found = compare_parts(before, after, "ada")
        assert len(found) == files

    growth = measure_growth(compare, lambda size: size, sizes=(25, 50, 100, 200, 400))
    growth.assert_within(COMPARISON_LIMITS.cpu_seconds + 1)


def test_parts_are_shown_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger_confirmation, "TEXT_POOL", ConfinedPool("tests.confined.nothing"))
    (found,) = compare_parts({"text": "a\nb"}, {"text": "a\nc\u202e"}, "ada")
    assert (found.lines, found.is_cut) == (("-a", "-b", "+a", "+c⟦RLO⟧"), True)


def test_open_item_is_reopened_with_the_present_reason(office: Office) -> None:
    office.save(office.world.member, text=SHELL)
    first = AttentionItem.objects.get(workflow=office.row)
    inbox.dismiss_item(first, office.world.member)
    assert office.items() == []
    office.confirm(office.world.staff)
    office.save(office.world.staff, text=PLAIN)
    assert AttentionItem.objects.get(workflow=office.row).id == first.id
    assert len(office.items()) == 1, "everybody has the item again"
