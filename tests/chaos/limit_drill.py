"""Sessions whose agents reach a usage limit, while processes die at random until all of them have gone on."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.chaos import session_steps
from tests.chaos.agent_records import received_prompts
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.deployment import ChaosDeployment, ChaosSession
from tests.chaos.invariants import violations
from tests.waiting import WaitTimeout, eventually

CONCURRENCY: Final = 10
"""Sessions that are suspended at the same time."""
LONGEST_PAUSE: Final = 4.0
"""Seconds at most between two kills."""
KILLS: Final = 12
"""Kills at most for each such group: a supervisor needs a moment to do anything at all."""
VICTIMS: Final = ("supervisor", "supervisor", "supervisor", "web", "shutdown")
CONTINUES: Final = "A usage limit of yours was reached."


def drill(deployment: ChaosDeployment, sessions: int, seed: int) -> list[str]:
    """Let ``sessions`` agents reach a limit each; return what was lost or happened twice."""
    choice, problems = random.Random(seed), list[str]()
    deployment.control_plane.start({"web": {}, "supervisor": {}})
    deployment.control_plane.wait_until_ready()
    try:
        for start in range(0, sessions, CONCURRENCY):
            problems += _drill_together(deployment, min(CONCURRENCY, sessions - start), choice)
            if problems:
                break
    finally:
        deployment.control_plane.kill_all()
    return problems


def _drill_together(deployment: ChaosDeployment, count: int, choice: random.Random) -> list[str]:
    """Run one group of sessions through their limits under random kills, then check and close them."""
    stopped = threading.Event()
    killer = threading.Thread(target=_kill_at_random, args=(deployment, choice, stopped), daemon=True)
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        made = list(pool.map(_create_session, [deployment] * count))
        for session in made:
            _wait_for_limit(session)
        killer.start()
        try:
            problems = [problem for problem in pool.map(_wait_until_gone_on, made) if problem]
        finally:
            stopped.set()
            killer.join()
        problems += [problem for problem in pool.map(_finish, made) if problem]
    problems += deployment.control_plane.take_failures()
    for session in made:
        problems += check(session)
    deployment.mark_checked()
    return problems


def _create_session(deployment: ChaosDeployment) -> ChaosSession:
    return deployment.create_session(BEHAVIOURS["reaches_limit"], "work 0.3")


def _wait_for_limit(session: ChaosSession) -> None:
    eventually(lambda: session.rows("session_suspensions"), timeout=120, describe="the session is suspended")


def _kill_at_random(deployment: ChaosDeployment, choice: random.Random, stopped: threading.Event) -> None:
    for _ in range(KILLS):
        if stopped.wait(choice.uniform(0.2, LONGEST_PAUSE)):
            return
        victim = choice.choice(VICTIMS)
        if victim == "shutdown":
            deployment.control_plane.terminate("supervisor")
        else:
            deployment.control_plane.kill(victim)  # type: ignore[arg-type]


def _wait_until_gone_on(session: ChaosSession) -> str:
    try:
        session_steps.wait_until_idle(session)
    except WaitTimeout as error:
        return f"stuck: {error}"
    return ""


def _finish(session: ChaosSession) -> str:
    try:
        session_steps.close(session)
    except WaitTimeout as error:
        return f"stuck: {error}"
    return ""


def check(session: ChaosSession) -> list[str]:
    """Return how the session did not go on exactly once, and every other violated invariant."""
    problems = violations(session, may_be_truncated=session.id in session.deployment.interrupted_sessions)
    ends = [row["end"] for row in session.rows("session_suspensions")]
    if ends != ["reset"]:
        problems.append(f"its suspensions ended as {ends} ({session.id})")
    again = [row["state"] for row in session.rows("session_prompts") if row["message_id"].startswith("limit:")]
    if again != ["done"]:
        problems.append(f"the prompts that go on are {again} ({session.id})")
    received = [text for text in received_prompts(session).values() if CONTINUES in text]
    if len(received) != 1:
        problems.append(f"the agent was asked to go on {len(received)} times ({session.id})")
    return problems
