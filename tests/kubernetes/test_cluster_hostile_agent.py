"""An agent that is hostile reaches nothing outside its own Pod and volume on a real cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.executors.harness import spec_for
from tests.hostile_agent.actions import Victim
from tests.hostile_agent.scenario import AttackScenario
from tests.hostile_agent.tampering import LAY_TRAP, MILD
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


@pytest.fixture
def scenario(harness: KubernetesHarness, tmp_path: Path, settings: Any) -> AttackScenario:
    """Return a host with canaries, and another session whose work is stored."""
    made = AttackScenario(harness, tmp_path, Path(settings.KANDEV_DATA_DIR))
    asyncio.run(made.prepare())
    return made


def test_nothing_that_an_agent_leaves_on_its_volume_reaches_anything(scenario: AttackScenario) -> None:
    async def run_scenario() -> Victim:
        victim = await Victim.start_session(scenario)
        victim.run(LAY_TRAP)
        for name, script in MILD.items():
            code, output = victim.run(script, str(scenario.trap.script))
            assert code == 0, f"{name}: {output}"
        await victim.use_live_agentctl()
        await victim.use_stored_state()
        if await victim.restart():
            await victim.use_live_agentctl()
        return victim

    victim = asyncio.run(run_scenario())
    scenario.check_isolation(victim.spec, victim.launched)


async def test_agent_has_no_credentials_of_the_cluster_or_of_another_session(harness: KubernetesHarness) -> None:
    spec, other = spec_for(harness), spec_for(harness)
    await asyncio.gather(harness.runtime.launch(spec), harness.runtime.launch(other))
    address = harness.pod(other.session_id)["status"]["podIP"]
    script = REACH.format(api=API_SERVICE_ADDRESS, namespace=NAMESPACE, other=address, paths=SECRET_FILES)
    code, output = harness.run(spec, "python3", "-I", "-c", script)
    assert code == 0, output
    assert output.split("\n")[:3] == ["403", "401", "[]"]
