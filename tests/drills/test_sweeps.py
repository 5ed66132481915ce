"""A second sweep, concurrent sweeps, and a sweep beside a running server change nothing more."""

from __future__ import annotations

import json
import signal

import pytest

from tests.drills.deployment import Deployment
from tests.drills.restart_drills import ConcurrentSweepsDrill, SecondSweepDrill, StoppedSessionDrill, log_rows
from tests.drills.session_steps import start_idle_session


class TestSweepsOnThisMachine(SecondSweepDrill, ConcurrentSweepsDrill, StoppedSessionDrill):
    """Drills of sweeps on the runtime ``local_standalone``."""


@pytest.mark.any_database
def test_recovery_command_waits_until_the_log_has_everything(deployment: Deployment) -> None:
    deployment.serve()
    session = start_idle_session(deployment)
    deployment.kill_server()
    session.kill_everything()

    deployment.recover()

    (row,) = deployment.rows("SELECT journal_seq FROM executors_running")
    assert row["journal_seq"] == json.loads(session.journal().splitlines()[-1])["seq"]


def test_sweep_beside_a_running_server_leaves_the_work_to_it(deployment: Deployment) -> None:
    deployment.serve()
    session = start_idle_session(deployment)
    before, processes = log_rows(deployment), session.lasting_pids()

    document = deployment.recover()

    assert document["sessions"][0]["rule"] == "foreign_lease"
    assert log_rows(deployment) == before
    assert session.lasting_pids() == processes


@pytest.mark.any_database
def test_sigterm_stops_the_control_plane_and_no_agent(deployment: Deployment) -> None:
    deployment.serve()
    session = start_idle_session(deployment)
    before, processes = log_rows(deployment), session.lasting_pids()

    deployment.kill_server(signal.SIGTERM)
    assert session.lasting_pids() == processes
    assert session.execution["owner"] == ""
    deployment.serve()

    session.wait_for("WAITING_FOR_INPUT")
    assert log_rows(deployment) == before
    assert session.lasting_pids() == processes
