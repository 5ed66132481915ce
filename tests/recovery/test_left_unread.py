"""A turn is not judged while nobody can say what its dead agentctl has left: no answer proves nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from executors_app import plugins
from executors_app.runtimes import read_left_state
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable, ExecutorError, RuntimeUnavailable
from executors_app.wire.executions import ExecutionFacts
from executors_app.wire.exhaustion import is_exhausted
from sessions_app.models import TaskSession
from sessions_app.recovery.rules.recovery import LEFT_UNREAD
from sessions_app.recovery.rules.resumability import UNREACHABLE
from sessions_app.recovery.sweep.sweep_pass import NO_ANSWER, SweepScope, run_sweep
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.kubernetes.objects import execution_facts
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.recording_runtime import RecordingRuntime, sweep_once, with_registry
from tests.supervisor.rows import NO_LEASE, change, execution_of, fresh, names, running_session, runs, shown_situation
from tests.support.fake_agentctl import refusing_url

pytestmark = pytest.mark.django_db(transaction=True)


class SilentRuntime(RecordingRuntime):
    """A runtime whose place fails to answer when it is asked what was left."""

    failure: Exception | None = None
    readings = 0

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Line]:
        """Raise the failure, if there is one."""
        self.readings += 1
        if self.failure is not None:
            raise self.failure
        return super().unread_journal(execution, after, epoch)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> SilentRuntime:
    """Return the runtime, which sees every execution dead."""
    made = SilentRuntime()
    known = {**plugins.runtimes(), made.name: made}
    monkeypatch.setattr(plugins, "runtimes", lambda: known)
    return made


def ended_in_a_turn(runtime: SilentRuntime) -> TaskSession:
    """Return a session whose agentctl has ended after the turn did, which only the unread journal says."""
    session, journal = running_session(runtime=runtime.name, execution=NO_LEASE), Journal()
    ingest(session, journal.turn_begins("p1"), lease=None)
    change(execution_of(session), last_seen_at=None)
    runtime.left[str(session.id)] = [*journal.says("done"), journal.completes("p1")]
    return session


@pytest.mark.parametrize("error", [RuntimeUnavailable, AgentctlUnreachable, AgentctlForeign])
@pytest.mark.parametrize("desired", ["running", "stopped"])
def test_turn_is_judged_only_once_the_place_answers(
    silent: SilentRuntime, error: type[ExecutorError], desired: str
) -> None:
    session = ended_in_a_turn(silent)
    change(session, desired_state=desired)
    silent.failure = error("nobody answers")
    result = sweep_once()
    (decided,) = result.decided
    rule = {"running": "unknown_boot", "stopped": "unread_unwanted"}[desired]
    assert (decided.seen.reason, decided.decision.rule) == (LEFT_UNREAD, rule)
    assert runs(session) == [("p1", "running")]
    assert "session.run.interrupted" not in names(session)
    assert execution_of(session).owner == "", "another supervisor may try"
    if desired == "running":
        assert fresh(session).error_code == UNREACHABLE
        assert "may have finished its turn" in shown_situation(fresh(session)).text

    silent.failure = None
    sweep_once()
    assert runs(session) == [("p1", "completed")]
    assert "session.run.interrupted" not in names(session)


@pytest.mark.parametrize("error", [ValueError("torn"), OSError("a bad block")])
def test_damage_is_no_reason_to_wait(silent: SilentRuntime, error: Exception) -> None:
    session = ended_in_a_turn(silent)
    silent.failure = error
    sweep_once()
    assert runs(session) == [("p1", "interrupted")]


def test_silent_place_is_asked_again_only_after_a_pause(silent: SilentRuntime) -> None:
    session = ended_in_a_turn(silent)
    silent.failure = RuntimeUnavailable("nobody answers")
    unknown: set[str] = set()

    async def sweep_often(registry: ExecutionRegistry) -> list[str]:
        passes = [await run_sweep(registry, SweepScope("reconcile"), unknown) for _ in range(3)]
        return [one.decided[0].decision.rule for one in passes]

    assert with_registry(sweep_often) == ["unknown_first", "unknown_again", "unknown_again"]
    assert silent.readings == 1
    assert unknown == {str(execution_of(session).id)}


def far_away(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Return settings by runtime whose places do not answer; those of an engine lack its certificates."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "kandev"}}],
        "clusters": [{"name": "one", "cluster": {"server": refusing_url()}}],
        "users": [{"name": "kandev", "user": {"token": "a-token"}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(json.dumps(config))
    return {
        "kubernetes": {"kubeconfig": str(kubeconfig)},
        "remote": {"url": refusing_url(), "token_file": "token"},
        "remote_docker": {"docker_host": refusing_url().replace("http", "tcp")},
        "sprites": {},
    }


@pytest.mark.parametrize("name", sorted({*plugins.runtimes()} - {"local_standalone", "local_docker"}))
def test_every_runtime_says_that_nobody_answers(name: str, tmp_path: Path, settings: Any) -> None:
    settings.KANDEV_DATA_DIR = tmp_path
    (tmp_path / "hosts").mkdir(mode=0o700)
    token = tmp_path / "hosts" / "token"
    token.touch(mode=0o600)
    token.write_text("a" * 64)
    execution = execution_facts(runtime=name, config=far_away(tmp_path)[name])
    with pytest.raises(NO_ANSWER) as error:
        read_left_state(plugins.runtimes()[name], execution, 0, "")
    assert not is_exhausted(error.value)
