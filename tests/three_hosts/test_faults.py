"""Whatever is lost of three hosts shows on every surface within a lease and five seconds, and nothing is done twice.

The tests share one deployment. Each begins with turns on all hosts, does its damage in the middle of them, looks at all
surfaces until they say so, repairs it, and waits until they say that everything is well and the turns are over.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPException

import pytest

from executors_app.machine.process import identity
from sessions_app.portable.record import LOG_SUFFIX
from tests.drills.deployment import ApiError
from tests.services import require
from tests.three_hosts.claims import SURFACES, Situation, Surface
from tests.three_hosts.followers import SERVICE_RESTART, Followers
from tests.three_hosts.ledger import Ledger
from tests.three_hosts.site import LEASE, ROLES, Site, running_site
from tests.waiting import eventually

pytestmark = pytest.mark.any_database
GRACE = 5.0
"""Seconds after the time of a lease within which every surface has to tell the truth: what ``/metrics`` are kept."""
LONG = 180.0


@dataclass
class Drill:
    """The deployment with a session on each host, and what has been measured so far."""

    site: Site
    ledgers: Mapping[str, Ledger]
    followers: Followers
    slowest_look: float = 0.0
    """Seconds that the slowest answer of this run took: a busy machine may be later by that."""
    delays: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds until each surface told the truth, by fault."""
    without_power: set[str] = field(default_factory=set)
    """Hosts that have lost their power, and their agents with it."""

    def begin_turns(self, seconds: int = 4, hosts: Iterable[str] = ROLES) -> None:
        """Send a prompt to the session on each host, and wait until all agents answer."""
        ledgers = [self.ledgers[host] for host in hosts]
        for ledger in ledgers:
            ledger.ask(seconds)
        for ledger in ledgers:
            eventually(ledger.has_begun, timeout=LONG, describe="the agent has begun to answer")

    def watch(self, fault: str, situation: Situation, since: float) -> None:
        """Look until every surface says what is wrong since ``since`` (of the database's clock), and nothing else.

        A surface fails that lies in an answer to a question that was asked later than a lease and ``GRACE`` after it.
        Its delays are kept for the table under the name of the ``fault``, if it has one.
        """
        waiting = {surface.name: surface for surface in SURFACES}
        told = self.delays.setdefault(fault, {}) if fault else {}
        deadline = time.monotonic() + LONG
        while waiting:
            for surface in list(waiting.values()):
                asked, begun = self.site.now() - since, time.monotonic()
                claims, expected = self._read(surface.read), surface.expect(situation)
                self.slowest_look = max(self.slowest_look, time.monotonic() - begun)
                limit = LEASE + GRACE + self.slowest_look
                if claims is None:
                    assert time.monotonic() < deadline, f"{surface.name} does not answer"
                    continue
                tells = expected <= claims
                assert tells or asked <= limit, f"{surface.name} says {claims} instead of {expected}"
                if tells:
                    told.setdefault(surface.name, max(asked, 0.0))
                if claims == expected:
                    del waiting[surface.name]
                assert time.monotonic() < deadline, f"{surface.name} says {claims} instead of {expected}"

    def _read(self, read: Callable[..., frozenset[str]]) -> frozenset[str] | None:
        try:
            return read(self.site, {host: ledger.session for host, ledger in self.ledgers.items()})
        except (OSError, HTTPException, ApiError):
            return None  # the process that was asked has just ended: an error claims nothing

    def wait_for_health(self) -> None:
        """Wait until every surface says that all is well, and every prompt is settled; then compare the ledgers."""
        self.wait_for_surfaces()
        for host, ledger in self.ledgers.items():
            ledger.wait_until_settled(LONG)
            ledger.check(has_lost_power=host in self.without_power)
        eventually(self.have_followed, timeout=LONG, describe="every page has what the log has")

    def wait_for_surfaces(self) -> None:
        """Wait until every surface says that all is well."""
        for surface in SURFACES:
            eventually(partial(self._is_well, surface), timeout=LONG, describe=f"{surface.name} is well")

    def _is_well(self, surface: Surface) -> bool:
        return self._read(surface.read) == frozenset()

    def have_followed(self) -> bool:
        """Return whether every page has each event of its session, once and in order."""
        for follower in self.followers.all:
            events = len(follower.session.events())
            if follower.seqs != list(range(1, events + 1)):
                assert follower.seqs == sorted(set(follower.seqs)), "an event came twice, or out of order"
                return False
        return True

    def table(self) -> str:
        """Return the measured delays as a table of Markdown."""
        names = [surface.name for surface in SURFACES]
        lines = ["| lost | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
        for fault, delays in self.delays.items():
            lines.append(f"| {fault} | " + " | ".join(f"{delays[name]:.1f}" for name in names) + " |")
        return "\n".join(lines)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """Yield the deployment, healthy, with an idle session on each host that two pages follow."""
    for service in ("postgres", "redis", "caddy", "machines"):
        require(service)
    with running_site(tmp_path_factory.mktemp("site")) as site:
        ledgers = {host: Ledger(site.start_on(host, "remember walrus"), "remember walrus") for host in ROLES}
        sessions = [ledger.session for ledger in ledgers.values()]
        with Followers(site, sessions * 2) as followers:
            made = Drill(site, ledgers, followers)
            made.wait_for_health()
            yield made
        sys.stdout.write(f"\nSeconds, with a lease of {LEASE} s:\n{made.table()}\n")


@dataclass(frozen=True)
class Loss:
    """One thing that is lost, and what is wrong while it is."""

    what: str
    host: str
    role: str = ""
    """Empty: the whole host."""


LOSSES = (
    Loss("worker killed", "build-a", "worker"),
    Loss("supervisor killed", "build-c", "supervisor"),
    Loss("host without network", "build-c"),
)


def situation_without(*losses: Loss) -> Situation:
    """Return what is wrong while these are lost: every host has an agent."""
    gone = {(one.host, role) for one in losses for role in ROLES[one.host] if one.role in ("", role)}
    return Situation(frozenset(gone), frozenset(host for host, role in gone if role == "supervisor"))


@pytest.mark.parametrize("loss", LOSSES, ids=[f"{one.what}, {one.host}" for one in LOSSES])
def test_loss_shows_everywhere_in_time_and_costs_nothing(drill: Drill, loss: Loss) -> None:
    site, machine = drill.site, drill.site.machines[loss.host]
    drill.begin_turns()
    if loss.role:
        site.kill(loss.host, loss.role)
    else:
        machine.cut()

    drill.watch(f"{loss.what} ({loss.host})", situation_without(loss), site.now())

    if loss.role:
        site.start(loss.host, loss.role)
    else:
        machine.mend()
    drill.wait_for_health()


def test_killed_exporter_is_replaced_and_the_record_is_complete(drill: Drill) -> None:
    site = drill.site
    drill.begin_turns()
    before = eventually(site.exporter, describe="some host keeps the portable record")

    site.kill(before, "supervisor")
    since = site.now()
    after = eventually(partial(exporter_besides, site, before), timeout=LONG, describe="another host keeps the record")
    drill.watch(f"exporter killed ({before})", situation_without(Loss("", before, "supervisor")), since)

    site.start(before, "supervisor")
    drill.wait_for_health()
    for ledger in drill.ledgers.values():
        complete = partial(is_recorded, site, after, ledger)
        eventually(complete, timeout=LONG, describe="the record has the whole log")


def exporter_besides(site: Site, host: str) -> str:
    """Return the host that keeps the record; empty if none does, or only this one."""
    found = site.exporter()
    return "" if found == host else found


def is_recorded(site: Site, host: str, ledger: Ledger) -> bool:
    """Return whether the record on a host has each line of a session's log once."""
    file = site.machines[host].directory / "data" / "sessions" / f"{ledger.session.id}{LOG_SUFFIX}"
    seqs = [json.loads(line)["seq"] for line in file.read_text().splitlines()] if file.exists() else []
    return seqs == [event["seq"] for event in ledger.session.events()]


def test_pages_of_a_killed_or_stopped_web_process_go_on_with_the_other_one(drill: Drill) -> None:
    site, pages = drill.site, drill.followers
    eventually(pages.are_connected, timeout=LONG, describe="every page is connected")
    drill.begin_turns()
    site.kill("build-a", "web")
    drill.watch("web process killed (build-a)", situation_without(Loss("", "build-a", "web")), site.now())
    eventually(pages.are_connected, timeout=LONG, describe="every page is connected again")
    site.start("build-a", "web")
    drill.wait_for_health()

    closed = [len(one.codes) for one in pages.all]
    drill.begin_turns()
    site.stop("build-b", "web")
    drill.watch("web process stopped (build-b)", situation_without(Loss("", "build-b", "web")), site.now())
    site.start("build-b", "web")
    drill.wait_for_health()
    eventually(pages.are_connected, timeout=LONG, describe="every page is connected to the other one")
    codes = [code for one, number in zip(pages.all, closed, strict=True) for code in one.codes[number:]]
    assert SERVICE_RESTART in codes


def test_drained_host_comes_to_rest_says_so_and_goes_on_afterwards(drill: Drill) -> None:
    site = drill.site
    drill.begin_turns()
    site.act_on_host("build-b", "drain")
    drill.watch("host drained (build-b)", Situation(service={"build-b": "draining"}), site.now())
    session = drill.ledgers["build-b"].session
    eventually(lambda: not session.processes(), timeout=LONG, describe="nothing runs on the drained host")
    drill.ledgers["build-b"].ask(1)
    assert session.status()["start_wait"]["host"] == "build-b"

    site.act_on_host("build-b", "uncordon")
    drill.wait_for_health()


def test_two_hosts_lost_at_once_show_and_go_on(drill: Drill) -> None:
    site, both = drill.site, (Loss("", "build-a"), Loss("", "build-c"))
    drill.begin_turns()
    drill.without_power.add("build-a")
    site.machines["build-a"].lose_power()
    site.machines["build-c"].cut()
    drill.watch("two hosts at once (build-a, build-c)", situation_without(*both), site.now())

    site.machines["build-c"].mend()
    site.boot("build-a")
    drill.wait_for_health()


def test_drained_host_that_loses_power_stays_drained_until_it_is_put_back(drill: Drill) -> None:
    site, draining = drill.site, {"build-b": "draining"}
    drill.begin_turns()
    site.act_on_host("build-b", "drain")
    drill.without_power.add("build-b")
    site.machines["build-b"].lose_power()
    lost = situation_without(Loss("", "build-b"))
    drill.watch("host without power while it drains (build-b)", replace(lost, service=draining), site.now())

    site.boot("build-b")
    drill.watch("", Situation(service=draining), float("inf"))
    assert not drill.ledgers["build-b"].session.processes()
    site.act_on_host("build-b", "uncordon")
    drill.wait_for_health()


def test_drain_survives_a_restart_of_database_and_redis(drill: Drill) -> None:
    site = drill.site
    drill.begin_turns()
    site.act_on_host("build-b", "drain")
    site.redis.kill()
    site.postgresql.stop()
    site.postgresql.start()
    site.redis.start()
    session = drill.ledgers["build-b"].session
    eventually(lambda: not session.processes(), timeout=LONG, describe="nothing runs on the drained host")
    drill.watch("", Situation(service={"build-b": "draining"}), float("inf"))

    site.act_on_host("build-b", "uncordon")
    drill.wait_for_health()


def test_host_that_returns_after_its_loss_was_declared_ends_what_it_runs(drill: Drill) -> None:
    site, ledger = drill.site, drill.ledgers["build-c"]
    drill.begin_turns(60, ["build-c"])
    running = ledger.session.processes()
    site.machines["build-c"].cut()
    drill.watch("", situation_without(Loss("", "build-c")), site.now())

    eventually(partial(is_declared_lost, site, "build-c"), timeout=LONG, describe="the loss can be declared")
    site.machines["build-c"].mend()

    eventually(lambda: not any(map(identity.is_alive, running)), timeout=LONG, describe="the returned host ends it")
    drill.wait_for_surfaces()
    assert ledger.session.status()["error_code"] == "host_lost"
    assert ledger.session.prompts()[-1]["state"] == "interrupted"
    site.api("POST", f"{ledger.session.path}/resume/", {"mode": "fresh_start"})
    drill.without_power.add("build-c")
    drill.wait_for_health()


def is_declared_lost(site: Site, host: str) -> bool:
    """Declare a host lost; return False while it still counts as there."""
    try:
        site.act_on_host(host, "lost")
    except ApiError as error:
        assert "host_reporting" in error.body
        return False
    return True
