"""What users do with a session while processes die: each step acts, waits until everything is idle, and continues."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.process import execution_processes, identity
from tests.chaos.behaviours import NEEDS, Behaviour
from tests.chaos.deployment import ChaosSession
from tests.drills.deployment import ApiError
from tests.waiting import WaitTimeout, eventually

REST_WITHIN: Final = 180.0
"""Seconds within which every request is done, or has failed with an error."""
FIRST_PROMPT: Final = "remember walrus\nwork 0.5\nask"
GUARD: Final = "-I\0-S\0/proc/self/fd/"
ACTIVE: Final = frozenset({"sending", "accepted", "delivered"})


def pending_work(session: ChaosSession) -> str:
    """Return what is in progress; empty if the session is at rest."""
    row = session.row
    if pending := [one["id"] for one in session.rows("session_permissions") if one["state"] == "pending"]:
        return f"permissions {pending}"
    if runs := [one["message_id"] for one in session.rows("session_runs") if one["state"] in ("running", "waiting")]:
        return f"turns of {runs}"
    prompts = session.rows("session_prompts")
    if active := [f"{one['message_id']} {one['state']}" for one in prompts if one["state"] in ACTIVE]:
        return f"prompts {active}"
    intents = [one for one in session.rows("session_intents") if one["done_at"] is None]
    waits = row["next_restart_at"] is not None and _time(row["next_restart_at"]) > datetime.now(UTC)
    if due := [one["kind"] for one in intents if not (one["kind"] == "start" and waits)]:
        return f"orders {due}"
    queued = [one["message_id"] for one in prompts if one["state"] == "queued"]
    # after a reported failure, the queue may wait for its user
    if queued and row["desired_state"] == "running" and not row["error_code"] and not waits:
        return f"queued prompts {queued}"
    return "a start" if row["state"] == "STARTING" and not waits else ""


def wait_until_idle(session: ChaosSession, urge: Callable[[ChaosSession, str], None] | None = None) -> None:
    """Wait until the session is at rest, answering its permission requests; raise WaitTimeout with what is stuck."""
    deadline = time.monotonic() + REST_WITHIN
    calm = 0
    while calm < 2:  # between two steps of the supervisor, everything may seem idle
        trouble = pending_work(session)
        calm = 0 if trouble else calm + 1
        if trouble.startswith("permissions"):
            answer(session)
        elif trouble and urge:
            urge(session, trouble)
        if time.monotonic() > deadline:
            raise WaitTimeout(f"{session.behaviour} {session.id} is not at rest: {trouble}")
        time.sleep(0.1)


def answer(session: ChaosSession) -> None:
    """Answer the agent's permission requests."""
    for one in session.world.ask("GET", f"{session.path}/permissions/")["results"]:
        if one["resume_token"]:  # shown while it can be answered
            body = {"option_id": one["options"][0]["option_id"], "resume_token": one["resume_token"]}
            request_or_refusal(session, "POST", f"permissions/{one['id']}/", body)


def prompt(session: ChaosSession, text: str) -> str:
    """Prompt the session; return the prompt's id or the refusal."""
    body = session.world.tagged(text)
    message_id = uuid.uuid4().hex
    refused = request_or_refusal(session, "POST", "prompt/", {"message_id": message_id, "text": body})
    return refused or message_id


def request_or_refusal(session: ChaosSession, method: str, path: str, body: Any = None) -> str:
    """Make a request; return a refusal like any other answer."""
    try:
        session.world.ask(method, f"{session.path}/{path}", body)
    except ApiError as error:
        if error.status >= 500:
            raise
        return f"refused: {error}"
    return ""


def cancel(session: ChaosSession) -> None:
    """Cancel a long turn while the agent works on it."""
    prompt(session, "work 8")
    wait_for_turn(session)
    request_or_refusal(session, "POST", "cancel/", {})
    wait_until_idle(session, cancel_again)


def cancel_again(session: ChaosSession, trouble: str) -> None:
    """Cancel a turn that began only after the cancel, because its prompt was delayed."""
    if trouble.startswith("turns"):
        request_or_refusal(session, "POST", "cancel/", {})


