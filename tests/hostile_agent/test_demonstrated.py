"""Five attacks that once escaped from a sandbox, each at the start after the agent has run."""

from __future__ import annotations

import asyncio

import pytest

from tests.executors.repositories import run_git
from tests.hostile_agent.actions import Victim
from tests.hostile_agent.scenario import AttackScenario
from tests.hostile_agent.tampering import LAY_TRAP
from tests.repositories import attacks

pytestmark = pytest.mark.django_db
DEMONSTRATED = {
    "alternates mount any directory": "echo $HOST/.git/objects > $R/objects/info/alternates",
    "a pointer mounts another repository": "cp -r $R $HOME/copy; echo gitdir: $HOST/.git > $W/.git; "
    "ln -s $HOST/.git $R/objects/ff",
    "a record's filter runs at the rebuild": "echo $HOST/.git > $RECORD/commondir; "
    'printf "%s" "$2" > $RECORD/config; printf "%s" "$2" > $RECORD/config.worktree; '
    "echo '* filter=x' > $W/.gitattributes",
    "git obeys the repository's settings": 'printf "%s" "$2" >> $R/config; '
    "git -C $R config gpg.program $1; git -C $R config log.showSignature true; "
    "git -C $R config url.ext::$1.insteadOf file; git -C $R config filter.x.smudge $1",
    "refs of another session are planted": "git update-ref refs/kandev/recovery/$OTHER HEAD; "
    "git update-ref refs/heads/main HEAD; git update-ref refs/heads/$THEIRS HEAD; "
    "git update-ref refs/kandev/kept/$OTHER/aaaaaaaaaaaa HEAD",
}


@pytest.mark.parametrize("runtime_name", ["local_docker", "remote_docker"])
@pytest.mark.parametrize("name", DEMONSTRATED)
def test_demonstrated_attack_no_longer_leaves_the_sandbox(scenario: AttackScenario, name: str) -> None:
    main = run_git(scenario.harness.repository, "rev-parse", "main")

    async def run_scenario() -> Victim:
        victim = await Victim.start_session(scenario)
        victim.run(LAY_TRAP)
        victim.run(DEMONSTRATED[name], str(scenario.trap.script), attacks.configuration(scenario.trap, "command"))
        await victim.use_stored_state()
        if await victim.restart():
            assert victim.run(f"git -C $R cat-file -t {scenario.secret_commit}")[0] != 0
            assert victim.run("ls $HOST $DATA $TEAM")[0] != 0
            await victim.use_live_agentctl()
        victim.delete_worktree()
        await victim.use_stored_state()
        await victim.restart()
        await victim.use_stored_state()
        return victim

    victim = asyncio.run(run_scenario())
    scenario.check_isolation(victim.spec, victim.launched)
    assert run_git(scenario.harness.repository, "rev-parse", "main") == main
