"""deploy/roll-out installs releases side by side, switches a link to them, and switches back if one fails."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.scripts import run_script
from tests.drills.deployment import MANAGE, Deployment
from tests.network import free_port

pytestmark = pytest.mark.any_database

RESTART = """#!/bin/sh
echo "$1 $(cat {link}/version)" >> {log}
test "$(cat {link}/version)" != broken
"""
MANAGE_WITH_OLD_CODE = """#!/bin/sh
if [ "$1 $2" = "migrate --plan" ] && [ "$(cat version)" = one ]; then exit 2; fi
exec {python} {manage} "$@"
"""
"""The code of the release *one* does not know the database any more."""
NO_COMMANDS = "true"
"""Instead of manage.py where only the directories of releases matter: each roll-out runs three commands of it."""


@dataclass
class Site:
    """A machine with a checkout, releases and a link, whose service manager only records what it restarts."""

    deployment: Deployment
    root: Path

    @property
    def link(self) -> Path:
        """Where the units work."""
        return self.root / "kandev"

    @property
    def restarted(self) -> list[str]:
        """Return each restarted unit, with the release that it found."""
        return (self.root / "restarts").read_text().splitlines()

    def commit(self, version: str) -> None:
        """Commit another version of the code."""
        source = self.root / "source"
        source.mkdir(exist_ok=True)
        (source / "version").write_text(version)
        for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", version]):
            name = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
            subprocess.run(["git", *name, *command], cwd=source, check=True)

    def roll_out(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Roll out what is committed, and restart two units if nothing else is asked for."""
        restart = self.root / "restart"
        restart.write_text(RESTART.format(link=self.link, log=self.root / "restarts"))
        restart.chmod(0o755)
        settings = {
            "SOURCE": str(self.root / "source"),
            "RELEASES": str(self.root / "releases"),
            "LINK": str(self.link),
            "SETUP": "true",
            "RESTART": str(restart),
            "MANAGE": f"{sys.executable} {MANAGE}",
            "PATIENCE": "5",
            "KEEP": "2",
        }
        return run_script(self.deployment, "roll-out", *(arguments or ("web", "worker")), **(settings | environment))

    @property
    def version(self) -> str:
        """Return the version that the link leads to."""
        return (self.link / "version").read_text()

    @property
    def installed(self) -> set[str]:
        """Return the versions of the releases that are there."""
        return {path.read_text() for path in (self.root / "releases").glob("*/version")}


@pytest.fixture
def site(deployment: Deployment) -> Site:
    made = Site(deployment, deployment.home / "site")
    made.root.mkdir()
    made.commit("one")
    installed = made.roll_out("--install")
    assert installed.returncode == 0, installed.stderr
    return made


def test_first_release_is_installed_without_restarting_anything(site: Site) -> None:
    assert (site.version, site.link.is_symlink()) == ("one", True)
    assert not (site.root / "restarts").exists()


def test_units_are_restarted_with_the_release_that_the_link_leads_to(site: Site) -> None:
    running = site.link.resolve()
    site.commit("two")
    done = site.roll_out()
    assert done.returncode == 0, done.stderr
    assert site.restarted == ["web two", "worker two"]
    assert (site.version, (running / "version").read_text()) == ("two", "one")
    # People read which hosts report before anything is changed.
    assert re.search(r"^roll-out: \d+ hosts?$.*is switched to", done.stdout, re.MULTILINE | re.DOTALL)


def test_release_that_fails_is_switched_back(site: Site) -> None:
    site.commit("broken")
    done = site.roll_out()
    assert done.returncode == 1
    assert "web could not be restarted; nothing more was restarted" in done.stderr
    assert "is switched back to" in done.stderr
    assert site.restarted == ["web broken", "web one"]
    assert "web is restarted with the release before" in done.stderr
    assert site.version == "one"


def test_web_that_is_not_ready_with_the_release_before_either_is_named(site: Site) -> None:
    site.commit("two")
    done = site.roll_out(f"web=http://127.0.0.1:{free_port()}", "worker", PATIENCE="1")
    assert done.returncode == 1
    assert "web is not ready after 1 s; nothing more was restarted" in done.stderr
    assert "web is not ready with the release before after 1 s either" in done.stderr
    assert site.restarted == ["web two", "web one"]


def test_release_before_that_cannot_use_the_database_is_not_switched_back_to(site: Site) -> None:
    manage = site.root / "manage"
    manage.write_text(MANAGE_WITH_OLD_CODE.format(python=sys.executable, manage=MANAGE))
    manage.chmod(0o755)
    site.commit("broken")
    done = site.roll_out(MANAGE=str(manage))
    assert done.returncode == 1
    assert "the database was migrated" in done.stderr
    assert (site.version, site.restarted) == ("broken", ["web broken"])


def test_release_that_cannot_be_installed_changes_nothing(site: Site) -> None:
    site.commit("two")
    done = site.roll_out(SETUP="false")
    assert done.returncode == 2
    assert "could not be installed" in done.stderr
    assert site.version == "one"
    again = site.roll_out()  # begins anew with what the first attempt left
    assert (again.returncode, site.version) == (0, "two"), again.stderr


def test_release_that_is_not_unpacked_completely_is_not_installed(site: Site) -> None:
    site.commit("two")
    tools = site.root / "tools"
    tools.mkdir()
    (tools / "tar").write_text("#!/bin/sh\ncat >/dev/null\necho 'No space left on device' >&2\nexit 2\n")
    (tools / "tar").chmod(0o755)
    done = site.roll_out(PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert "could not be installed" in done.stderr
    assert site.version == "one"


def test_only_one_roll_out_runs_at_a_time(site: Site) -> None:
    lock = (site.root / "releases" / ".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        site.commit("two")
        done = site.roll_out()
    assert done.returncode == 2
    assert "another roll-out is running" in done.stderr
    assert site.version == "one"


def test_old_releases_are_removed_unless_a_process_uses_them(site: Site) -> None:
    with subprocess.Popen(["sleep", "3600"], cwd=site.link.resolve()) as agent:
        try:
            for version in ("two", "three"):
                site.commit(version)
                assert site.roll_out(MANAGE=NO_COMMANDS).returncode == 0
            site.commit("four")
            kept = site.roll_out(MANAGE=NO_COMMANDS)
            assert "is still used by a process, and kept" in kept.stdout
            assert site.installed == {"one", "three", "four"}
        finally:
            agent.kill()
    site.commit("five")
    assert site.roll_out(MANAGE=NO_COMMANDS).returncode == 0
    assert site.installed == {"four", "five"}


def test_directory_in_place_of_the_link_is_left_alone(site: Site) -> None:
    site.link.unlink()
    site.link.mkdir()
    done = site.roll_out()
    assert done.returncode == 2
    assert "is a directory, not a link to a release" in done.stderr
    assert site.link.is_dir()
