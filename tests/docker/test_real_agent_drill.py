"""A published agent whose container is removed gets a new one and still knows its conversation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from executors_app.runtimes.containers.sites import container_name
from tests.agent_matrix.drills import RealAgentDrill
from tests.docker.deployment import DockerDeployment
from tests.docker.engine import Engine, add_programs
from tests.drills.deployment import Session
from tests.real_agents.homes import AGENT_TYPES, codex_acp_in, pack_codex_acp
from tests.real_agents.model_server import ModelServer, running_model
from tests.services import MODULES, require
from tests.waiting import eventually

NAME = "codex-acp"


@pytest.fixture
def model(engine: Engine) -> Iterator[ModelServer]:
    """Yield a model server that containers reach: it listens on the host's address in a network of the engine."""
    require(NAME)
    client = engine.client()
    network = client.create_network("model")["Id"]
    try:
        with running_model(client.inspect_network(network)["IPAM"]["Config"][0]["Gateway"]) as running:
            yield running
    finally:
        client.remove_network(network)
        client.close()


@pytest.fixture(scope="module")
def image(shared_engine: Engine) -> Iterator[str]:
    """Yield the name of an image of agentctl with the agent's programs, as an operator would build it."""
    require(NAME)
    programs = pack_codex_acp(MODULES / "packed-codex-acp")  # hard links, so on the file system of their targets
    try:
        yield add_programs(shared_engine, programs)
    finally:
        shutil.rmtree(programs)


@pytest.fixture
def drill(deployment: DockerDeployment, model: ModelServer, image: str) -> RealAgentDrill:
    """Return an agent in a container that was told the word; interrupted turns are not continued automatically."""
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    made = RealAgentDrill(deployment, model, NAME, deployment.home, word_number=1)
    values = {"name": "with the agent", "runtime": "local_docker", "config": {"image": image}}
    executor = deployment.api("POST", "executors/", values)["id"]
    agent = codex_acp_in(made.home, model.url)
    env = {name: value for name, value in agent.env.items() if name != "HOME"}
    profile = {"agent_type": AGENT_TYPES[NAME], "command": list(agent.argv), "env": env}
    made.session = deployment.start_session(f"remember the word {made.word}, answer ok", profile, executor=executor)
    made.agent = codex_acp_in(made.session.agent_home.parent, model.url)
    made.wait_for_end(0)
    made.wait_for_notes()
    return made


def remove_container(engine: Engine, session: Session) -> str:
    """Remove the session's container as ``docker rm -f`` does; return its id."""
    client = engine.client()
    try:
        found = str(client.inspect_container(container_name(session.execution_id))["Id"])
        client.remove_container(found, force=True)
    finally:
        client.close()
    return found


def check_memory(drill: RealAgentDrill, held: str) -> None:
    """Check that the agent still knows the word and that its receipt proves this by replay; ``held`` was sent once."""
    assert drill.ask() == "itself"
    receipt = drill.session.receipts()[-1]
    assert (receipt["kind"], receipt["verified"]) == ("loaded", "replay")
    assert drill.times_sent(held) == 1, "the prompt was sent again"


@pytest.mark.real_agent
def test_container_removed_in_mid_turn_keeps_the_conversation(drill: RealAgentDrill, engine: Engine) -> None:
    held = drill.hold("on")
    removed = remove_container(engine, drill.session)
    drill.model.release()
    eventually(
        lambda: "session.run.interrupted" in drill.session.names(), timeout=60, describe="the interruption is noticed"
    )
    check_memory(drill, held)
    assert [row["state"] for row in drill.session.prompts()] == ["done", "interrupted", "done"]
    assert remove_container(engine, drill.session) != removed, "a new container was created"


@pytest.mark.real_agent
def test_removed_container_of_stopped_agent_resumes_on_prompt(drill: RealAgentDrill, engine: Engine) -> None:
    held = drill.hold("on")
    drill.model.release()
    eventually(lambda: drill.session.prompts()[-1]["state"] == "done", describe="the turn has ended")
    drill.deployment.api("POST", f"{drill.session.path}/stop/", {})
    eventually(lambda: drill.session.execution["status"] == "stopped", describe="the session is stopped")
    removed = remove_container(engine, drill.session)
    check_memory(drill, held)
    assert remove_container(engine, drill.session) != removed, "a new container was created"
