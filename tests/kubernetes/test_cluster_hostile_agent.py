"""An agent that is hostile reaches nothing outside its own Pod and volume on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.runtimes.kubernetes.runtime import RUNTIME
from tests.executors.harness import spec_for
from tests.hostile_agent.actions import Victim
from tests.hostile_agent.scenario import AttackScenario
from tests.hostile_agent.tampering import BROKEN, LAY_TRAP, MILD
from tests.kubernetes.cluster import NAMESPACE
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.network import API_SERVICE_ADDRESS

pytestmark = [pytest.mark.any_database, pytest.mark.django_db]

REACH = """
import os, ssl, urllib.request, urllib.error

def answer(url):
    unchecked = ssl._create_unverified_context()
    try:
        return urllib.request.urlopen(url, timeout=20, context=unchecked).status
    except urllib.error.HTTPError as error:
        return error.code

def can_read(path):
    try:
        return bool(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        return False

print(answer("https://{api}/api/v1/namespaces/{namespace}/secrets"))
print(answer("http://{other}:8700/status"))
print([path for path in {paths} if can_read(path)])
"""
"""What an agent asks: the API server, the agentctl of another Pod, and files with credentials."""
SECRET_FILES = (
    "/var/run/secrets/kubernetes.io/serviceaccount/token",
    "/var/lib/agentctl/state/token",
    "/var/lib/agentctl",
    "/proc/1/environ",
)
SEEN_BY_OTHER_PODS: Final = (
    "the repository is a pipe",
    "the trees are a link to the state's folder",
    "HEAD is a link",
)
"""Broken workspaces of whose files a Pod that reads the volume, or prepares it, sees other ones than the agent."""


@pytest.fixture
def scenario(harness: KubernetesHarness, tmp_path: Path, settings: Any) -> AttackScenario:
    """Return a host with canaries, and another session whose work is stored."""
    made = AttackScenario(harness, tmp_path, Path(settings.KANDEV_DATA_DIR))
    asyncio.run(made.prepare())
    return made


def test_nothing_that_an_agent_leaves_on_its_volume_reaches_anything(scenario: AttackScenario) -> None:
    victims = asyncio.run(_live_through(scenario, [MILD, *({name: BROKEN[name]} for name in SEEN_BY_OTHER_PODS)]))
    sessions = [(victim.spec, victim.launched) for victim in victims]
    for session in sessions:
        scenario.check_isolation(*session, *sessions)


async def _live_through(scenario: AttackScenario, tamperings: Sequence[Mapping[str, str]]) -> list[Victim]:
    """Give each tampering a session of its own, all at once, and use them alive, dead and started again."""

    async def live_through(scripts: Mapping[str, str]) -> Victim:
        victim = await Victim.start_session(scenario)
        victim.run(LAY_TRAP)
        for name, script in scripts.items():
            code, output = victim.run(script, str(scenario.trap.script))
            assert code == 0 or scripts is not MILD, f"{name}: {output}"
        await victim.use_live_agentctl()
        await asyncio.to_thread(victim.harness.kill, victim.spec)
        await victim.attempt(asyncio.to_thread(RUNTIME.left_state, victim.row, 0, ""))
        await victim.attempt(RUNTIME.push_work(victim.row))
        if await victim.restart():
            await victim.use_live_agentctl()
        return victim

    return await asyncio.gather(*map(live_through, tamperings))


async def test_agent_has_no_credentials_of_the_cluster_or_of_another_session(harness: KubernetesHarness) -> None:
    spec, other = spec_for(harness), spec_for(harness)
    await asyncio.gather(harness.runtime.launch(spec), harness.runtime.launch(other))
    address = harness.pod(other.session_id)["status"]["podIP"]
    script = REACH.format(api=API_SERVICE_ADDRESS, namespace=NAMESPACE, other=address, paths=SECRET_FILES)
    code, output = harness.run(spec, "python3", "-I", "-c", script)
    assert code == 0, output
    assert output.split("\n")[:3] == ["403", "401", "[]"]
