"""An upgrade in mid-turn: the agentctl of the old code continues, and the new code reattaches to it."""

from __future__ import annotations

from pathlib import Path

from tests.drills.deployment import ROOT, Deployment
from tests.drills.session_steps import check_only_turn, wait_until_talking
from tests.executors.repositories import make_repository
from tests.history import before_last_change_of
from tests.waiting import eventually


def test_new_code_reattaches_to_an_agentctl_of_the_old_code(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.code = before_last_change_of("executors_app/agentctl", tmp_path / "older")
    try:
        deployment.make()
        make_repository(deployment.repository)
        deployment.change("UPDATE repositories SET path = ?", str(deployment.repository))
        deployment.serve()
        session = deployment.start_session("work 6")
        wait_until_talking(session)
        agentctl = session.execution["pid"]
        deployment.kill_server()

        deployment.code = ROOT
        migrated = deployment.manage("migrate", "--verbosity", "0")
        assert migrated.returncode == 0, migrated.stderr
        swept = deployment.recover("--strict")
        assert [row["receipt_kind"] for row in swept["sessions"]] == ["reattached"]
        deployment.serve()

        check_only_turn(session)
        session.prompt("work 1")
        eventually(lambda: [row["state"] for row in session.prompts()] == ["done", "done"], timeout=60)
        assert session.execution["pid"] == agentctl
        assert "session.run.interrupted" not in session.names()
    finally:
        deployment.close()
