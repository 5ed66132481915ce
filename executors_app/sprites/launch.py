"""Bringing a session's sprite up, or finding it: every step may be done again after a crash (rule 4)."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

import orjson

from executors_app import workspace_store
from executors_app.agentctl.places import launch_token, workspace_root
from executors_app.agentctl.places.worktrees import Worktree
from executors_app.client import AgentctlClient
from executors_app.domain import ExecutionFacts, LaunchSpec
from executors_app.errors import AgentctlUnreachable, ExecutorError, LaunchFailed, WorkspaceGone
from executors_app.sprites import names, program
from executors_app.sprites.api import Organisation
from executors_app.sprites.config import SpritesConfig

READY_WITHIN: Final = 60.0
ASK_WITHIN: Final = 5.0
_POLL: Final = 0.1
_LONG: Final = 600.0


@dataclass(frozen=True, slots=True)
class Inside:
    """One session's sprite, and where things are in it."""

    execution_id: str
    session_id: str
    branch: str
    python: str

    @classmethod
    def of(cls, one: LaunchSpec | ExecutionFacts, config: SpritesConfig) -> Inside:
        """Of a launch, or of a row."""
        execution_id = one.execution_id if isinstance(one, LaunchSpec) else one.id
        return cls(execution_id, one.session_id, one.worktree_branch, config.python)

    @property
    def name(self) -> str:
        """The sprite's."""
        return names.name_of(self.execution_id)

    @property
    def root(self) -> PurePosixPath:
        """Of all the rest."""
        return names.root_of(self.execution_id)

    @property
    def work(self) -> PurePosixPath:
        """Of the session's repository and its worktree."""
        return self.root / "work"

    @property
    def worktree(self) -> Worktree:
        """The session's; an empty branch follows from the id."""
        return workspace_root.worktree_in(Path(self.work), self.session_id, self.branch)

    @property
    def seed(self) -> PurePosixPath:
        """What the workspace is made from."""
        return self.root / "seed"

    @property
    def state(self) -> PurePosixPath:
        """Agentctl's own."""
        return self.root / "state"

    @property
    def token(self) -> PurePosixPath:
        """What agentctl takes as bearer."""
        return self.root / "token"

    @property
    def code(self) -> PurePosixPath:
        """The program, of this version."""
        return self.root / f"program-{program.version()}"

    @property
    def interpreter(self) -> str:
        """The Python that runs it."""
        return self.python or str(self.root / "python" / "bin" / "python")

    def command(self, module: str, *arguments: str) -> list[str]:
        """Argv of a module of the program."""
        return ["env", f"PYTHONPATH={self.code}", self.interpreter, "-P", "-m", module, *arguments]


async def install(api: Organisation, inside: Inside) -> None:
    """Put the program and its Python there, if they are not."""
    done = inside.code / "complete"
    if (await api.run(inside.name, "test", "-e", str(done))).exit_code == 0:
        return
    await api.write(inside.name, f"{inside.code}.tar", program.archive())
    steps = [f"mkdir -p {inside.code}", f"tar -C {inside.code} -xf {inside.code}.tar", f"rm {inside.code}.tar"]
    if not inside.python:
        await api.write(inside.name, str(inside.root / "requirements.txt"), program.requirements())
        python = inside.root / "python"
        steps.append(f"python3 -m venv {python}")
        steps.append(f"{python}/bin/pip install --quiet --require-hashes -r {inside.root}/requirements.txt")
    await shell(api, inside, " && ".join([*steps, f"touch {done}"]), "agentctl could not be installed")


async def make_workspace(api: Organisation, inside: Inside, spec: LaunchSpec) -> str:
    """The repository and its work tree, made, found or rebuilt; what it was rebuilt from, if it was lost.

    Raises WorkspaceGone, RepositoryUnusable.
    """
    try:
        return await _make_workspace(api, inside, spec, "")
    except WorkspaceGone as error:
        return await _make_workspace(api, inside, spec, error.message)


async def _make_workspace(api: Organisation, inside: Inside, spec: LaunchSpec, lost: str) -> str:
    with tempfile.TemporaryDirectory(prefix="kandev-seed-") as directory:
        seed = Path(directory) / "seed"
        rebuilt = await asyncio.to_thread(workspace_store.prepare, spec, seed, borrows=False, lost=lost)
        await api.write(inside.name, str(inside.seed), await asyncio.to_thread(seed.read_bytes))
    await _in_workspace(api, inside, "make", "--seed", str(inside.seed))
    return rebuilt


