"""No control, invisible or direction-changing character of a stored text reaches a page, a terminal, a log or a mail.

The same hostile text is planted in every text that an agent, a member or a repository can store, and then looked for on
every surface. Pages come from the authorization matrix, so new ones are included automatically.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError
from django.db.models import Model
from django.test import Client
from django.utils import timezone
from rich.table import Table

from executors_app.agentctl.command_line import log_to_stderr
from executors_app.models import AgentCapability, AgentProfile, Executor, ExecutorRunning
from kandev.log_format import ConsoleFormatter, JsonFormatter
from sessions_app.accounts import credentials
from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.services.errors import Invalid
from sessions_app.management.commands.recover_sessions import print_result
from sessions_app.management.console import VisibleConsole
from sessions_app.management.output import VisibleCommand
from sessions_app.models import (
    AgentSettings,
    AttentionItem,
    Message,
    MessagePart,
    PermissionRequest,
    Prompt,
    Repository,
    SweepOutcome,
    SweepRequest,
    Task,
    TaskSession,
    Turn,
)
from sessions_app.notifications import delivery
from sessions_app.redaction.visible_text import make_visible
from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun
from tests.attention.reading import as_read
from tests.pages.fixtures import world  # noqa: F401 - fixture
from tests.pages.test_browser import busy_session
from tests.pages.world import World, asks, ingest_lines, make_sweep
from tests.rights.admin_matrix import MODELS
from tests.rights.matrix import PAGES
from tests.workflows.pages.workflow_rows import looped_run

pytestmark = pytest.mark.any_database

HOSTILE: Final = "ok\u202eko\u2066 \u200b\x1b[2J\x1b]0;own\x07\x9b8m\r\x7f\U000e0041 end"
RAW: Final = re.compile("[\u202e\u2066\u200b\x1b\x07\x9b\r\x7f\U000e0041]")
SOURCES: Final = Path(__file__).parents[2] / "sessions_app"
PLANTED: Final[Mapping[type[Model], tuple[str, ...]]] = {
    AgentProfile: ("name", "model", "mode"),
    Executor: ("name",),
    AgentCapability: ("agent_name", "agent_version", "broken_said"),
    ExecutorRunning: ("capability_note", "worktree_branch", "worktree_path", "error_message", "snapshot_error"),
    ApiToken: ("name",),
    Workflow: ("name", "description", "trigger_error", "triggers_paused"),
    WorkflowRun: ("name", "error"),
    NodeRun: ("error", "waiting_for", "output_tail"),
    Repository: ("name", "default_branch", "default_base"),
    Task: ("title", "description", "base_branch"),
    TaskSession: ("model", "worktree_path", "worktree_branch", "error_message"),
    SweepOutcome: ("reason", "error_message"),
    AttentionItem: ("what", "why", "next_step", "detail"),
    Prompt: ("text", "trouble_message"),
    Turn: ("wait_reason", "reason"),
    MessagePart: ("text",),
    AgentSettings: ("title",),
    Group: ("name",),
    User: ("first_name", "last_name"),
}
"""What agents, members and repositories can fill: changed here without the checks of forms and parsers."""


@pytest.fixture
def url_values(world: World) -> Mapping[str, Any]:  # noqa: F811
    """Return values for the variables of URLs, after the hostile text was planted."""
    session = busy_session(world)
    session.receipts.create(kind="failed", verified="none", reason=HOSTILE[:20], evidence={"message": HOSTILE})
    offers = {"id": HOSTILE, "name": HOSTILE, "type": "boolean", "value": True, "description": HOSTILE, "choices": []}
    commands = [{"name": HOSTILE, "description": HOSTILE, "hint": HOSTILE}]
    AgentSettings.objects.create(session=session, settings=[{**offers, "category": HOSTILE}], commands=commands)
    scope = {"team": world.team, "profile": world.profile, "executor": world.executor, "agent_type": "demo"}
    AgentCapability.objects.create(**scope, capability="load_session", claimed=True, last_seen_at=timezone.now())
    credentials.create_token(world.ada, "nightly", "write", 90)
    sweep = make_sweep(session, reattached=3, failed=1)
    request = SweepRequest.objects.create(by=world.ada, sweep=sweep, report={"sessions": []})
    run = looped_run(world, session)
    ingest_lines(session, *_hostile_lines())
    User.objects.filter(pk=world.ada.pk).update(is_staff=True, is_superuser=True)
    _plant()
    return {
        "task_id": session.task_id,
        "session_id": session.id,
        "entry_id": session.messages.filter(role="tool").latest("seq").id,
        "sweep_id": sweep.id,
        "request_id": request.id,
        "team_id": world.team.pk,
        "repository_id": world.repository.pk,
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "user_id": world.ada.pk,
        "name": "codex",
        "profile_id": world.profile.pk,
        "executor_id": world.executor.pk,
        "runtime": "remote_docker",
    }


def _hostile_lines() -> list[dict[str, Any]]:
    """Return journal lines with the hostile text in every place that an agent can fill."""
    diff = {"type": "diff", "path": HOSTILE, "oldText": HOSTILE, "newText": f"{HOSTILE}\n{HOSTILE}"}
    tool = {"title": HOSTILE, "tool_kind": HOSTILE, "raw_input": {HOSTILE: HOSTILE}, "locations": [{"path": HOSTILE}]}
    options = [{"option_id": HOSTILE, "name": HOSTILE, "kind": "allow_once"}]
    return [
        {"kind": "message.agent", "text": HOSTILE},
        {"kind": "message.thought", "text": HOSTILE},
        {"kind": "message.user", "text": HOSTILE},
        {"kind": "plan", "entries": [{"content": HOSTILE, "status": HOSTILE}]},
        {"kind": "tool.call", "tool_call_id": HOSTILE, "status": "failed", **tool, "content": [diff]},
        {**asks("hostile", **tool), "options": options},
        {"kind": "message.agent", "text": f"not complete {HOSTILE}"},
    ]


def _plant() -> None:
    for model, names in PLANTED.items():
        for row in model._default_manager.all():
            limits = {name: getattr(model._meta.get_field(name), "max_length", None) for name in names}
            values = {name: f"{getattr(row, name)}{HOSTILE}"[:limit] for name, limit in limits.items()}
            model._default_manager.filter(pk=row.pk).update(**values)


def _paths(values: Mapping[str, Any]) -> Iterator[str]:
    for route, methods in PAGES.items():
        if "get" in methods and 200 in methods["get"].statuses and not route.endswith(".png"):
            query = methods["get"].query
            path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: str(values[found[1]]), route)
            yield f"{path}?{query}" if query else path
    for name in MODELS:
        yield f"/admin/{name}/"


def _texts(answer: Any) -> Iterator[str]:
    """Yield what a page shows of a response: its HTML, or the HTML in its JSON. Other JSON is data."""
    if not answer.headers.get("Content-Type", "").startswith("application/json"):
        yield answer.text
        return
    rest = [answer.json()]
    while rest:
        value = rest.pop()
        if isinstance(value, str) and "<" in value:
            yield value
        elif isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)


def test_no_page_contains_an_invisible_character(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    client = Client()
    client.force_login(User.objects.get(pk=world.ada.pk))
    raw, visible = [], 0
    for path in _paths(url_values):
        answer = client.get(path)
        for text in _texts(answer):
            visible += "⟦RLO⟧" in text
            raw += [
                f"{path}: {text[max(0, found.start() - 60) : found.end() + 20]!r}"
                for found in [RAW.search(text)]
                if found
            ]
    assert raw == []
    assert visible > 40, "the planted text is on most pages"


def test_values_of_forms_come_back_unchanged(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    client = Client()
    client.force_login(User.objects.get(pk=world.ada.pk))
    html = client.get(f"/tasks/{url_values['task_id']}/sessions/{url_values['session_id']}/").text
    value = "ok&#x202E;ko&#x2066; &#x200B;&#x1B;[2J"
    assert f'name="option_id" value="{value}' in html


def test_inbox_items_are_visible_where_they_are_stored(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    items = AttentionItem.objects.filter(kind="permission")
    assert PermissionRequest.objects.filter(state="pending").count() == items.count() == 2
    reasons = [json.dumps([as_read(item).why.removesuffix(HOSTILE)], ensure_ascii=False) for item in items]
    assert "⟦RLO⟧" in " ".join(reasons)
    assert not RAW.search(" ".join(reasons))


def test_mail_and_webhooks_are_visible(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    items = list(AttentionItem.objects.all())
    assert items
    mails = [delivery.render_email(items), *(delivery.render_email([item]) for item in items)]
    assert not RAW.search(" ".join(part for mail in mails for part in mail.values()))
    for item in items:
        payload = delivery.webhook_payload(item, "1")["item"]
        assert not RAW.search(payload["what"] + payload["why"] + payload["next_step"])
        pushed = delivery.push_payload([item])
        assert not RAW.search(pushed["title"] + pushed["body"] + pushed["url"])


def test_table_of_sessions_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("task_title", "session_id", "runtime", "observed", "session_state", "rule", "receipt_kind", "reason")
    row = {**dict.fromkeys(texts, HOSTILE[:8]), "owner": "", "by_supervisor": None, "error_message": "", "result": ""}
    counts = {"examined": 1, "outcomes": {"skipped": 1}, "duration_ms": 1, "dry_run": True}
    document = {**counts, "sessions": [row], "supervised_by": [], "unfinished": []}
    print_result(document, cast(Any, None), explain=False)
    shown = capsys.readouterr().out
    assert shown.count("⟦RLO⟧") == len(texts)
    assert not RAW.search(shown)


class SpeakingCommand(VisibleCommand):
    """Writes the hostile text in each way that a command has."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Write to both streams, then fail."""
        self.stdout.write(HOSTILE)
        self.stderr.write(HOSTILE)
        raise CommandError(HOSTILE)


