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

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from executors_app.agentctl.process import identity
from sessions_app.management.demo_data import DEMO_AGENT, DEMO_EXECUTOR, DEMO_USER, HELLO_TASK
from sessions_app.management.temporary_deployment import DemoFailed, TemporaryDeployment, wait_until
from sessions_app.models import ContinuityReceipt
from sessions_app.pages.labels import receipt_label

_PAUSE_SECONDS: Final = 1.5
"""Seconds between two lines of the agent's output."""
_PROCESS_NAMES: Final = {"kandev-web": "web", "kandev-supervis": "supervisor", "kandev-worker": "worker"}
"""The processes of ``serve`` by their names in the kernel, which cuts names to 15 characters."""


class RestartDemo:
    """Runs the demonstration on a console, with a temporary installation."""

    def __init__(self, console: Console, kandev: TemporaryDeployment, work: int):
        self.console, self.kandev = console, kandev
        self.work = work
        """Seconds of the first turn, which must last until the control plane is running again."""
        self.session = ""

    def run(self) -> None:
        """Run both acts. Raises DemoFailed at the first check that fails."""
        self._open()
        self._first_act()
        self._second_act()
        self.console.print("\n[bold green]All checks passed.[/]")

    # --- preparation ---

    def _open(self) -> None:
        with self.console.status("Starting Kandev in a temporary directory"):
            self.kandev.serve()
            self.kandev.manage("create_demo")
            self.kandev.log_in(DEMO_USER)
        self.report(f"Kandev is running at {self.kandev.url} with its own database")

    def _start(self, prompt: str) -> None:
        api = self.kandev.api
        profile = api(
            "POST",
            "agent-profiles/",
            {
                "name": f"{DEMO_AGENT} with a log",
                "agent_type": "demo",
                "env": {"KANDEV_DEMO_AGENT_HOME": str(self.kandev.agent_home)},
            },
        )
        task = _find_result(api("GET", "tasks/"), "title", HELLO_TASK)
        executor = _find_result(api("GET", "executors/"), "name", DEMO_EXECUTOR)
        body = {"agent_profile": profile["id"], "executor": executor["id"], "prompt": prompt}
        made = api("POST", f"tasks/{task['id']}/sessions/", body)
        self.session = f"tasks/{task['id']}/sessions/{made['id']}"

    # --- act one ---

    def _first_act(self) -> None:
        self.console.rule("[bold]Act 1: the control plane is killed, and the agent keeps working")
        self._start(f"remember walrus\nwork {self.work}\nask")
        wait_until(lambda: b"tick" in self._shown(), "the agent's output appears on the page")
        agents = self.kandev.agent_processes()
        self._print_agent_output(2)
        self.report("The agent is in the middle of its turn")

        first = self._status()["latest_receipt"]
        names = _describe_processes(self.kandev.server_processes())
        killed = self.kandev.kill_server()
        self.report(f"kill -9: {', '.join(names)} ({len(killed)} processes in total)")
        self._print_agent_output(3)
        self.check(
            all(map(identity.is_alive, agents)),
            "All agent processes are still running, and the agent continues its turn",
        )

        with self.console.status("Starting Kandev again"):
            self.kandev.serve()
        receipt = self._receipt_after(first)
        self.check(
            (receipt["kind"], receipt["verified"]) == ("reattached", "same_process"),
            "The sweep reattached the session: same process (verified)",
        )
        self._answer()
        self._compare(agents)

    def _receipt_after(self, earlier: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait for the receipt of the restart: the web server answers before the supervisor has swept."""

        def newer() -> dict[str, Any]:
            latest = self._status()["latest_receipt"]
            return {} if latest == earlier else dict(latest)

        return wait_until(newer, "there is a receipt of the restart")

    def _answer(self) -> None:
        with self.console.status("The agent continues, and will then ask for permission"):
            asked = wait_until(self._asked, "the agent asks for permission", self.work + 40)[0]
        self.report("The agent asks for permission, in the same turn")
        option = asked["options"][0]
        answer = {"option_id": option["option_id"], "resume_token": asked["resume_token"]}
        self.kandev.api("POST", f"{self.session}/permissions/{asked['id']}/", answer)
        self._wait_for_turn(1)
        self.report(f"The permission was answered ({option['name']}), and the turn finished")

    def _asked(self) -> list[dict[str, Any]]:
        permissions = self.kandev.api("GET", f"{self.session}/permissions/")["results"]
        return [one for one in permissions if one["state"] == "pending"]

    def _compare(self, agents: Iterable[identity.ProcessIdentity]) -> None:
        said, shown = self.kandev.said(), self._shown()
        table = Table("", "bytes", "SHA-256", box=None, header_style="bold", pad_edge=False)
        for name, text in (("the agent's own log", said), ("the page", shown)):
            table.add_row(name, str(len(text)), hashlib.sha256(text).hexdigest()[:16])
        self.console.print(table)
        self.check(said == shown, "Identical bytes: nothing was lost or duplicated")
        self.check(len(self._prompts()) == 1, "One prompt, delivered once, in one turn")
        self.check(all(map(identity.is_alive, agents)), "The same processes are still running")

    # --- act two ---

    def _second_act(self) -> None:
        self.console.rule("[bold]Act 2: everything is killed")
        self.kandev.api("POST", f"{self.session}/prompt/", {"message_id": "second", "text": "work 60"})
        before = len(self.kandev.said())
        wait_until(lambda: len(self.kandev.said()) > before, "the agent works on its second prompt")
        wait_until(lambda: self._shown().count(b"tick 1\n") > 1, "the page shows it")
        self._kill_everything()

        document = json.loads(self.kandev.manage("recover_sessions", "--wait", "60", "--json"))
        self._show_sweep(document)
        rows = document["sessions"]
        self.check(
            [row["receipt_kind"] for row in rows] == ["loaded"],
            "recover_sessions resumed it: the agent loaded its own conversation",
        )
        states = [(row["message_id"] == "second", row["state"]) for row in self._prompts_after_restart()]
        self.check(
            (True, "interrupted") in states, "The interrupted prompt is shown as interrupted, and was not sent again"
        )
        self.kandev.api("POST", f"{self.session}/prompts/second/dismiss/")
        self._ask_for_the_word()
        self._show_receipts()

    def _kill_everything(self) -> None:
        killed = self.kandev.kill_server()
        agents = self.kandev.agent_processes()
        left = identity.kill_all(agents, 10)
        self.check(not left, f"kill -9: {len(killed)} processes of Kandev, {len(agents)} of agentctl and the agent")
        self.check(not self.kandev.agent_processes(), "No process is left")

    def _show_sweep(self, document: Mapping[str, Any]) -> None:
        columns = ("session", "observed", "rule", "receipt", "session state", "ms")
        table = Table(*columns, title="recover_sessions", title_justify="left", header_style="bold")
        for row in document["sessions"]:
            values = (
                row["session_id"][:8],
                row["observed"],
                row["rule"],
                row["receipt_kind"],
                row["session_state"],
                row["duration_ms"],
            )
            table.add_row(*(escape(str(value)) for value in values))
        self.console.print(table)

    def _show_receipts(self) -> None:
        table = Table("at", "continuity receipt", title="All receipts", title_justify="left", header_style="bold")
        for row in reversed(self.kandev.api("GET", f"{self.session}/receipts/")["results"]):
            receipt = ContinuityReceipt(kind=row["kind"], verified=row["verified"])
            table.add_row(row["created_at"][11:19], receipt_label(receipt).text)
        self.console.print(table)

    def _prompts_after_restart(self) -> list[dict[str, Any]]:
        with self.console.status("Starting Kandev again"):
            self.kandev.serve()
        return self._prompts()

    def _ask_for_the_word(self) -> None:
        self.kandev.api("POST", f"{self.session}/prompt/", {"message_id": "third", "text": "what was the word?"})
        wait_until(lambda: b"The word was walrus.\n" in self._shown(), "the agent remembers the word")
        self.report("The agent still knows the word from act 1: walrus")
        wait_until(
            lambda: b"Verify what is there before you repeat" in self._shown(),
            "the agent is informed of its interrupted turn",
        )
        self.report("The agent was told that its last turn was interrupted")

    # --- observation ---

    def _status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.kandev.api("GET", f"{self.session}/status/")
        return answer

    def _prompts(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.kandev.api("GET", f"{self.session}/prompts/")["results"]
        return answer

    def _shown(self) -> bytes:
        """Return the agent's messages, as the API returns them."""
        found = self.kandev.api("GET", f"{self.session}/messages/?limit=500")["results"]
        return "".join(message["text"] for message in found if message["role"] == "agent").encode()

    def _wait_for_turn(self, number: int) -> None:
        def ended() -> bool:
            runs = self.kandev.api("GET", f"{self.session}/runs/")["results"]
            return len([run for run in runs if run["state"] == "completed"]) >= number

        wait_until(ended, "the turn is finished")

    def _print_agent_output(self, times: int) -> None:
        """Print lines of the agent's own log as it grows."""
        for _ in range(times):
            length = len(self.kandev.said())
            self._wait_for_more_output(length)
            last = self.kandev.said().decode().strip().rpartition("\n")[2]
            self.console.print(f"    agent output: [cyan]{escape(last)}[/]", highlight=False)
            time.sleep(_PAUSE_SECONDS)

    def _wait_for_more_output(self, length: int) -> None:
        wait_until(lambda: len(self.kandev.said()) > length, "the agent sends output")

    # --- output ---

    def report(self, text: str) -> None:
        """Print a line with a tick."""
        self.console.print(f"[green]✓[/] {escape(text)}", highlight=False)

    def check(self, holds: bool, text: str) -> None:
        """Print a line with a tick if ``holds``. Raises DemoFailed if not."""
        if not holds:
            raise DemoFailed(f"Check failed: {text}")
        self.report(text)


def _describe_processes(processes: Iterable[identity.ProcessIdentity]) -> list[str]:
    """Return ``web 123``, ``supervisor 124`` and ``worker 125``, without their children."""
    found: dict[str, str] = {}
    for process in processes:
        part = _PROCESS_NAMES.get(Path(f"/proc/{process.pid}/comm").read_text().strip())
        if part:
            found.setdefault(part, f"{part} {process.pid}")
    return list(found.values())


def _find_result(page: Mapping[str, Any], field: str, value: str) -> dict[str, Any]:
    found = next((row for row in page["results"] if row[field] == value), None)
    if found is None:
        raise DemoFailed(f"The demo could not find {value!r}.")
    return dict(found)
