"""The schema is complete, up to date, and can be browsed under the content security policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.staticfiles import finders
from django.core.management import call_command
from rest_framework.test import APIClient

from sessions_app.api import urls
from sessions_app.api.views import SchemaView
from tests.services import ROOT

pytestmark = pytest.mark.any_database


@pytest.fixture(scope="module")
def committed() -> Any:
    return yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())


def test_committed_schema_is_up_to_date_without_warnings(tmp_path: Path, committed: Any) -> None:
    made = tmp_path / "openapi.yaml"
    call_command("spectacular", file=str(made), validate=True, fail_on_warn=True)
    assert yaml.safe_load(made.read_text()) == committed


def test_every_route_is_in_the_schema(committed: Any) -> None:
    routes = (str(pattern.pattern) for pattern in urls.urlpatterns if str(pattern.pattern))
    there = {"/api/v1/" + re.sub(r"<\w+:(\w+)>", r"{\1}", route) for route in routes}
    assert there - set(committed["paths"]) == {"/api/v1/schema/", "/api/v1/docs/"}


def test_every_operation_documents_its_error_format(committed: Any) -> None:
    for path, operations in committed["paths"].items():
        for method, operation in operations.items():
            refused = operation["responses"]["401"]["content"]["application/json"]["schema"]
            assert refused == {"$ref": "#/components/schemas/Problem"}, (method, path)


@pytest.mark.parametrize(
    ("accepted", "media_type", "name"),
    [
        ("*/*", "application/vnd.oai.openapi; charset=utf-8", "Kandev.yaml"),
        ("application/json", "application/json", "Kandev.json"),
    ],
)
def test_schema_is_served(api: APIClient, committed: Any, accepted: str, media_type: str, name: str) -> None:
    served = api.get("/api/v1/schema/", headers={"accept": accepted})
    assert served.status_code == 200
    assert served["Content-Type"] == media_type
    assert served["Content-Disposition"] == f'inline; filename="{name}"'
    load = json.loads if name.endswith(".json") else yaml.safe_load
    assert load(served.content)["paths"].keys() == committed["paths"].keys()


def test_schema_is_generated_once_for_all_requests(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = api.get("/api/v1/schema/?format=json")
    monkeypatch.delattr(SchemaView.generator_class, "get_schema")
    assert api.get("/api/v1/schema/?format=json").content == first.content


def test_page_has_no_inline_code_and_no_external_sources(api: APIClient) -> None:
    page = api.get("/api/v1/docs/")
    text = page.content.decode()
    assert "default-src 'self'" in page["Content-Security-Policy"].split("; ")
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", text)
    sources = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(sources) == 5
    for source in sources:
        assert source.startswith("/")
        assert not source.startswith("//")
        if source.startswith("/static/"):
            assert finders.find(source.removeprefix("/static/")), source


def test_page_script_names_the_schema(api: APIClient) -> None:
    script = api.get("/api/v1/docs/?script=")
    assert script["Content-Type"].startswith("application/javascript")
    assert "/api/v1/schema/" in script.content.decode().replace("\\u002D", "-").replace("\\/", "/")
