"""Launch a session's sprite: install agentctl, make the workspace, start the service.

Every step can be repeated after a crash.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.git import workspace_root
from executors_app.repositories import workspace_store
from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.layout import SpriteLayout
from executors_app.runtimes.sprites.organisation import Organisation
from executors_app.runtimes.sprites.program import program_archive, program_requirements
from executors_app.wire import launch_tokens
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError, LaunchFailed, WorkspaceGone
from executors_app.wire.executions import ExecutionFacts, LaunchSpec

READY_TIMEOUT: Final = 60.0
ASK_TIMEOUT: Final = 5.0
_POLL: Final = 0.1
_LONG: Final = 600.0


async def install_program(api: Organisation, layout: SpriteLayout) -> None:
    """Install the program and its Python in the sprite, unless they are there."""
    done = layout.code / "complete"
    if (await api.run(layout.name, "test", "-e", str(done))).exit_code == 0:
        return
    await api.write(layout.name, f"{layout.code}.tar", program_archive())
    steps = [f"mkdir -p {layout.code}", f"tar -C {layout.code} -xf {layout.code}.tar", f"rm {layout.code}.tar"]
    if not layout.python:
        await api.write(layout.name, str(layout.root / "requirements.txt"), program_requirements())
        python = layout.root / "python"
        steps.append(f"python3 -m venv {python}")
        steps.append(f"{python}/bin/pip install --quiet --require-hashes -r {layout.root}/requirements.txt")
    # The mark comes last: an installation that was interrupted is repeated.
    ran = await api.run(layout.name, "sh", "-c", " && ".join([*steps, f"touch {done}"]), timeout=_LONG)
    if ran.exit_code:
        raise LaunchFailed(f"agentctl could not be installed: {ran.errors}")


async def make_workspace(api: Organisation, layout: SpriteLayout, spec: LaunchSpec) -> str:
    """Make, find or rebuild the repository and worktree; returns what a lost workspace was rebuilt from.

    Raises WorkspaceGone, RepositoryUnusable.
    """
    try:
        return await _make_workspace(api, layout, spec, "")
    except WorkspaceGone as error:
        return await _make_workspace(api, layout, spec, error.message)


async def _make_workspace(api: Organisation, layout: SpriteLayout, spec: LaunchSpec, lost: str) -> str:
    with tempfile.TemporaryDirectory(prefix="kandev-seed-") as directory:
        seed = Path(directory) / "seed"
        rebuilt = await workspace_store.in_git_thread(
            spec.repository_path, workspace_store.prepare_seed, spec, seed, borrows=False, lost=lost
        )
        await api.write(layout.name, str(layout.seed), await asyncio.to_thread(seed.read_bytes))
    await _run_workspace_command(api, layout, "make", "--seed", str(layout.seed))
    return rebuilt


async def push_work(api: Organisation, layout: SpriteLayout, execution: ExecutionFacts) -> bool:
    """Transfer the session's branch and snapshots without its agentctl; False if nothing was new."""
    sent = str(layout.root / "work.bundle")

    async def read(known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
        options = ["--branch", layout.worktree.branch, "--into", sent]
        for commit in known:
            options += ["--known", commit]
        answer = await _run_workspace_command(api, layout, "bundle", *options)
        refs = workspace_root.parse_refs(answer)
        if answer.get("packed"):
            into.write(await api.read(layout.name, sent, timeout=_LONG, limit=workspace_root.MAX_BUNDLE_BYTES))
        return refs

    return await workspace_store.receive_work(execution, read)


async def _run_workspace_command(api: Organisation, layout: SpriteLayout, what: str, *more: str) -> dict[str, Any]:
    """Run ``workspace_root`` in the sprite and return its answer; raises the errors that it reports."""
    arguments = ["--root", str(layout.work), "--owner", layout.session_id]
    command = layout.command(workspace_root.__name__, what, *arguments, *more)
    await api.run(layout.name, "mkdir", "-p", str(layout.work))
    ran = await api.run(layout.name, *command, timeout=_LONG)
    problem = f"The sprite could not make the workspace: {ran.errors or 'its answer is not a JSON object.'}"
    return workspace_root.checked_answer(ran.output, problem)


async def read_token(api: Organisation, layout: SpriteLayout) -> str:
    """Read the token of the last launch in the sprite; empty if there was none."""
    ran = await api.run(layout.name, "cat", str(layout.token))
    if ran.exit_code:
        return ""
    return ran.output.decode(errors="replace")


async def start_service(api: Organisation, layout: SpriteLayout, spec: LaunchSpec) -> str:
    """Define and start the service, and return its token.

    The sprite's runtime starts it again after each pause, with the same token.
    """
    token = launch_tokens.mint_launch_token(spec.auth_token)
    await api.write(layout.name, str(layout.token), token.encode())
    port = organisation.sprite_port(spec.execution_id)
    worktree = str(layout.worktree.path)
    options = {
        "--workspace": worktree,
        "--seed": str(layout.seed),
        "--root": str(layout.work),
        "--state-dir": str(layout.state),
        "--session-id": spec.session_id,
        "--execution-id": spec.execution_id,
        "--token-file": str(layout.token),
        "--listen": f"127.0.0.1:{port}",
        "--hold-socket": str(organisation.HOLD_SOCKET),
    }
    argv = [layout.interpreter, "-P", "-m", "executors_app.agentctl", "serve"]
    for option, value in options.items():
        argv += [option, value]
    environment = {"PYTHONPATH": str(layout.code), "PYTHONNOUSERSITE": "1", "LANG": "C.UTF-8"}
    await api.define_service(layout.name, organisation.SERVICE, argv, environment, worktree)
    return token


async def is_service_up(api: Organisation, layout: SpriteLayout, spec: LaunchSpec) -> bool:
    """Whether the service runs or is starting; if its worktree is gone, it only restarts again and again."""
    if await api.service(layout.name, organisation.SERVICE) not in ("starting", "running"):
        return False
    if (await api.run(layout.name, "test", "-e", str(layout.worktree.path / ".git"))).exit_code == 0:
        return True
    # Without its working directory the service cannot start again, but an agentctl from before the loss may still run.
    try:
        await status_client(spec.execution_id, await read_token(api, layout)).status(ASK_TIMEOUT)
    except AgentctlUnreachable as error:
        return error.details.get("reason") != "refused"
    return True


async def wait_until_ready(api: Organisation, layout: SpriteLayout, token: str) -> str:
    """Return the boot id of the agentctl once it answers to our token."""
    client = status_client(layout.execution_id, token)
    deadline, problem = time.monotonic() + READY_TIMEOUT, ""
    while time.monotonic() < deadline:
        try:
            return str((await client.status(ASK_TIMEOUT)).get("boot_id", ""))
        except AgentctlUnreachable as error:
            problem = error.message
        except ExecutorError as error:
            raise LaunchFailed(f"This session's agentctl rejected the control plane: {error.message}") from error
        if (await api.service(layout.name, organisation.SERVICE)) == "failed":
            raise LaunchFailed("agentctl exited on startup. The log of the sprite's service agentctl shows why.")
        await asyncio.sleep(_POLL)
    raise LaunchFailed(f"agentctl was not ready within {READY_TIMEOUT:g} s: {problem}")


def status_client(execution_id: str, token: str) -> AgentctlClient:
    """Return a client that is only used for the status."""
    return AgentctlClient(organisation.sprite_url(execution_id), token, execution_id)


def shell_quote(words: Sequence[object]) -> str:
    """Quote words for a shell."""
    return shlex.join(map(str, words))