def test_output_and_errors_of_commands_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit):
        SpeakingCommand().run_from_argv(["manage.py", "speak"])
    assert out.getvalue() == f"{make_visible(HOSTILE)}\n"
    assert err.getvalue().count(make_visible(HOSTILE)) == 2
    assert not RAW.search(err.getvalue())


def test_every_command_and_console_is_visible() -> None:
    sources = [path for path in Path("sessions_app").rglob("*.py") if path.name not in ("console.py", "output.py")]
    named = {
        path.name for path in sources if re.search(r"class Command\(BaseCommand\)|import Console\b", path.read_text())
    }
    assert named == set()


def test_rich_output_is_visible() -> None:
    out = io.StringIO()
    console = VisibleConsole(file=out, width=200, force_terminal=False)
    table = Table("text")
    table.add_row(HOSTILE)
    console.print(table)
    console.print(HOSTILE)
    assert out.getvalue().count("⟦RLO⟧") == 2
    assert not RAW.search(out.getvalue())


@pytest.mark.parametrize("formatter", [ConsoleFormatter("{levelname} {message}", style="{"), JsonFormatter()])
def test_log_lines_are_visible(formatter: logging.Formatter) -> None:
    try:
        raise Invalid(f"{HOSTILE}\n2026-01-01 ERROR forged")
    except Invalid as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a", logging.INFO, "", 1, "session: %s", (f"{HOSTILE}\nERROR forged",), caught)
    record.branch = HOSTILE
    line = formatter.format(record)
    assert not RAW.search(line)
    assert not re.search(r"^(2026|ERROR)", line, re.MULTILINE), "no text starts a record of its own"
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["branch"] == HOSTILE, "data is unchanged"


