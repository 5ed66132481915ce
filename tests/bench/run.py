"""All benchmarks, one after the other, with their progress on standard error."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import (
    boards,
    catching_up,
    composite,
    deaths,
    fanout,
    flooding,
    floors,
    growing_fleet,
    growing_history,
    growth,
    idle_control_plane,
    ingests,
    journals,
    latencies,
    launches,
    memory,
    pods,
    queries,
    restarts,
    resume_tokens,
    resumes,
    reviews,
    screens,
    searches,
    session_pages,
    storms,
    sweeps,
    talking,
    terminals,
    workflows,
    workspaces,
)
from tests.bench.figures import Figure, Floor, Point, Skipped
from tests.bench.peers import dbos, jupyterhub, tmux
from tests.bench.separate_process import figures_on_postgresql
from tests.bench.world import World
from tests.real_agents.homes import AGENT_TYPES
from tests.services import missing


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run."""

    fleet: int
    losses: int
    rounds: int
    work: float
    """Seconds that the agent works."""
    samples: int
    """Samples of operations that wait for the disk."""
    messages: int
    """Messages of a long session."""
    megabytes: int
    """Megabytes that a shell prints at once."""
    sockets: int
    """Sockets that follow one session."""
    updates: int
    """Updates sent while no control plane is running."""
    resumes: int
    """Resumes of a killed agent."""
    agents: Sequence[str]
    """Published agents whose resumes are counted in tokens."""
    storm: int
    """Sessions with fake agentctls that should run and do not."""
    storm_agents: int
    """Sessions with real agents beside them."""
    nodes: int
    """Nodes of a workflow."""
    idle: float
    """Seconds for which an idle control plane is measured."""
    repository: int
    """Megabytes of a repository from which workspaces are made."""
    spoken: int
    """Lines that an agent writes without a pause."""
    dense: int
    """Idle sessions at once."""
    talkers: int
    """Agents that write at once."""
    board: int
    """Tasks of a full board."""
    searched: int
    """Messages that are indexed for the search."""
    conversation: int
    """Messages of a conversation that is shown a page at a time."""
    changed: int
    """Files that a branch has changed."""
    growth: tuple[int, ...]
    """Sizes of the growth curves."""
    history: tuple[int, ...]
    """Finished sessions beside the live ones, for the curves of a growing history."""
    live: tuple[int, ...]
    """Live sessions, for the curves of the cost of each."""
    pods: int
    """Sessions in real Pods."""
    pod_objects: int
    """Pods beside them that no node has taken."""
    limit: float | None
    """Maximum of a sweep as a multiple of its floor; None if the counts are too small to judge."""
    patience: float
    """Seconds after which a part is ended as failed."""

    @property
    def limited(self) -> bool:
        """Return whether limits apply."""
        return self.limit is not None


FULL = Sizes(
    fleet=1000,
    losses=100,
    rounds=15,
    work=5,
    samples=200,
    messages=5000,
    megabytes=16,
    sockets=1000,
    updates=50_000,
    resumes=20,
    agents=tuple(AGENT_TYPES),
    storm=1000,
    storm_agents=30,
    nodes=20,
    idle=60.0,
    repository=1024,
    spoken=50_000,
    dense=500,
    talkers=200,
    board=2_000,
    searched=200_000,
    conversation=2_000,
    changed=500,
    growth=(100, 1_000, 10_000),
    history=(100, 1_000, 10_000),
    live=(10, 100, 1_000),
    pods=10,
    pod_objects=200,
    limit=7.0,
    patience=7200.0,
)
QUICK = Sizes(
    fleet=20,
    losses=3,
    rounds=1,
    work=0.5,
    samples=5,
    messages=50,
    megabytes=1,
    sockets=20,
    updates=500,
    resumes=1,
    agents=("codex-acp",),
    storm=25,
    storm_agents=1,
    nodes=2,
    idle=1.0,
    repository=4,
    spoken=500,
    dense=2,
    talkers=3,
    board=20,
    searched=400,
    conversation=250,
    changed=30,
    growth=(5, 20),
    history=(2, 4),
    live=(2, 4),
    pods=2,
    pod_objects=10,
    limit=None,
    patience=240.0,
)


@dataclass
class Results:
    """The results so far, as the lists of a bench file."""

    figures: list[Figure] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def take(self, one: Figure | Point) -> None:
        """Add a result."""
        if isinstance(one, Point):
            self.points.append(one)
        else:
            self.figures.append(one)


