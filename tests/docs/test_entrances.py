"""Every way into Kandev, and everything that it stores, has its row in docs/security.md.

A new address, socket, command, model or module that opens files fails here until somebody has decided which row says
what is refused there, what it costs, and whose rights apply to what is stored.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from channels.routing import URLRouter
from django.apps import apps

from sessions_app import routing
from sessions_app.mcp_server.tools import TOOLS
from tests.docs.test_security import entrances, table_rows
from tests.entrances import test_tools
from tests.rights.urls import addresses
from tests.services import ROOT

API: Final = "JSON of the API"
FORMS: Final = "forms"
PROBES: Final = "probes"
FRAMES: Final = "frames of WebSockets, shell input"
WORKFLOWS: Final = "workflow texts"
RECORD: Final = "the portable record"
ARGUMENTS: Final = "arguments of commands"
OURS: Final = "files of Kandev's own"
WORKSPACE: Final = "files of a workspace"
BRANCH: Final = "the changes of a branch"
REPOSITORY: Final = "pointers, heads and locks"
REFS: Final = "refs of a team's repository"
TEAM: Final = "other files of a team's repository"
SENT: Final = "files that a container, a Pod or a sprite sends"
PROCESSES: Final = "command lines of the processes"
JOURNAL: Final = "frames of an agentctl's journal"

ADDRESSES: Final[Mapping[str, str]] = {
    "api": API,
    **dict.fromkeys(("healthz", "readyz", "metrics"), PROBES),
    **dict.fromkeys(("admin", "agents", "attention", "executors", "live", "login", "logout", "restart"), FORMS),
    **dict.fromkeys(
        ("search", "sessions", "settings", "sweeps", "system", "tasks", "usage", "waits", "workflows", ""), FORMS
    ),
    "first-steps": FORMS,
    **dict.fromkeys(("design", "favicon.ico", "find", "help"), "head of an HTTP request"),
}
"""By the first part of an address."""
SOCKETS: Final[Mapping[str, str]] = {
    "^ws/sessions/(?P<key>[^/]+)/$": FRAMES,
    "^ws/sessions/(?P<key>[^/]+)/shell/$": FRAMES,
    "^ws/tasks/(?P<key>[^/]+)/$": FRAMES,
    "": "head of an HTTP request",
}
COMMANDS: Final[Mapping[str, str]] = {
    "import_sessions": RECORD,
    **dict.fromkeys(("run_workflow", "validate_workflow"), WORKFLOWS),
    "login_link": "names of users and teams",
    **dict.fromkeys(
        ("after_restore", "create_demo", "demo", "drf_create_token", "hosts", "kandev_version", "start_queue"),
        ARGUMENTS,
    ),
    **dict.fromkeys(
        (
            "maintain",
            "migrate",
            "orphans",
            "qcluster",
            "removed_worktrees",
            "rebuild_search",
            "record_backup",
            "recover_sessions",
            "secret_key",
            "serve",
            "supervise",
        ),
        ARGUMENTS,
    ),
}
FILES: Final[Mapping[str, str]] = {
    "sessions_app/portable/reader.py": RECORD,
    "sessions_app/workflows/language/files.py": "component files of a workflow",
    **{
        f"executors_app/{name}.py": row
        for row, names in {
            WORKSPACE: (
                *("cleanup", "repositories/unsaved_work"),
                *("agentctl/workspace/files", "agentctl/workspace/file_writing", "agentctl/workspace/paths"),
                *("agentctl/workspace/submodule_snapshots", "machine/untrusted_files"),
            ),
            BRANCH: (
                *("agentctl/workspace/branch_review", "agentctl/workspace/discarded_files"),
                "agentctl/workspace/uncommitted",
            ),
            REPOSITORY: (
                *("machine/git/git_directory", "machine/git/private_git_directory", "machine/git/ref_locks"),
                *("machine/git/worktrees", "machine/git/git_process"),
            ),
            REFS: ("repositories/ref_files",),
            TEAM: ("repositories/team", "repositories/bare", "repositories/carried_settings", "repositories/layout"),
            "bundle of a workspace": ("repositories/archive", "repositories/transfer", "machine/git/workspace_root"),
            "what a session adds to the team's repository": ("repositories/published_packs",),
            "git-lfs files": ("repositories/object_store",),
            SENT: (
                *("agentctl/volume", "runtimes/containers/archives", "runtimes/fetched_state"),
                "runtimes/sprites/program",
            ),
            PROCESSES: (
                *("agentctl/process/process_tree", "machine/process/execution_processes", "machine/process/identity"),
                "machine/process/path_users",
                *("repositories/progress", "agentctl/process/subreaper"),
            ),
            JOURNAL: ("wire/journal_files", "agentctl/journal"),
            "lines of an agent": ("agentctl/conversation_store", "agentctl/jobs/files", "agentctl/jobs/guards"),
            OURS: (
                *("agentctl/daemon", "agentctl/host/certificate", "agentctl/host/options", "agentctl/host/records"),
                *("agentctl/process/forked_guard", "agentctl/workspace/preparation"),
                *("agentctl/process/guard_client", "agentctl/process/guard_process", "agentctl/process/job_process"),
                *("agentctl/state_files", "agentctl/workspace/workspace", "capacity", "machine/crash_points"),
                *(
                    "machine/agentctl_process",
                    "machine/launch",
                    "machine/process/forking",
                    "machine/sockets",
                    "machine/storage",
                ),
                *(
                    "repositories/remotes",
                    "repositories/slots",
                    "runtimes/kubernetes/launch",
                    "runtimes/remote/config",
                    "demo_agent/agent",
                    "demo_agent/change",
                ),
                "demo_agent/extensions",
            ),
        }.items()
        for name in names
    },
    **{
        f"sessions_app/{name}.py": OURS
        for name in (
            *("demo/restart_demo", "management/startup", "demo/temporary_deployment", "kernel/wakeups"),
            *(
                "notifications/round_lock",
                "pages/assets",
                "pages/views/design",
                "pages/views/help_pages",
                "portable/export_cursor",
                "portable/record",
            ),
            *("recovery/services/restarts", "supervisor/leases", "workflows/loader/client", "workflows/loader/editing"),
            *("workflows/examples", "workflows/loader/loading"),
        )
    },
    **{f"kandev/{name}.py": OURS for name in ("databases", "environment", "liveness", "settings")},
}
"""Modules that open files."""
NOTHING: Final = ""
"""What is stored here never executes, opens or sends anything: it is shown, counted or compared."""
STORED: Final[Mapping[str, str]] = {
    "executors_app.AgentProfile": "agent profiles: command",
    "executors_app.Executor": "executors: runtime",
    "executors_app.AgentCapability": "what an agent claims to support",
    "executors_app.ExecutorRunning": "a session that is restarted automatically",
    "accounts.LoginLink": "login links",
    "accounts.ApiToken": "API tokens",
    "workflows.Workflow": "cron and idle triggers",
    "workflows.WorkflowRun": "an active run",
    "workflows.NodeRun": "a run that is resumed or run again",
    "sessions_app.Repository": "repositories: path",
    "sessions_app.RepositoryRemote": "a repository's remote",
    "sessions_app.Task": "intents and queued prompts",
    "sessions_app.TaskSession": "a session that is restarted automatically",
    "sessions_app.TeamPolicy": "a team's restart `policy`",
    "sessions_app.SweepRequest": "sweep requests",
    "sessions_app.Intent": "intents and queued prompts",
    "sessions_app.Prompt": "intents and queued prompts",
    "sessions_app.Attachment": "intents and queued prompts",
    "sessions_app.ReviewComment": "review comments",
    "sessions_app.PermissionRequest": "lasting answers to permissions",
    "sessions_app.AgentSettings": "settings that users chose",
    "sessions_app.AgentTestResult": "ways to log in that an agent published",
    "sessions_app.ReportedAgent": "ways to log in that an agent published",
    "sessions_app.McpServerList": "MCP servers of a team",
    "sessions_app.PreparedHistory": "the history for a new agent",
    "sessions_app.Message": "links and questions of an agent",
    "sessions_app.MessagePart": "links and questions of an agent",
    "sessions_app.RenderedText": "links and questions of an agent",
    "sessions_app.TaskPlan": "the plan of a task",
    "sessions_app.TaskLabel": "the plan of a task",
    "sessions_app.FinishIntent": "a merge or push that is requested",
    "sessions_app.Suspension": "a suspended session",
    "sessions_app.UsageBudget": "a budget",
    "sessions_app.BudgetHold": "a budget",
    "sessions_app.WaitKey": "wait keys",
    "sessions_app.AttentionItem": "a user's webhooks and e-mail",
    "notifications.NotificationSettings": "a user's webhooks and e-mail",
    "notifications.PushDevice": "a user's devices",
    "notifications.PushKey": "a user's devices",
    "notifications.Webhook": "a team's webhooks",
    "notifications.Delivery": "a user's webhooks and e-mail",
    "notifications.DeliveredItem": "a user's webhooks and e-mail",
    **{f"django_q.{name}": "the worker's schedules" for name in ("Task", "Success", "Failure", "Schedule", "OrmQ")},
    **dict.fromkeys(("authtoken.Token", "authtoken.TokenProxy"), "API tokens"),
    "sessions_app.Leftover": "files of deleted sessions",
    "sessions_app.Orphaned": "files of deleted sessions",
    "sessions_app.RemovedWorktree": "files of deleted sessions",
    **{f"auth.{name}": NOTHING for name in ("Permission", "Group", "User")},
    **dict.fromkeys(
        ("executors_app.SecretKeyCheck", "admin.LogEntry", "contenttypes.ContentType", "sessions.Session"), NOTHING
    ),
    **{f"accounts.{name}": NOTHING for name in ("TeamRole", "Preferences", "AttemptCount")},
    **{
        f"sessions_app.{name}": NOTHING
        for name in (
            *("RecoverySweep", "SweepOutcome", "Supervisor", "Chore", "MetricCount", "AttentionMark", "Presence"),
            *("SessionMark", "Host", "HostMaintenance", "HostProcess", "RepositorySighting", "DataSize", "Backup"),
            *("SessionEvent", "Turn", "ContinuityReceipt", "TurnUsage", "BackgroundWork"),
            *("ViewedVersion", "SearchCursor", "SearchDocument"),
        )
    },
}
"""By model: the row of the table of what is stored and runs, opens or sends something later."""


def first_parts() -> set[str]:
    return {route.split("/")[0] for route in addresses()}


def socket_routes() -> set[str]:
    found: list[object] = [routing.websockets]
    while found:
        one = found.pop()
        if isinstance(one, URLRouter):
            return {str(route.pattern) for route in one.routes}
        found += [value for value in vars(one).values() if callable(value)]
    raise AssertionError("there is no router of sockets")


def commands() -> set[str]:
    folder = ROOT / "sessions_app/management/commands"
    return {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


_OPENING: Final = frozenset(
    {"open", "read_text", "read_bytes", "fdopen", "scandir", "read_regular_file", "open_regular_file", "open_file"}
)
_OF_OTHERS: Final = frozenset(
    {
        *(
            "sessions_app/stream/consumers.py",
            "sessions_app/supervisor/loop.py",
            "sessions_app/management/commands/recover_sessions.py",
        ),
        *("executors_app/agentctl/drivers/acp.py", "executors_app/agentctl/drivers/acp_updates.py"),
        *("executors_app/agentctl/drivers/openai_chat.py", "executors_app/agentctl/http/workspace_api.py"),
    }
)
"""Modules whose ``open`` opens no file."""


def opening_modules() -> Iterator[str]:
    for package in ("sessions_app", "executors_app", "kandev"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name not in _OF_OTHERS and _opens_files(path):
                yield name


def _opens_files(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in _OPENING:
            return True
        is_of_repository = isinstance(called, ast.Attribute) and ast.unparse(called.value).endswith("Repository")
        if isinstance(called, ast.Attribute) and called.attr in _OPENING and not is_of_repository:
            return True
    return False


@pytest.mark.parametrize(
    ("find", "known"),
    [
        (first_parts, ADDRESSES),
        (socket_routes, SOCKETS),
        (commands, COMMANDS),
        (opening_modules, FILES),
    ],
    ids=["addresses", "sockets", "commands", "modules that open files"],
)
def test_every_entrance_has_a_row(find: Callable[[], Iterable[str]], known: Mapping[str, str]) -> None:
    assert set(find()) == set(known)
    rows = [row.split("|")[1].strip() for row in entrances()]
    assert [row for row in set(known.values()) if not any(cell.startswith(row) for cell in rows)] == []


def test_every_tool_of_the_mcp_server_is_measured() -> None:
    marks = test_tools.test_arguments_cost_at_most_in_proportion_to_their_size.pytestmark
    assert [list(mark.args[1]) for mark in marks if mark.name == "parametrize"] == [list(TOOLS)]


def test_every_model_says_whose_rights_apply_to_what_it_stores() -> None:
    assert {model._meta.label for model in apps.get_models()} == set(STORED)
    rows = [row.split("|")[1].strip() for row in table_rows("stored | who may write it |")]
    assert [row for row in set(STORED.values()) if row and not any(cell.startswith(row) for cell in rows)] == []
