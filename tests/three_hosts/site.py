"""Three hosts behind Caddy, on one PostgreSQL and Redis: two with a web process, each with a supervisor.

The machines are namespaces (``machines``). Database, Redis and proxy are elsewhere: on the network of the tests. Each
host has its own data directory and its own copy of the repository, under the same names.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Final

from tests import postgresql
from tests.deploy.caddy import SITE, Caddy
from tests.drills.deployment import MANAGE, ApiError, Deployment, Session
from tests.environment import DATABASE_URL
from tests.preloaded import PreloadedProcess
from tests.redis_server import RedisServer
from tests.three_hosts.machines import Machine
from tests.waiting import PATIENCE, eventually

ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "build-a": ("web", "supervisor", "worker"),
    "build-b": ("web", "supervisor"),
    "build-c": ("supervisor",),
}
CLOCKS: Final[Mapping[str, float]] = {"build-b": 180.0, "build-c": -180.0}
"""Seconds by which the clocks of hosts are wrong: what hosts compare is measured by the clock of the database."""
LEASE: Final = 6
"""Lifetime of a lease in seconds."""
HANGS_AFTER: Final = 10.0
"""Seconds after which a request is repeated: one that was on its way to a host that has just been lost is not answered.

By then the proxy knows of the loss, so only the surfaces that are looked at first need it.
"""
WEB_PORT: Final = 8000
SECRET_KEY: Final = "a key of these tests alone, that is long enough for anybody"
METRICS_TOKEN: Final = "a token of these tests alone"
PREPARE: Final = """
import json
from executors_app.models import Executor
from sessions_app.accounts.models import LoginLink
from sessions_app.hosts.models import Host
from django.contrib.auth.models import User
executors = {}
for host in Host.objects.all():
    made = Executor.objects.create(name=f"on {host.name}", runtime="local_standalone", host=host)
    executors[host.name] = str(made.id)
