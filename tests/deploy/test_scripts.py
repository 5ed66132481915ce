"""deploy/roll-out, back-up and restore on real processes."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import services
from tests.deploy.scripts import run_script
from tests.drills import kandev_processes
from tests.drills.deployment import MANAGE, Deployment
from tests.drills.session_steps import check_only_turn, wait_until_talking
from tests.network import free_port
from tests.services import ROOT
from tests.waiting import eventually


class TestRollOut:
    RESTART = """#!{python}
import os, pathlib, signal, subprocess, sys, time
home, name = pathlib.Path(sys.argv[0]).parent, sys.argv[1]
pid = home / f"{{name}}.pid"
if pid.exists():
    os.kill(int(pid.read_text()), signal.SIGTERM)
    while pathlib.Path(f"/proc/{{pid.read_text()}}").exists():
        time.sleep(0.05)
words = (home / f"{{name}}.command").read_text().split()
log = (home / "serve.log").open("ab")
made = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
pid.write_text(str(made.pid))
(home / "order").open("a").write(name + "\\n")
"""

    @pytest.fixture
    def units(self, deployment: Deployment) -> Iterator[list[str]]:
        """Yield the units to roll out, with a minimal service manager that restarts them."""
        ports = [free_port(), free_port()]
        daphne = f"{sys.executable} -m daphne -v 0 -b 127.0.0.1 kandev.asgi:application -p"
        commands = {f"web{number}": f"{daphne} {port}" for number, port in enumerate(ports)}
        commands |= {
            "supervisor": f"{sys.executable} {MANAGE} supervise",
            "worker": f"{sys.executable} {MANAGE} qcluster",
        }
        for name, command in commands.items():
            (deployment.home / f"{name}.command").write_text(command)
        restart = deployment.home / "restart"
        restart.write_text(self.RESTART.format(python=sys.executable))
        restart.chmod(0o755)
        for name in commands:
            subprocess.run([str(restart), name], cwd=ROOT, env=deployment.env, check=True)
        (deployment.home / "order").unlink()
        deployment.urls = [f"http://127.0.0.1:{port}" for port in ports]
        try:
            for url in deployment.urls:
                deployment.url = url
                eventually(deployment.is_ready, timeout=120, describe=f"{url} is ready")
            yield [f"web{number}={url}" for number, url in enumerate(deployment.urls)] + ["supervisor", "worker"]
        finally:
            for name in commands:
                with suppress(ProcessLookupError):
                    os.killpg(int((deployment.home / f"{name}.pid").read_text()), signal.SIGKILL)

    @pytest.mark.postgresql
    def test_roll_out_during_a_turn_loses_no_work(self, deployment: Deployment, units: list[str]) -> None:
        session = deployment.start_session("work 8")
        wait_until_talking(session)
        done = run_script(deployment, "roll-out", *units, RESTART=str(deployment.home / "restart"))
        assert done.returncode == 0, done.stderr
        assert (deployment.home / "order").read_text().split() == ["web0", "web1", "supervisor", "worker"]
        check_only_turn(session)
        assert deployment.is_ready()

    @pytest.mark.postgresql
    def test_roll_out_stops_at_the_first_web_that_does_not_return(
        self, deployment: Deployment, units: list[str]
    ) -> None:
        (deployment.home / "web0.command").write_text("false")
        done = run_script(deployment, "roll-out", *units, RESTART=str(deployment.home / "restart"), PATIENCE="3")
        assert done.returncode == 1
        assert "web0 is not ready after 3 s; nothing more was restarted" in done.stderr
        assert (deployment.home / "order").read_text().split() == ["web0"]
        deployment.url = deployment.urls[1]
        assert deployment.is_ready()


@pytest.fixture
def operator_key() -> Iterator[dict[str, str]]:
    """Yield the operator's key: ``file`` has the public half, ``home`` is a gpg home with both."""
    services.require("gpg")
    # Directly below /tmp: gpg's agent listens on a socket in it, whose path must be short.
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        env = {"PATH": os.environ["PATH"], "GNUPGHOME": home}
        gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        name, file = "operator@kandev.example", f"{home}/operator.asc"
        subprocess.run([*gpg, "--quick-generate-key", name, "rsa3072", "encrypt", "1d"], env=env, check=True)
        subprocess.run([*gpg, "--armor", "--output", file, "--export", name], env=env, check=True)
        try:
            yield {"file": file, "home": home}
        finally:
            subprocess.run(["gpgconf", "--kill", "all"], env=env, check=True)