def everything(sizes: Sizes, only: Collection[str] = ()) -> Results:
    """Measure every part, or the named ones, and the floors of this machine.

    A part whose service is missing, or that fails, has no rows and is reported; the others continue.
    """
    parts = {name: part for name, part in PARTS.items() if not only or name in only}
    world, results, began = World(), Results(), time.monotonic()
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(parts) + 1)
        for number, name in enumerate(parts, 1):
            bar.update(task, description=name)
            outcome = _measure(name, world, sizes, results, bar.console)
            elapsed = timedelta(seconds=round(time.monotonic() - began))
            bar.console.print(f"{number:>2} of {len(parts)}  {name}: {outcome}; {elapsed} in all", highlight=False)
            bar.advance(task)
        bar.update(task, description="floors")
        results.floors = floors.measured(world.home, sizes.samples)
    return results


def _measure(name: str, world: World, sizes: Sizes, results: Results, console: Console) -> str:
    """Measure one part; return its outcome in a few words."""
    if reason := next(filter(None, map(missing, NEEDS.get(name, ()))), ""):
        results.skipped.append(Skipped(name, reason))
        return f"skipped, {reason}"
    began = time.monotonic()
    try:
        with _ended_after(sizes.patience):
            for one in PARTS[name](world, sizes):
                results.take(one)
    except Exception as error:  # noqa: BLE001  (a part must not cost the rows of the others)
        console.print(traceback.format_exc(), markup=False, highlight=False)
        results.skipped.append(Skipped(name, f"{type(error).__name__}: {error}".splitlines()[0], failed=True))
        return "failed"
    finally:
        results.seconds[name] = round(time.monotonic() - began, 1)
    return f"{results.seconds[name]:.1f} s"


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Write where every thread is, and raise TimeoutError, if the block takes longer than ``seconds``."""

    def end(*_: object) -> None:
        faulthandler.dump_traceback(sys.stderr.fileno())
        raise TimeoutError(f"not finished within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Part = Callable[[World, Sizes], Iterable[Figure | Point]]


def _journal(world: World, sizes: Sizes) -> list[Figure]:
    rows = [
        row
        for batch in (1, 64, 1000)
        for row in journals.appends(world.home, batch, sizes.samples, limited=sizes.limited)
    ]
    return [*rows, journals.from_the_agent(world.home, sizes.spoken, sizes.rounds, limited=sizes.limited)]


def _flooding(world: World, sizes: Sizes) -> Iterable[Figure]:
    return flooding.beside_a_flood(world, sizes.work, limited=sizes.limited)


def _ingest(world: World, sizes: Sizes) -> list[Figure]:
    shapes = ((1, 64), (20, 50), (200, 10))
    return [row for shape in shapes for row in ingests.batches(world, *shape, sizes.rounds, limited=sizes.limited)]


def _pods(world: World, sizes: Sizes) -> list[Figure]:
    # Without limits, a run only shows that everything works: not worth the minutes for a cluster.
    is_real = sizes.limited and not missing("kubernetes")
    rounds = min(sizes.rounds, 5)
    return pods.of_a_namespace(world, sizes.pods, sizes.pod_objects, rounds, limited=sizes.limited, is_real=is_real)


def _resume_tokens(name: str) -> Part:
    """Return the part that measures one agent."""

    def measure(world: World, sizes: Sizes) -> list[Figure]:
        if name not in sizes.agents:
            return []
        return resume_tokens.of_an_agent(world, name)

    return measure


TOKEN_PARTS: Final = {f"tokens-{name}": name for name in AGENT_TYPES}
"""Agents by the name of the part that measures the tokens of a resume."""
PARTS: Mapping[str, Part] = {
    "sweep": lambda world, sizes: [sweeps.of_the_living(world, sizes.fleet, sizes.rounds, sizes.limit)],
    "sweep-kept": lambda world, sizes: composite.of_the_living(world, sizes.fleet, sizes.rounds, limited=sizes.limited),
    "sweep-troubled": lambda world, sizes: sweeps.of_the_troubled(
        world, sizes.fleet, sizes.rounds, limited=sizes.limited
    ),
    "sweep-losses": lambda world, sizes: [sweeps.of_the_dead(world, sizes.losses, sizes.rounds)],
    "restart": lambda world, sizes: restarts.of_fleets(world, sizes.fleet, min(sizes.rounds, 5), limited=sizes.limited),
    "dbos": lambda world, sizes: figures_on_postgresql(
        dbos.of_recoveries, count=sizes.fleet, rounds=min(sizes.rounds, 3), limited=sizes.limited
    ),
    "jupyterhub": lambda world, sizes: jupyterhub.of_checks(
        world, sizes.fleet, min(sizes.rounds, 3), limited=sizes.limited
    ),
    "pods": _pods,
    "tmux": lambda world, sizes: tmux.of_one_session(world, sizes.rounds),
    "journal": _journal,
    "ingest": _ingest,
    "flooding": _flooding,
    "queries": lambda world, sizes: queries.of_ingest_and_sweep(world, sizes.rounds, limited=sizes.limited),
    "catching-up": lambda world, sizes: catching_up.of_updates(world, sizes.updates, limited=sizes.limited),
    "catching-up-pg": lambda world, sizes: figures_on_postgresql(
        catching_up.of_updates, count=sizes.updates, limited=sizes.limited
    ),
    "memory": lambda world, sizes: [memory.of_an_agentctl(world.home, min(sizes.rounds, 5), limited=sizes.limited)],
    "idle": lambda world, sizes: [
        *idle_control_plane.of_serve(world.home, sizes.idle, limited=sizes.limited),
        *idle_control_plane.of_a_death(world, min(sizes.rounds, 3), limited=sizes.limited),
    ],
    "launch": lambda world, sizes: launches.of_idle_sessions(world.home, sizes.rounds, limited=sizes.limited),
    "dense": lambda world, sizes: launches.of_a_dense_machine(world.home, sizes.dense, limited=sizes.limited),
    "latency": lambda world, sizes: latencies.of_a_turn(world, sizes.work),
    "resume": lambda world, sizes: resumes.of_a_killed_agent(world, sizes.resumes, limited=sizes.limited),
    **{part: _resume_tokens(name) for part, name in TOKEN_PARTS.items()},
    "death": lambda world, sizes: deaths.to_ready(world, sizes.resumes, limited=sizes.limited),
    "workflow": lambda world, sizes: workflows.of_nodes(world, sizes.nodes, limited=sizes.limited),
    "workflow-text": lambda world, sizes: workflows.of_texts(sizes.rounds),
    "workspace": lambda world, sizes: workspaces.of_a_repository(world.home, sizes.repository, min(sizes.rounds, 3)),
    "review": lambda world, sizes: reviews.of_a_branch(world.home, sizes.changed, min(sizes.rounds, 5)),
    "storm": lambda world, sizes: storms.of_many(world, sizes.storm, sizes.storm_agents, limited=sizes.limited),
    "screen": lambda world, sizes: screens.of_a_fast_agent(world, sizes.work, sizes.rounds, limited=sizes.limited),
    "talking": lambda world, sizes: talking.of_many(world, sizes.talkers, 4 * sizes.work, limited=sizes.limited),
    "terminal": lambda world, sizes: terminals.of_a_shell(
        world, sizes.megabytes, sizes.samples, sizes.rounds, limited=sizes.limited
    ),
    "long-page": lambda world, sizes: [screens.of_a_long_session(world, sizes.messages, sizes.rounds)],
    "session-page": lambda world, sizes: session_pages.of_a_conversation(
        world, sizes.conversation, sizes.rounds, limited=sizes.limited
    ),
    "session-paint": lambda world, sizes: session_pages.in_a_browser(
        world, sizes.conversation, min(sizes.rounds, 7), limited=sizes.limited
    ),
    "weights": lambda world, sizes: session_pages.of_weights(world, limited=sizes.limited),
    "board": lambda world, sizes: boards.of_tasks(world, sizes.board, sizes.rounds, limited=sizes.limited),
    "search": lambda world, sizes: searches.of_messages(world, sizes.searched, sizes.rounds, limited=sizes.limited),
    "fan-out": lambda world, sizes: fanout.to_all(world, sizes.sockets, sizes.rounds, limited=sizes.limited),
    "history": lambda _, sizes: growing_history.curves(sizes.history, min(sizes.rounds, 7), limited=sizes.limited),
    "live": lambda world, sizes: growing_fleet.curves(world, sizes.live, min(sizes.rounds, 5), limited=sizes.limited),
    "growth": lambda world, sizes: growth.curves(world, sizes.growth, min(sizes.rounds, 3)),
}
"""The parts by name, as ``--only`` takes them."""
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "catching-up-pg": ("postgres",),
    "dbos": ("peers", "postgres"),
    "jupyterhub": ("peers",),
    "pods": ("kubernetes stand-in",),
    "tmux": ("tmux",),
    "resume": ("codex-acp", "acpx"),
    "screen": ("chromium",),
    "session-paint": ("chromium",),
    "weights": ("bundles",),
    **{part: (name,) for part, name in TOKEN_PARTS.items()},
}
"""Services of `tests.services` without which a part is skipped."""
