"""Options that a host refuses, and its independence from Django and from the token's plain text."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.remote.host_requests import send_request
from tests.remote.machines import TOKEN, Machine
from tests.services import ROOT

OPEN = "0.0.0.0:0"


def run(home: Path, *more: str, listen: str = "127.0.0.2:0", mode: int = 0o600, token: str = TOKEN) -> tuple[int, str]:
    """Start a host that exits immediately; return exit status and standard error."""
    file = home / "token"
    file.write_text(token)
    file.chmod(mode)
    argv = ["--listen", listen, "--token-file", str(file), "--root", str(home / "root"), *more]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "executors_app.agentctl", "host", *argv],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("more", "listen", "says"),
    [
        ((), OPEN, "--self-signed"),
        ((), "[::]:0", "--self-signed"),
        ((), "build1.example:0", "--self-signed"),
        ((), "8443", "HOST:PORT"),
        (("--tls-cert", "x.pem"), OPEN, "must be given together"),
        (("--tls-cert", "/none.pem", "--tls-key", "/none.key"), OPEN, "none.pem"),
        (("--self-signed", "--tls-cert", "x.pem"), OPEN, "cannot be combined"),
        (("--repositories", "relative/folder"), "127.0.0.2:0", "neither an absolute folder nor a URL"),
    ],
)
def test_unsafe_host_options_are_rejected_in_one_line(
    tmp_path: Path, more: tuple[str, ...], listen: str, says: str
) -> None:
    code, output = run(tmp_path, *more, listen=listen)
    assert code == 2
    assert says in output.strip().splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.parametrize(("mode", "token", "says"), [(0o644, TOKEN, "chmod 600"), (0o600, "short", "at least 16")])
def test_token_that_is_not_secret_is_refused(tmp_path: Path, mode: int, token: str, says: str) -> None:
    code, output = run(tmp_path, mode=mode, token=token)
    assert (code, says in output) == (2, True)


async def test_host_can_store_only_the_digest_of_its_token(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", [])
    machine.token_file.write_text(f"sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    try:
        machine.start()
        assert (await send_request(machine, "GET", "/host"))[0] == 200
        assert (await send_request(machine, "GET", "/host", token=hashlib.sha256(TOKEN.encode()).hexdigest()))[0] == 401
    finally:
        machine.close()


async def test_host_keeps_identity_and_certificate_in_a_private_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", [], extra=["--name", "build1.example"])
    try:
        machine.start()
        before = (machine.ready["fingerprint"], (await send_request(machine, "GET", "/host"))[1]["host_id"])
        assert (await send_request(machine, "GET", "/host", headers={"Host": "build1.example"}))[0] == 200
        assert (await send_request(machine, "GET", "/host", headers={"Host": "build2.example"}))[0] == 403
        machine.stop()
        machine.start()
        assert before == (machine.ready["fingerprint"], (await send_request(machine, "GET", "/host"))[1]["host_id"])
        open_to_others = [path for path in (machine.root, *machine.root.iterdir()) if path.stat().st_mode & 0o077]
        assert open_to_others == []
    finally:
        machine.close()


def test_agentctl_and_host_need_no_django() -> None:
    look = "import sys, executors_app.agentctl.{0}; print('django' in sys.modules, 'cryptography' in sys.modules)"
    for module in ("__main__", "host.daemon"):
        completed = subprocess.run(
            [sys.executable, "-c", look.format(module)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            timeout=30,
        )
        assert completed.stdout.strip() == "False False", module
