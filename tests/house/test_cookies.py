"""With TLS, session and CSRF cookies are restricted to TLS and this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.services import ROOT

PROBE = """
import json
from django.conf import settings
kinds = ("SESSION", "CSRF")
cookies = {getattr(settings, f"{kind}_COOKIE_NAME"): [
    getattr(settings, f"{kind}_COOKIE_{name}") for name in ("SECURE", "HTTPONLY", "SAMESITE", "DOMAIN", "PATH")
] for kind in kinds}
print(json.dumps([cookies, settings.KANDEV_COOKIE_PREFIX, settings.ALLOWED_HOSTS]))
"""


def settings_of(**environment: str) -> Any:
    """Return names and attributes of the cookies, the prefix of cookie names, and the allowed hosts."""
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "kandev.settings", **environment}
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_cookies_require_tls_and_this_host() -> None:
    public = {"KANDEV_SECRET_KEY": "k" * 50, "KANDEV_ALLOWED_HOSTS": "kandev.example"}
    cookies, prefix, hosts = settings_of(**public, KANDEV_TRUSTED_ORIGINS="https://kandev.example")
    assert (prefix, hosts) == ("__Host-", ["kandev.example"])
    given = [True, True, "Lax", None, "/"]
    assert cookies == {"__Host-kandev_session": given, "__Host-kandev_csrf": given}


def test_cookies_without_tls_keep_their_names() -> None:
    cookies, prefix, hosts = settings_of()
    assert (prefix, "kandev.localhost" in hosts) == ("", True)
    given = [False, True, "Lax", None, "/"]
    assert cookies == {"kandev_session": given, "kandev_csrf": given}