def newest_backup(deployment: Deployment) -> str:
    code = (
        "from sessions_app.maintenance.backups import newest_backup as find\nprint(f'{find().began_at:%Y%m%dT%H%M%SZ}')"
    )
    return deployment.manage("shell", "--verbosity", "0", "--command", code).stdout.strip()


class TestBackUp:
    @pytest.mark.database
    def test_backup_of_a_running_deployment_is_restored_without_repeating_work(self, deployment: Deployment) -> None:
        with kandev_processes.served_by(deployment, 1):
            session = deployment.start_session("work 2")
            wait_until_talking(session)
            copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
            assert copied.returncode == 0, copied.stderr
            check_only_turn(session)
            session.prompt("work 1")
            eventually(lambda: [row["state"] for row in session.prompts()] == ["done", "done"], timeout=60)

        restored = run_script(deployment, "restore", copied.stdout.strip())
        assert restored.returncode == 0, restored.stderr
        assert "1 session stopped" in restored.stdout
        assert newest_backup(deployment) == Path(copied.stdout.strip()).name[:16], (
            "the copy does not hold its own record"
        )
        assert session.row["desired_state"] == "stopped"
        with kandev_processes.served_by(deployment, 1):
            eventually(
                lambda: session.status()["executor_status"] == "stopped", timeout=60, describe="the session is stopped"
            )
            assert all(row["state"] != "sending" for row in session.prompts())
            assert session.agent_log().count("tick 1\n") == 2, "the agent received two prompts"

    @pytest.mark.database
    def test_backup_is_readable_only_by_its_owner(self, deployment: Deployment) -> None:
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        assert copied.returncode == 0, copied.stderr
        found = Path(copied.stdout.strip())
        assert (found / "complete").exists()
        assert "could not be recorded" not in copied.stderr
        assert [path.name for path in found.rglob("*") if path.stat().st_mode & 0o077] == []

    @pytest.mark.any_database
    def test_backup_holds_no_secret_key_and_says_what_to_keep(self, deployment: Deployment) -> None:
        key = (deployment.data / "secret-key").read_text().strip()
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        assert copied.returncode == 0, copied.stderr
        assert f"keep them in another place: {deployment.data}/secret-key" in copied.stderr
        for path in Path(copied.stdout.strip()).rglob("*"):
            assert path.is_dir() or key.encode() not in path.read_bytes(), path

    @pytest.mark.any_database
    def test_backup_without_the_secret_key_is_not_restored(self, deployment: Deployment) -> None:
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        kept = (deployment.data / "secret-key").rename(deployment.home / "kept")
        refused = run_script(deployment, "restore", copied.stdout.strip())
        assert (refused.returncode, not (deployment.data / "secret-key").exists()) == (2, True)
        assert "the secret key is missing" in refused.stderr
        given = run_script(deployment, "restore", copied.stdout.strip(), KANDEV_SECRET_KEY_FILE=str(kept))
        assert given.returncode == 0, given.stderr

    @pytest.mark.any_database
    def test_backup_encrypts_secrets_to_the_operators_key(
        self, deployment: Deployment, operator_key: dict[str, str]
    ) -> None:
        key = (deployment.data / "secret-key").read_text()
        (deployment.data / "hosts").mkdir(mode=0o700)
        (deployment.data / "hosts" / "build").write_text("token of a host")
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"), operator_key["file"])
        assert copied.returncode == 0, copied.stderr
        assert "secrets.tar.gpg" in {path.name for path in Path(copied.stdout.strip()).iterdir()}
        for path in Path(copied.stdout.strip()).rglob("*"):
            assert path.is_dir() or not re.search(
                f"{re.escape(key.strip())}|token of a host".encode(), path.read_bytes()
            )

        (deployment.data / "secret-key").unlink()
        (deployment.data / "hosts" / "build").unlink()
        restored = run_script(deployment, "restore", copied.stdout.strip(), GNUPGHOME=operator_key["home"])
        assert restored.returncode == 0, restored.stderr
        assert (deployment.data / "secret-key").read_text() == key
        assert (deployment.data / "hosts" / "build").read_text() == "token of a host"

    @pytest.mark.any_database
    def test_backup_has_what_the_data_directory_only_links_to(
        self, deployment: Deployment, operator_key: dict[str, str]
    ) -> None:
        key, elsewhere = deployment.data / "secret-key", deployment.home / "elsewhere"
        elsewhere.mkdir()
        content = key.read_text()
        key.rename(elsewhere / "key")
        key.symlink_to(elsewhere / "key")
        sessions = deployment.data / "sessions"
        if sessions.exists():
            sessions.rename(elsewhere / "sessions")
        (elsewhere / "sessions" / "record").mkdir(parents=True, exist_ok=True)
        (elsewhere / "sessions" / "record" / "log").write_text("kept")
        sessions.symlink_to(elsewhere / "sessions")
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"), operator_key["file"])
        assert copied.returncode == 0, copied.stderr
        assert (Path(copied.stdout.strip()) / "sessions" / "record" / "log").read_text() == "kept"
        assert not (Path(copied.stdout.strip()) / "sessions").is_symlink()

        key.unlink()
        restored = run_script(deployment, "restore", copied.stdout.strip(), GNUPGHOME=operator_key["home"])
        assert restored.returncode == 0, restored.stderr
        assert key.read_text() == content

    @pytest.mark.any_database
    def test_backup_is_incomplete_if_its_secrets_cannot_be_encrypted(self, deployment: Deployment) -> None:
        services.require("gpg")
        copied = run_script(
            deployment, "back-up", str(deployment.home / "copies"), str(deployment.home / "no-such-key")
        )
        assert copied.returncode
        assert not list((deployment.home / "copies").rglob("complete"))

    @pytest.mark.any_database
    def test_unfinished_backup_is_not_restored(self, deployment: Deployment) -> None:
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        (Path(copied.stdout.strip()) / "complete").unlink()
        before = deployment.rows("SELECT id FROM repositories")
        refused = run_script(deployment, "restore", copied.stdout.strip())
        assert refused.returncode == 2
        assert "is not a complete copy" in refused.stderr
        assert deployment.rows("SELECT id FROM repositories") == before

    @pytest.mark.any_database
    def test_copy_with_a_link_is_not_restored(self, deployment: Deployment) -> None:
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        sessions = Path(copied.stdout.strip()) / "sessions"
        sessions.mkdir(exist_ok=True)
        (sessions / "link").symlink_to(deployment.home)
        refused = run_script(deployment, "restore", copied.stdout.strip())
        assert refused.returncode == 2
        assert "sessions/link is neither a file nor a directory" in refused.stderr

    @pytest.mark.any_database
    @pytest.mark.parametrize(
        ("name", "kind", "size", "reason"),
        [
            ("authorized_keys", tarfile.REGTYPE, 10, "contains authorized_keys"),
            ("secret-key", tarfile.SYMTYPE, 0, "neither a file nor a directory"),
            ("secret-key", tarfile.REGTYPE, 17 << 20, "too large"),
        ],
        ids=["other file", "link", "too large"],
    )
    def test_secrets_of_someone_else_are_not_restored(
        self, deployment: Deployment, operator_key: dict[str, str], name: str, kind: bytes, size: int, reason: str
    ) -> None:
        copied = run_script(deployment, "back-up", str(deployment.home / "copies"))
        packed = deployment.home / "secrets.tar"
        with tarfile.open(packed, "w") as tar:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, size, "/etc/passwd"
            tar.addfile(entry, io.BytesIO(bytes(size)))
        gpg = ["gpg", "--batch", "--quiet", "--recipient-file", operator_key["file"], "--encrypt"]
        env = {"PATH": os.environ["PATH"], "GNUPGHOME": operator_key["home"]}
        encrypted = Path(copied.stdout.strip()) / "secrets.tar.gpg"
        subprocess.run([*gpg, "--output", str(encrypted), str(packed)], env=env, check=True)
        (deployment.data / "secret-key").rename(deployment.home / "kept")

        refused = run_script(deployment, "restore", copied.stdout.strip(), GNUPGHOME=operator_key["home"])
        assert refused.returncode == 2
        assert reason in refused.stderr
        assert not (deployment.data / name).exists()

    def test_backup_reports_missing_settings(self, tmp_path: Path) -> None:
        for script in ("back-up", "restore"):
            env = {"PATH": os.environ["PATH"]}
            done = subprocess.run([str(ROOT / "deploy" / script)], env=env, capture_output=True, text=True, check=False)
            assert done.returncode
            assert "KANDEV_DATA_DIR must be set" in done.stderr