async def push_work(api: Organisation, inside: Inside, one: ExecutionFacts) -> bool:
    """Let the session's branch and snapshots arrive, without its agentctl; False where nothing was new."""
    sent = str(inside.root / "work.bundle")

    async def read(known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
        marks = [word for commit in known for word in ("--known", commit)]
        options = ("--branch", inside.worktree.branch, "--into", sent)
        answer = await _in_workspace(api, inside, "bundle", *options, *marks)
        refs = workspace_root.refs_of(answer)
        if answer.get("packed"):
            into.write(await api.read(inside.name, sent, timeout=_LONG, limit=workspace_root.LARGEST_BUNDLE))
        return refs

    return await workspace_store.take_work(one, read)


async def _in_workspace(api: Organisation, inside: Inside, what: str, *more: str) -> dict[str, Any]:
    """What ``workspace_root`` answers in there; its errors are raised here."""
    arguments = ["--root", str(inside.work), "--owner", inside.session_id]
    command = inside.command(workspace_root.__name__, what, *arguments, *more)
    await api.run(inside.name, "mkdir", "-p", str(inside.work))
    ran = await api.run(inside.name, *command, timeout=_LONG)
    try:
        answer = orjson.loads(ran.output.splitlines()[-1])
    except (orjson.JSONDecodeError, IndexError) as error:
        raise LaunchFailed(f"The sprite could not make the workspace: {ran.errors}") from error
    if not isinstance(answer, dict):
        raise LaunchFailed("The sprite could not make the workspace: its answer is none.")
    if "error" in answer:
        raise workspace_root.error_of(answer)
    return answer


async def token_in(api: Organisation, inside: Inside) -> str:
    """The token of the last launch, read in the sprite; empty where there was none."""
    ran = await api.run(inside.name, "cat", str(inside.token))
    return "" if ran.exit_code else ran.output.decode(errors="replace")


async def start(api: Organisation, inside: Inside, spec: LaunchSpec) -> str:
    """Define the service, which starts it, and answer its token.

    The sprite's runtime starts it again after each pause, with the same one.
    """
    token = launch_token.mint(spec.auth_token)
    await api.write(inside.name, str(inside.token), token.encode())
    port = names.port_of(spec.execution_id)
    worktree = str(inside.worktree.path)
    options = {
        "--workspace": worktree,
        "--seed": str(inside.seed),
        "--root": str(inside.work),
        "--state-dir": str(inside.state),
        "--session-id": spec.session_id,
        "--execution-id": spec.execution_id,
        "--token-file": str(inside.token),
        "--listen": f"127.0.0.1:{port}",
        "--hold-socket": str(names.HOLD_SOCKET),
    }
    words = [word for option in options.items() for word in option]
    argv = [inside.interpreter, "-P", "-m", "executors_app.agentctl", "serve", *words]
    environment = {"PYTHONPATH": str(inside.code), "PYTHONNOUSERSITE": "1", "LANG": "C.UTF-8"}
    await api.define_service(inside.name, names.SERVICE, argv, environment, worktree)
    return token


async def is_served(api: Organisation, inside: Inside, spec: LaunchSpec) -> bool:
    """Whether the service is up, or comes up: where its worktree is gone it is but tried again and again."""
    if await api.service(inside.name, names.SERVICE) not in ("starting", "running"):
        return False
    if (await api.run(inside.name, "test", "-e", str(inside.worktree.path / ".git"))).exit_code == 0:
        return True
    try:
        await client_of(spec.execution_id, await token_in(api, inside)).status(ASK_WITHIN)
    except AgentctlUnreachable as error:
        return error.details.get("reason") != "refused"
    return True


async def wait_until_ready(api: Organisation, inside: Inside, token: str) -> str:
    """The boot id of the agentctl that answered as ours."""
    client = client_of(inside.execution_id, token)
    deadline, problem = time.monotonic() + READY_WITHIN, ""
    while time.monotonic() < deadline:
        try:
            return str((await client.status(ASK_WITHIN)).get("boot_id", ""))
        except AgentctlUnreachable as error:
            problem = error.message
        except ExecutorError as error:
            raise LaunchFailed(f"The agentctl of this session does not accept us: {error.message}") from error
        if (await api.service(inside.name, names.SERVICE)) == "failed":
            raise LaunchFailed("agentctl ended at its start; the log of the sprite's service agentctl says why.")
        await asyncio.sleep(_POLL)
    raise LaunchFailed(f"agentctl was not ready within {READY_WITHIN:g} s: {problem}")


def client_of(execution_id: str, token: str) -> AgentctlClient:
    """Whoever asks for the status alone."""
    return AgentctlClient(names.url_of(execution_id), token, execution_id)


async def shell(api: Organisation, inside: Inside, script: str, problem: str) -> bytes:
    """The output of a shell script; LaunchFailed."""
    ran = await api.run(inside.name, "sh", "-c", script, timeout=_LONG)
    if ran.exit_code:
        raise LaunchFailed(f"{problem}: {ran.errors}")
    return ran.output


def quoted(words: Sequence[object]) -> str:
    """Words for a shell."""
    return shlex.join(map(str, words))
