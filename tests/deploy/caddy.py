"""Caddy with the file of the repository, in front of web processes of a test."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.network import free_port
from tests.services import ROOT

SITE: Final = "localhost"


class Caddy:
    """The proxy in ``home``, with certificates of its own authority."""

    def __init__(self, home: Path):
        self.home = home
        self.port = free_port()
        self.url = f"https://{SITE}:{self.port}"
        self.patience = 30.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, webs: Sequence[str], **env: str) -> None:
        """Start it in front of web processes, given by their addresses; ``env`` are further variables of the file."""
        given = (ROOT / "deploy" / "Caddyfile").read_text()
        # Use no port 80, and add nothing to the trusted certificates of this machine.
        local = given.replace("admin off", "admin off\n\tauto_https disable_redirects\n\tskip_install_trust")
        assert local != given
        (self.home / "Caddyfile").write_text(local)
        env |= {"PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_DATA_HOME": str(self.home / "caddy")}
        env |= {"SITE": f"{SITE}:{self.port}", "WEBS": " ".join(webs)}
        with (self.home / "caddy.log").open("wb") as log:
            command = ["caddy", "run", "--config", str(self.home / "Caddyfile"), "--adapter", "caddyfile"]
            self._process = subprocess.Popen(
                command, env=env, cwd=self.home, stdout=log, stderr=log, start_new_session=True
            )

    def log(self) -> str:
        """Return the end of its log."""
        found = self.home / "caddy.log"
        return found.read_text()[-1500:] if found.exists() else ""

    @property
    def trust(self) -> ssl.SSLContext:
        """Return an SSL context that trusts only the proxy's own authority."""
        root = self.home / "caddy" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        return ssl.create_default_context(cafile=str(root))

    def get(self, path: str, **headers: str) -> tuple[int, Any, str]:
        """Return status, headers and text of a page; status 0 without a response within ``patience`` seconds."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=self.patience, context=self.trust) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()
        except OSError:
            return 0, {}, ""

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
