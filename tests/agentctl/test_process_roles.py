"""Which processes belong to the agent, and which are work that a turn has left running."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.agentctl.process.process_roles import AgentFacts, ProcessFacts, Role, roles_of

AGENT, FIRST_WORK = 10, 1000
SERVER = "npx @playwright/mcp --headless"
OWN, TURN, BACKGROUND = Role.OWN, Role.TURN, Role.BACKGROUND


def process(pid: int, command: str = "make", *, parent: int = AGENT, started: int = FIRST_WORK + 5) -> ProcessFacts:
    return ProcessFacts(pid, parent, started, command)


EARLY = process(11, "node agent", started=FIRST_WORK - 1)
OF_SERVER = process(13, "chrome", parent=12)

TABLE: dict[str, tuple[list[ProcessFacts], dict[str, Any], list[Role]]] = {
    "before the first prompt": ([EARLY], {}, [OWN]),
    "agent that has not worked yet": ([process(11)], {"first_work": None}, [OWN]),
    "begun in a turn that has ended": ([process(11)], {}, [BACKGROUND]),
    "at the moment of the first prompt": ([process(11, started=FIRST_WORK)], {}, [BACKGROUND]),
    "begun in the open turn": ([process(11)], {"turn_is_open": True}, [TURN]),
    "left by an earlier turn": (
        [process(11), process(12)],
        {"turn_is_open": True, "left_before": {(11, FIRST_WORK + 5)}},
        [BACKGROUND, TURN],
    ),
    "pid that was used again": (
        [process(11)],
        {"turn_is_open": True, "left_before": {(11, FIRST_WORK + 1)}},
        [TURN],
    ),
    "orphan": ([process(11, parent=1)], {}, [BACKGROUND]),
    "below an early process": ([EARLY, process(12, parent=11)], {}, [OWN, BACKGROUND]),
    "configured server that starts late": ([process(12, SERVER), OF_SERVER], {}, [OWN, OWN]),
    "below the server's own child": (
        [process(12, SERVER), OF_SERVER, process(14, "chrome --gpu", parent=13)],
        {},
        [OWN, OWN, OWN],
    ),
    "server below an interpreter": ([process(12, f"node /usr/bin/{SERVER}"), OF_SERVER], {}, [OWN, OWN]),
    "words that end like a server": ([process(12, f"x{SERVER}")], {}, [BACKGROUND]),
    "helper that was started again": ([process(12, "node agent")], {"own_commands": {"node agent"}}, [OWN]),
    "helper's name below other work": (
        [process(12), process(13, "node agent", parent=12)],
        {"own_commands": {"node agent"}},
        [BACKGROUND, BACKGROUND],
    ),
    "below a helper that was started again": (
        [process(12, "bash"), process(13, "npm run dev", parent=12)],
        {"own_commands": {"bash"}},
        [OWN, BACKGROUND],
    ),
    "parents in a circle": ([process(12, parent=13), process(13, parent=12)], {}, [BACKGROUND, BACKGROUND]),
    "agent without a process between turns": ([process(11, parent=5)], {"pid": None}, [BACKGROUND]),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_process_has_its_role(case: str) -> None:
    processes, known, roles = TABLE[case]
    agent = AgentFacts(**{"pid": AGENT, "first_work": FIRST_WORK, "mcp_servers": {SERVER}, **known})
    found = roles_of(processes, agent)
    assert [found[each.key] for each in processes] == roles
