"""A demonstration in two acts: the control plane is killed in the middle of a turn, then every process is.

Every line that is printed with a tick was checked; the first check that fails ends the demonstration.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from executors_app.machine.process import identity
from sessions_app.demo.demo_data import DEMO_AGENT, DEMO_EXECUTOR, DEMO_USER, HELLO_TASK
from sessions_app.demo.temporary_deployment import DemoFailed, TemporaryDeployment, wait_until
from sessions_app.management.console import VisibleConsole
from sessions_app.models import ContinuityReceipt
from sessions_app.pages.labels import receipt_label

_PAUSE_SECONDS: Final = 1.5
"""Seconds between two lines of the agent's output."""
_PROCESS_NAMES: Final = {"kandev-web": "web", "kandev-supervis": "supervisor", "kandev-worker": "worker"}
"""The processes of ``serve`` by their names in the kernel, which cuts names to 15 characters."""
_SWEEP_COLUMNS: Final = ("session_id", "observed", "rule", "receipt_kind", "session_state", "duration_ms")
"""Fields of a row of ``recover_sessions`` that are shown."""


class RestartDemo:
    """Runs the demonstration on a console, with a temporary installation.

    ``work`` is the duration of the first turn in seconds; it must last until the control plane is running again.
    """

    def __init__(self, console: VisibleConsole, kandev: TemporaryDeployment, work: int):
        self.console, self.kandev, self.work = console, kandev, work
        self.session = ""
        """Path of the session in the API."""

    def run(self) -> None:
        """Run both acts. Raises DemoFailed at the first check that fails."""
        with self.console.status("Starting Kandev in a temporary directory"):
            self.kandev.serve()
            self.kandev.manage("create_demo")
            self.kandev.log_in(DEMO_USER)
        self.report(f"Kandev is running at {self.kandev.url} with its own database")
        self._kill_control_plane_during_a_turn()
        self._kill_everything_during_a_turn()
        self.console.print("\n[bold green]All checks passed.[/]")

    def _kill_control_plane_during_a_turn(self) -> None:
        self.console.rule("[bold]Act 1: the control plane is killed, and the agent keeps working")
        self._start_session(f"remember walrus\nwork {self.work}\nask")
        wait_until(lambda: b"tick" in self._page_text(), "the agent's output appears on the page")
        agents = self.kandev.agent_processes()
        self._print_agent_output(2)
        self.report("The agent is in the middle of its turn")

        earlier_receipt = self._latest_receipt()
        names = ", ".join(_describe_processes(self.kandev.server_processes()))
        self.report(f"kill -9: {names} ({self.kandev.kill_server()} processes in total)")
        self._print_agent_output(3)
        self.check(
            all(map(identity.is_alive, agents)),
            "All agent processes are still running, and the agent continues its turn",
        )

        self._serve_again()
        # The web server answers before the supervisor has swept.
        wait_until(lambda: self._latest_receipt() != earlier_receipt, "there is a receipt of the restart")
        receipt = self._latest_receipt()
        self.check(
            (receipt["kind"], receipt["verified"]) == ("reattached", "same_process"),
            "The sweep reattached the session: same process (verified)",
        )
        self._answer_permission()
        self._compare_page_with_agent()
        self.check(len(self._results("prompts")) == 1, "One prompt, delivered once, in one turn")
        self.check(all(map(identity.is_alive, agents)), "The same processes are still running")

    def _kill_everything_during_a_turn(self) -> None:
        self.console.rule("[bold]Act 2: everything is killed")
        self._send_prompt("second", "work 60")
        wait_until(lambda: self._page_text().count(b"tick 1\n") > 1, "the agent works on its second prompt")
        killed = self.kandev.kill_server()
        self.report(f"kill -9: {killed} processes of Kandev, {self.kandev.kill_agents()} of agentctl and the agent")

        sweep = json.loads(self.kandev.manage("recover_sessions", "--wait", "60", "--json"))["sessions"]
        self._show_sweep(sweep)
        self.check(
            [row["receipt_kind"] for row in sweep] == ["loaded"],
            "recover_sessions resumed it: the agent loaded its own conversation",
        )
        self._serve_again()
        states = {prompt["message_id"]: prompt["state"] for prompt in self._results("prompts")}
        self.check(
            states["second"] == "interrupted",
            "The interrupted prompt is shown as interrupted, and was not sent again",
        )
        self._call("POST", "prompts/second/dismiss/")
        self._send_prompt("third", "what was the word?")
        wait_until(lambda: b"The word was walrus.\n" in self._page_text(), "the agent remembers the word")
        self.report("The agent still knows the word from act 1: walrus")
        advice = b"Verify what is there before you repeat"
        wait_until(lambda: advice in self._page_text(), "the agent is informed of its interrupted turn")
        self.report("The agent was told that its last turn was interrupted")
        self._show_receipts()

    # --- steps ---

    def _start_session(self, prompt: str) -> None:
        api = self.kandev.api
        environment = {"KANDEV_DEMO_AGENT_HOME": str(self.kandev.agent_home)}
        profile = api(
            "POST", "agent-profiles/", {"name": f"{DEMO_AGENT} with a log", "agent_type": "demo", "env": environment}
        )
        task = _find_row(api("GET", "tasks/"), "title", HELLO_TASK)
        executor = _find_row(api("GET", "executors/"), "name", DEMO_EXECUTOR)
        body = {"agent_profile": profile["id"], "executor": executor["id"], "prompt": prompt}
        session = api("POST", f"tasks/{task['id']}/sessions/", body)
        self.session = f"tasks/{task['id']}/sessions/{session['id']}"

    def _send_prompt(self, message_id: str, text: str) -> None:
        self._call("POST", "prompt/", {"message_id": message_id, "text": text})

    def _serve_again(self) -> None:
        with self.console.status("Starting Kandev again"):
            self.kandev.serve()

    def _answer_permission(self) -> None:
        with self.console.status("The agent continues, and will then ask for permission"):
            request = wait_until(self._pending_permissions, "the agent asks for permission", self.work + 40)[0]
        self.report("The agent asks for permission, in the same turn")
        option = request["options"][0]
        answer = {"option_id": option["option_id"], "resume_token": request["resume_token"]}
        self._call("POST", f"permissions/{request['id']}/", answer)
        wait_until(lambda: self._results("runs")[0]["state"] == "completed", "the turn is finished")
        self.report(f"The permission was answered ({option['name']}), and the turn finished")

    def _compare_page_with_agent(self) -> None:
        sent, shown = self.kandev.agent_output(), self._page_text()
        table = Table("", "bytes", "SHA-256", box=None, header_style="bold", pad_edge=False)
        for name, text in (("the agent's own log", sent), ("the page", shown)):
            table.add_row(name, str(len(text)), hashlib.sha256(text).hexdigest()[:16])
        self.console.print(table)
        self.check(sent == shown, "Identical bytes: nothing was lost or duplicated")

    # --- observation ---

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.kandev.api(method, f"{self.session}/{path}", body)

    def _results(self, path: str) -> list[dict[str, Any]]:
        return list(self._call("GET", f"{path}/?limit=500")["results"])

    def _latest_receipt(self) -> dict[str, Any]:
        return self._call("GET", "status/")["latest_receipt"] or {}

    def _pending_permissions(self) -> list[dict[str, Any]]:
        return [request for request in self._results("permissions") if request["state"] == "pending"]

    def _page_text(self) -> bytes:
        """Return the agent's messages, as the API returns them."""
        messages = self._results("messages")
        return "".join(message["text"] for message in messages if message["role"] == "agent").encode()

    # --- output ---

    def report(self, text: str) -> None:
        """Print a line with a tick."""
        self.console.print(f"[green]✓[/] {escape(text)}", highlight=False)

    def check(self, holds: bool, text: str) -> None:
        """Print a line with a tick if ``holds``. Raises DemoFailed if not."""
        if not holds:
            raise DemoFailed(f"Check failed: {text}")
        self.report(text)

    def _print_agent_output(self, lines: int) -> None:
        """Print lines of the agent's own log as it grows."""
        for _ in range(lines):
            self._wait_for_agent_output()
            last_line = self.kandev.agent_output().decode().strip().rpartition("\n")[2]
            self.console.print(f"    agent output: [cyan]{escape(last_line)}[/]", highlight=False)
            time.sleep(_PAUSE_SECONDS)

    def _wait_for_agent_output(self) -> None:
        length = len(self.kandev.agent_output())
        wait_until(lambda: len(self.kandev.agent_output()) > length, "the agent sends output")

    def _show_sweep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        table = Table(*_SWEEP_COLUMNS, title="recover_sessions", title_justify="left", header_style="bold")
        for row in rows:
            table.add_row(*(escape(str(row[name])[:24]) for name in _SWEEP_COLUMNS))
        self.console.print(table)

    def _show_receipts(self) -> None:
        table = Table("at", "continuity receipt", title="All receipts", title_justify="left", header_style="bold")
        for row in reversed(self._results("receipts")):
            receipt = ContinuityReceipt(kind=row["kind"], verified=row["verified"])
            table.add_row(row["created_at"][11:19], receipt_label(receipt).text)
        self.console.print(table)


def _describe_processes(processes: Iterable[identity.ProcessIdentity]) -> list[str]:
    """Return ``web 123``, ``supervisor 124`` and ``worker 125``, without their children."""
    found: dict[str, str] = {}
    for process in processes:
        name = _PROCESS_NAMES.get(Path(f"/proc/{process.pid}/comm").read_text().strip())
        if name:
            found.setdefault(name, f"{name} {process.pid}")
    return list(found.values())


def _find_row(page: Mapping[str, Any], field: str, value: str) -> dict[str, Any]:
    for row in page["results"]:
        if row[field] == value:
            return dict(row)
    raise DemoFailed(f"The demo could not find {value!r}.")