print(json.dumps({"executors": executors, "login": LoginLink.mint(User.objects.get(username="driller"))}))
"""


class Site(Deployment):
    """The deployment, as its operator and its users see it: through the proxy."""

    def __init__(self, home: Path, server: postgresql.Server, redis: RedisServer):
        super().__init__(home)
        self.postgresql, self.redis, self.proxy = server, redis, Caddy(home)
        self.proxy.patience = HANGS_AFTER
        self.url = self.proxy.url
        self.env |= {
            DATABASE_URL: server.new_database(),
            "KANDEV_LEASE_TTL": str(LEASE),
            "KANDEV_REDIS_URL": redis.url,
            "KANDEV_SECRET_KEY": SECRET_KEY,
            "KANDEV_METRICS_TOKEN": METRICS_TOKEN,
            "KANDEV_ALLOWED_HOSTS": SITE,
            "KANDEV_TRUSTED_ORIGINS": self.url,
        }
        self.machines = {name: Machine(name, number, home) for number, name in enumerate(ROLES)}
        self.processes: dict[tuple[str, str], PreloadedProcess] = {}
        """Those that were started last, by host and role."""
        self.executors: dict[str, str] = {}
        """The ids of the executors that belong to one host each, by its name."""
        self._browser = urllib.request.OpenerDirector()

    # --- the machines ---

    def start_all(self) -> None:
        """Boot all machines, start everything, and wait until all of it has reported."""
        self.prepare()
        (self.data / "secret-key").unlink()
        for machine in self.machines.values():
            shutil.copytree(self.repository, machine.directory / "repository")
            (machine.directory / "data").mkdir(mode=0o700)
            self.change("UPDATE repositories SET path = ?", str(machine.here / "repository"))
        webs = [f"{self.machines[host].address}:{WEB_PORT}" for host, roles in ROLES.items() if "web" in roles]
        self.proxy.start(webs, METRICS_FROM="127.0.0.1/32")
        for host in ROLES:
            self.boot(host)
        eventually(self.is_ready, timeout=3 * PATIENCE, describe="the site is ready")
        eventually(lambda: self._reporting() == sum(map(len, ROLES.values())), timeout=PATIENCE, describe="all report")
        made = json.loads(self.run_script(PREPARE))
        self.executors = made["executors"]
        self._log_in(made["login"])

    def boot(self, host: str) -> None:
        """Boot a machine and start all its processes."""
        self.machines[host].boot()
        for role in ROLES[host]:
            self.start(host, role)

    def start(self, host: str, role: str) -> None:
        """Start one process of a host."""
        machine = self.machines[host]
        arguments: dict[str, tuple[str, ...]] = {
            "web": (
                *("-m", "daphne", "-v", "0", "-b", machine.address, "-p", str(WEB_PORT), "kandev.asgi:application"),
            ),
            "supervisor": (str(MANAGE), "supervise"),
            "worker": (str(MANAGE), "qcluster"),
        }
        clock = ("-m", "tests.three_hosts.shifted_clock", str(CLOCKS.get(host, 0.0)))
        self.processes[host, role] = machine.start((*clock, *arguments[role]), self._env_of(machine), f"{role}.log")

    def kill(self, host: str, role: str) -> None:
        """Kill a process; what it has started lives on."""
        process = self.processes[host, role]
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)

    def stop(self, host: str, role: str) -> None:
        """Ask a process to end, as systemd does, and wait until it has."""
        process = self.processes[host, role]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)

    def _env_of(self, machine: Machine) -> dict[str, str]:
        data = {
            "KANDEV_HOST_NAME": machine.name,
            "KANDEV_DATA_DIR": str(machine.here / "data"),
            "KANDEV_TRUSTED_PROXIES": machine.gateway,
        }
        urls = {name: self._seen_from(machine, self.env[name]) for name in (DATABASE_URL, "KANDEV_REDIS_URL")}
        return self.env | data | urls

    @staticmethod
    def _seen_from(machine: Machine, url: str) -> str:
        return url.replace("@127.0.0.1:", f"@{machine.gateway}:")

    def _reporting(self) -> int:
        found = self.rows("SELECT count(*) AS n FROM host_processes WHERE ended_at IS NULL")
        return int(found[0]["n"])

    def exporter(self) -> str:
        """Return the name of the host that keeps the portable record; empty if none does."""
        found = self.rows(
            "SELECT host(client_addr) AS address FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND objid = ? AND pg_locks.database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
            0x6B616E64,
        )
        names = {machine.address: name for name, machine in self.machines.items()}
        return names.get(found[0]["address"], "") if found else ""

    def now(self) -> float:
        """Return the time of the database, by which leases are measured, in seconds."""
        return float(self.rows("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")[0]["now"])

    # --- what people and programs see, through the proxy ---

    def is_ready(self) -> bool:
        """Return whether ``/readyz`` answers 200."""
        return self.proxy.get("/readyz")[0] == 200

    def _api_once(self, method: str, path: str, body: Any, at: str) -> Any:
        request = urllib.request.Request(
            f"{at or self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Token {self.seeded['token']}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=self.proxy.trust) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode(errors="replace")) from error
        return json.loads(text) if text else None

    def _log_in(self, token: str) -> None:
        https = urllib.request.HTTPSHandler(context=self.proxy.trust)
        self._browser = urllib.request.build_opener(https, urllib.request.HTTPCookieProcessor(CookieJar()))
        page = self.page(f"/login/{token}/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert found, page
        form = urllib.parse.urlencode({"csrfmiddlewaretoken": found[1]}).encode()
        request = urllib.request.Request(f"{self.url}/login/{token}/", form, {"Referer": self.url})
        self._browser.open(request, timeout=PATIENCE).close()

    def page(self, path: str) -> str:
        """Return a page as a logged-in member of staff sees it. Raises OSError without an answer."""
        with self._browser.open(self.url + path, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def act_on_host(self, host: str, action: str) -> dict[str, Any]:
        """Decide about a host, by the API: *drain*, *uncordon* or *lost*."""
        (row,) = self.rows("SELECT id FROM hosts WHERE name = ?", host)
        answer: dict[str, Any] = self.api("POST", f"hosts/{row['id']}/{action}/")
        return answer

    def start_on(self, host: str, prompt: str) -> Session:
        """Start a session with an agent on this host."""
        return self.start_session(prompt, executor=self.executors[host])

    # --- the end ---

    def log(self) -> str:
        """Return the ends of the logs of all processes."""
        logs = sorted(self.home.glob("machines/*/*.log"))
        return "\n".join(f"--- {one.parent.name} {one.name}\n{one.read_text(errors='replace')[-1500:]}" for one in logs)

    def close(self) -> None:
        """Take the power from all machines; their agents end with it."""
        self.proxy.close()
        for machine in self.machines.values():
            machine.lose_power()


@contextmanager
def running_site(home: Path) -> Iterator[Site]:
    """Yield a site on servers of its own."""
    with ExitStack() as stack:
        server = postgresql.Server(network="198.18.0.0/15")
        stack.callback(server.close)
        server.settings = {**server.settings, "listen_addresses": "*"}
        server.start()
        redis = RedisServer("*")
        stack.callback(redis.close)
        redis.start()
        site = Site(home, server, redis)
        stack.callback(site.close)
        site.start_all()
        yield site
