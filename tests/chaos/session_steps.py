"""What users do with a session while processes die: each step acts, waits until everything is idle, and continues."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import execution_processes, identity
from tests.chaos.behaviours import REQUIRED_STAGE, Behaviour
from tests.chaos.deployment import ChaosSession
from tests.drills.deployment import ApiError
from tests.waiting import WaitTimeout, eventually

IDLE_TIMEOUT: Final = 180.0
"""Seconds within which a session carries out its requests or reports a failure."""
FIRST_PROMPT: Final = "remember walrus\nwork 0.5\nask"
GUARDS: Final = ("kandev-guard\0", "-I\0-S\0/proc/self/fd/")
"""Begin of a forked guard's command line, and part of an executed one's."""
ACTIVE: Final = frozenset({"sending", "accepted", "delivered"})


def pending_work(session: ChaosSession) -> str:
    """Return what is in progress; an empty string if the session is idle."""
    row = session.row
    if limits := [one["id"] for one in session.rows("session_suspensions") if one["ended_at"] is None]:
        return f"limits {limits}"
    if permissions := [one["id"] for one in session.rows("session_permissions") if one["state"] == "pending"]:
        return f"permissions {permissions}"
    if runs := [one["message_id"] for one in session.rows("session_runs") if one["state"] in ("running", "waiting")]:
        return f"turns of {runs}"
    prompts = session.rows("session_prompts")
    if active := [f"{one['message_id']} {one['state']}" for one in prompts if one["state"] in ACTIVE]:
        return f"prompts {active}"
    intents = [one for one in session.rows("session_intents") if one["done_at"] is None]
    waits = row["next_restart_at"] is not None and _time(row["next_restart_at"]) > datetime.now(UTC)
    if due := [one["kind"] for one in intents if not (one["kind"] == "start" and waits)]:
        return f"intents {due}"
    queued = [one["message_id"] for one in prompts if one["state"] == "queued"]
    # after a reported failure, the queue may wait for its user
    if queued and row["desired_state"] == "running" and not row["error_code"] and not waits:
        return f"queued prompts {queued}"
    return "a start" if row["state"] == "STARTING" and not waits else ""


def wait_until_idle(session: ChaosSession, on_pending: Callable[[ChaosSession, str], None] | None = None) -> None:
    """Wait until the session is idle, answering its permission requests; raise WaitTimeout with what is pending.

    Calls ``on_pending`` with the session and a description of what is in progress.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT
    idle_checks = 0
    while idle_checks < 2:  # between two steps of the supervisor, everything may seem idle
        pending = pending_work(session)
        idle_checks = 0 if pending else idle_checks + 1
        if pending.startswith("permissions"):
            answer(session)
        elif pending and on_pending:
            on_pending(session, pending)
        if time.monotonic() > deadline:
            raise WaitTimeout(f"{session.behaviour} {session.id} is not idle: {pending}")
        time.sleep(0.1)


def answer(session: ChaosSession) -> None:
    """Answer the agent's permission requests."""
    for one in session.deployment.request("GET", f"{session.path}/permissions/")["results"]:
        if one["resume_token"]:  # shown while it can be answered
            body = {"option_id": one["options"][0]["option_id"], "resume_token": one["resume_token"]}
            request_or_refusal(session, "POST", f"permissions/{one['id']}/", body)


def prompt(session: ChaosSession, text: str) -> str:
    """Prompt the session; return the prompt's id or the refusal."""
    body = session.deployment.tagged(text)
    message_id = uuid.uuid4().hex
    refused = request_or_refusal(session, "POST", "prompt/", {"message_id": message_id, "text": body})
    return refused or message_id


def request_or_refusal(session: ChaosSession, method: str, path: str, body: Any = None) -> str:
    """Send a request; return the refusal, or an empty string if it succeeded."""
    try:
        session.deployment.request(method, f"{session.path}/{path}", body)
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


def cancel_again(session: ChaosSession, pending: str) -> None:
    """Cancel a turn that began only after the cancel, because its prompt was delayed."""
    if pending.startswith("turns"):
        request_or_refusal(session, "POST", "cancel/", {})


def wait_for_turn(session: ChaosSession) -> None:
    """Wait until the turn of the newest prompt has begun, or nothing is pending."""

    def turn_began() -> bool:
        newest = session.rows("session_prompts", "created_at")[-1:]
        if not newest or newest[0]["state"] in ("delivered", "done"):
            return True
        pending = pending_work(session)
        if pending.startswith("permissions"):  # a delayed earlier prompt asks before this turn
            answer(session)
        return not pending

    eventually(turn_began, timeout=IDLE_TIMEOUT, describe=f"{session.behaviour}: its turn begins")


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
    session.deployment.control_plane.kill("supervisor")
    wait_until_idle(session)


def kill_agentctl(session: ChaosSession) -> bool:
    """Kill agentctl; for an agent that forks, also its guard, which leaves the children running."""
    found = execution_processes.find_processes(session.execution_id).agentctl
    if not found:
        return False
    session.deployment.interrupted_sessions[session.id] = "agentctl was killed"
    guards = [one for one in session.processes() if session.behaviour == "forks" and _is_guard(one.pid)]
    for who in (*guards, *found):
        identity.send_signal(who, signal.SIGKILL)
    if guards:
        session.end_unmarked()
    return True


def is_agent(pid: int) -> bool:
    """Return whether this is a test agent itself, not its guard."""
    return "tests.chaos.agent" in _command_line(pid) and not _is_guard(pid)


def _is_guard(pid: int) -> bool:
    command_line = _command_line(pid)
    return any(guard in command_line for guard in GUARDS)


def _command_line(pid: int) -> str:
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
ALL_STEPS: Final[Sequence[Step]] = (wait_until_idle, cancel, kill_agentctl_in_turn, stop, resume, close)
"""Every step of a session, in order."""


def steps_for(points: Sequence[str], behaviour: Behaviour) -> Sequence[Step]:
    """Return the shortest sequence of steps that reaches a single point, or all steps for several points."""
    if len(points) > 1:
        only_agentctl_points = all(one.startswith("agentctl.") for one in points)
        return [step for step in ALL_STEPS if not (only_agentctl_points and step is kill_agentctl_in_turn)]
    point = points[0]
    steps: list[Step] = [wait_until_idle]
    if REQUIRED_STAGE.get(point) == "long":
        steps.append(cancel)
    if point in ("sweep.taken_over", "sweep.decided", "sweep.written"):
        steps.append(kill_supervisor_in_turn)
    elif point.startswith("sweep.") or (
        REQUIRED_STAGE.get(point) == "failure" and behaviour.name != "hangs_at_initialize"
    ):
        steps.append(kill_agentctl_in_turn)
    if point.startswith("request."):
        steps.append(resume)
    if behaviour.only_on_load or "stop" in point:
        steps += [stop, resume]
    return [*steps, close]


def close_all(sessions: Iterable[ChaosSession]) -> None:
    """Close every open session, including those whose creation was not answered."""
    for session in sessions:
        if session.row["state"] not in ("COMPLETED", "CANCELLED"):
            close(session)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(str(text))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
