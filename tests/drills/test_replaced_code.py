"""A web process whose code is removed while it runs still serves every page."""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Final

import pytest

from tests.drills.deployment import Deployment
from tests.network import free_port
from tests.preloaded import PreloadedProcess
from tests.services import ROOT
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.any_database

CODE: Final = ("kandev", "sessions_app", "executors_app", "templates", "frontend", "manage.py", "docs")
AT_ONCE: Final = """
import runpy, sys
from sessions_app.management import preloading
preloading.AFTER = 0
sys.argv = ["daphne", "-v", "0", "-b", "127.0.0.1", "-p", "{port}", "kandev.asgi:application"]
runpy.run_module("daphne", run_name="__main__", alter_sys=True)
"""
"""A web process that does not wait before it loads the rest."""
LOADED: Final = "all modules and templates are loaded"
PAGES: Final = (
    *(
        "/",
        "/attention/",
        "/search/",
        "/usage/",
        "/waits/",
        "/workflows/",
        "/workflows/new/",
        "/agents/",
        "/executors/",
    ),
    *("/sweeps/", "/system/", "/settings/profile/", "/settings/notifications/", "/settings/members/"),
    *("/settings/repositories/", "/admin/", "/admin/executors_app/executor/add/", "/admin/auth/user/"),
    *("/api/v1/tasks/", "/api/v1/hosts/", "/api/v1/schema/", "/no/such/page/", "/metrics"),
)
MAX_PAGES: Final = 90
NOT_FOLLOWED: Final = re.compile(r"/(static|logout)/")
LINK: Final = re.compile(r'href="(/[^"#?]*)')


@pytest.fixture
def web(deployment: Deployment, tmp_path: Path) -> Iterator[Path]:
    """Start a web process from a copy of the code, and yield the copy."""
    copy = tmp_path / "code"
    copy.mkdir()
    for name in CODE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        else:
            shutil.copy2(source, copy / name)
    port = free_port()
    deployment.url = f"http://127.0.0.1:{port}"
    log = (deployment.home / "serve.log").open("ab")
    with log:
        process = PreloadedProcess(
            ("-c", AT_ONCE.format(port=port)), env=deployment.env, cwd=copy, stdout=log, stderr=log
        )
    try:
        eventually(lambda: LOADED in deployment.log(), timeout=120, describe="everything is loaded")
        eventually(lambda: deployment.api("GET", "tasks/") is not None, timeout=60, describe="the web answers")
        yield copy
    finally:
        process.kill()
        process.wait(PATIENCE)


MAKE_STAFF: Final = """
from django.contrib.auth.models import User
user = User.objects.get()
user.is_staff = user.is_superuser = True
user.set_password("a long enough password")
user.save()
print(user.username)
"""


def signed_in(deployment: Deployment) -> urllib.request.OpenerDirector:
    """Return a browser in which a member of staff is signed in."""
    username = deployment.run_script(MAKE_STAFF)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(f"{deployment.url}/login/", timeout=PATIENCE) as page:
        token = page.read().decode().partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form = {"csrfmiddlewaretoken": token, "username": username, "password": "a long enough password"}
    body = urllib.parse.urlencode(form).encode()
    with browser.open(f"{deployment.url}/login/", body, timeout=PATIENCE) as answer:
        assert "/login/" not in answer.url
    return browser


def statuses_of_all_pages(browser: urllib.request.OpenerDirector, url: str) -> dict[str, int]:
    """Follow every link from `PAGES` on, and return the status of each page."""
    found: dict[str, int] = {}
    waiting = list(PAGES)
    while waiting and len(found) < MAX_PAGES:
        path = waiting.pop(0)
        if path in found or NOT_FOLLOWED.match(path):
            continue
        found[path], text = read(browser, f"{url}{path}")
        waiting += LINK.findall(text)
    return found


def read(browser: urllib.request.OpenerDirector, address: str) -> tuple[int, str]:
    """Return the status and text of a page, also of an error page."""
    try:
        with browser.open(address, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")


def test_every_page_is_served_after_the_code_is_gone(deployment: Deployment, web: Path) -> None:
    session = deployment.start_session("Nothing", desired_state="stopped")
    browser = signed_in(deployment)
    # The fork server of limited processes begins when it is first needed: here, to draw the first workflow.
    assert read(browser, f"{deployment.url}/workflows/new/")[0] == 200
    web.rename(web.with_name("gone"))
    statuses = statuses_of_all_pages(browser, deployment.url)
    assert f"/{session.path}/" in statuses
    assert {path: status for path, status in statuses.items() if status >= 500} == {}
    assert "ImportError" not in deployment.log()
    assert "TemplateDoesNotExist" not in deployment.log()