def wait_for_turn(session: ChaosSession) -> None:
    """Wait until the newest prompt is being worked on, or will not be."""

    def there() -> bool:
        newest = session.rows("session_prompts", "created_at")[-1:]
        if not newest or newest[0]["state"] in ("delivered", "done"):
            return True
        trouble = pending_work(session)
        if trouble.startswith("permissions"):  # a delayed earlier prompt asks before this turn
            answer(session)
        return not trouble

    eventually(there, timeout=REST_WITHIN, describe=f"{session.behaviour}: its turn begins")


def kill_agentctl_in_turn(session: ChaosSession) -> None:
    """Kill agentctl in a turn, with its guard if that leaves processes behind."""
    prompt(session, "work 1.5")
    wait_for_turn(session)
    kill_agentctl(session)
    wait_until_idle(session)


def kill_supervisor_in_turn(session: ChaosSession) -> None:
    """Kill the supervisor in a turn."""
    prompt(session, "work 1.5")
    wait_for_turn(session)
    session.world.control_plane.kill("supervisor")
    wait_until_idle(session)


def kill_agentctl(session: ChaosSession) -> bool:
    """Kill agentctl; for an agent that forks, also its guard, which leaves the children running."""
    found = execution_processes.find_processes(session.execution_id).agentctl
    if not found:
        return False
    session.world.excused[session.id] = "agentctl was killed"
    guards = [one for one in session.processes() if session.behaviour == "forks" and GUARD in _words(one.pid)]
    for who in (*guards, *found):
        identity.send_signal(who, signal.SIGKILL)
    if guards:
        session.end_unmarked()
    return True


def is_agent(pid: int) -> bool:
    """Return whether this is a test agent itself, not its guard."""
    words = _words(pid)
    return "tests.chaos.agent" in words and GUARD not in words


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def resume(session: ChaosSession) -> None:
    """Prompt a stopped session; if its conversation is gone, the next prompt agrees to a new one."""
    prompt(session, "work 0.3")
    wait_until_idle(session)
    if session.row["error_code"]:
        prompt(session, "work 0.3")
        wait_until_idle(session)


def stop(session: ChaosSession) -> None:
    """Stop the session and wait until none of its processes runs."""
    request_or_refusal(session, "POST", "stop/", {})
    wait_until_idle(session)


def close(session: ChaosSession) -> None:
    """Close the session for good."""
    request_or_refusal(session, "POST", "close/", {"as": "completed"})
    wait_until_idle(session)


Step = Callable[[ChaosSession], object]
WHOLE: Final[Sequence[Step]] = (wait_until_idle, cancel, kill_agentctl_in_turn, stop, resume, close)
"""Everything that a session can go through."""


def steps_for(points: Sequence[str], behaviour: Behaviour) -> Sequence[Step]:
    """Return the shortest life that reaches a single point; the whole life for several points."""
    if len(points) > 1:
        dies_anyway = all(one.startswith("agentctl.") for one in points)
        return [step for step in WHOLE if not (dies_anyway and step is kill_agentctl_in_turn)]
    point = points[0]
    steps: list[Step] = [wait_until_idle]
    if NEEDS.get(point) == "long":
        steps.append(cancel)
    if point in ("sweep.taken_over", "sweep.decided", "sweep.written"):
        steps.append(kill_supervisor_in_turn)
    elif point.startswith("sweep.") or (NEEDS.get(point) == "failure" and behaviour.name != "hangs_at_initialize"):
        steps.append(kill_agentctl_in_turn)
    if point.startswith("request."):
        steps.append(resume)
    if behaviour.about_load or "stop" in point:
        steps += [stop, resume]
    return [*steps, close]


def close_all(sessions: Iterable[ChaosSession]) -> None:
    """Close what is still open, including sessions whose creation got no answer."""
    for session in sessions:
        if session.row["state"] not in ("COMPLETED", "CANCELLED"):
            close(session)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(str(text))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
