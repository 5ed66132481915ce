"""A container that runs out of memory in mid-turn is reported as such and resumed."""

from __future__ import annotations

from pathlib import Path

from executors_app.runtimes.containers.sites import container_name
from tests.docker.deployment import DockerDeployment
from tests.waiting import eventually

EATER = "import mmap; m = mmap.mmap(-1, 1 << 30); [m.write(b'x' * 1048576) for _ in range(1024)]"


def test_out_of_memory_turn_is_reported_and_agent_returns(deployment: DockerDeployment) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    small = {"name": "small", "runtime": "local_docker", "config": {"memory_mb": 256}}
    executor = deployment.api("POST", "executors/", small)["id"]
    session = deployment.start_session("work 60", executor=executor)
    session.wait_for("RUNNING")
    client = deployment.engine.client()
    try:
        name = container_name(session.execution_id)
        first = client.inspect_container(name)["State"]["Pid"]
        Path(f"/proc/{first}/oom_score_adj").write_text("1000")
        eating = client.exec_create(name, ["python3", "-I", "-c", EATER])
        client.exec_start(eating["Id"])
    finally:
        client.close()

    eventually(lambda: "session.run.interrupted" in session.names(), timeout=60, describe="the turn is interrupted")

    payload = next(event["payload"] for event in session.events() if event["name"] == "session.run.interrupted")
    assert payload["reason"] == "out_of_memory"
    eventually(
        lambda: session.receipts()[-1]["kind"] in ("loaded", "resumed"), timeout=60, describe="the agent has resumed"
    )
    assert session.receipts()[-1]["evidence"]["log_is_a_prefix"] is True