def test_log_of_agentctl_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(root, "handlers", [])
    log_to_stderr()
    root.warning("the agent says %s", HOSTILE)
    assert "ok\\u202eko" in stream.getvalue()
    assert not RAW.search(stream.getvalue())


def test_error_messages_of_the_api_are_visible(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    client = Client()
    client.force_login(User.objects.get(pk=world.ada.pk))
    path = f"/api/v1/tasks/{url_values['task_id']}/sessions/{url_values['session_id']}/settings/"
    answer = client.post(path, json.dumps({"setting": HOSTILE, "value": HOSTILE}), content_type="application/json")
    assert answer.status_code >= 400
    assert not RAW.search(answer.json()["message"])


def test_api_data_stays_as_it_is(world: World, url_values: Mapping[str, Any]) -> None:  # noqa: F811
    client = Client()
    client.force_login(User.objects.get(pk=world.ada.pk))
    assert HOSTILE in client.get(f"/api/v1/tasks/{url_values['task_id']}/").json()["title"]
    assert Message.objects.exists()


SCRIPTS: Final = SOURCES.parent / "frontend/static/kandev"
SHOWN: Final = re.compile(r"""(?:\.textContent = |\.title = |appendData\(|"aria-label", |confirm\()(.*)""")
SAFE: Final = re.compile(r"""visible\(|^[`"][^$`"]*[`"]""")
"""Text through ``visible``, and words of the script."""
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "numbers": (
        "count ||",
        "chosen.length",
        "chosen ?",
        "`${offers.length}",
        "counted(size,",
        "kept.length",
        "news ?",
        "isShown ?",
    ),
    "times": ("written(", "needsDate ?"),
    "what the server's page shows already": (
        *("node.data.slice(", "form.dataset.asks", "`${button.dataset.act", "`Session: ${label}`", "document.title"),
        'page.querySelector("h1").textContent',  # of the requests, in a dialog
    ),
    "words of the caller, in the same file": ("text;", 'change.replace("_", " ")'),
    "an address, whose host is in ASCII": ("`Open this address, which a program",),
}


def test_scripts_show_foreign_text_only_through_visible() -> None:
    lines = [line for path in SCRIPTS.glob("*.js") for line in path.read_text().splitlines()]
    shown = [found[1] for line in lines if (found := SHOWN.search(line))]
    known = tuple(start for starts in KNOWN.values() for start in starts)
    assert [each for each in shown if not SAFE.search(each) and not each.startswith(known)] == []
    assert len(shown) > 30
