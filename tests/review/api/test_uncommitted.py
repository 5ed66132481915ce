"""Unstaging and discarding over the API, with a real agentctl."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.api.world import client_of
from tests.workspace.served import Served

pytestmark = pytest.mark.any_database


def test_only_the_version_that_was_shown_is_discarded(served: Served, api: APIClient) -> None:
    readme = served.workspace / "README"
    readme.write_text("seen\n")
    about = {"path": "README", "action": "discard"}
    shown = api.get(served.url("review/loss/"), about).json()
    assert shown["sentence"] == "These changes are lost. The file becomes that of the last commit again."
    assert "-hello\n+seen" in shown["lines"]
    readme.write_text("written meanwhile\n")
    body = {**about, "version": shown["version"]}
    refused = api.post(served.url("review/undo/"), body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "file_changed")
    assert readme.read_text() == "written meanwhile\n"

    body["version"] = api.get(served.url("review/loss/"), about).json()["version"]
    assert api.post(served.url("review/undo/"), body, format="json").status_code == 200
    assert readme.read_text() == "hello\n"
    assert api.post(served.url("review/undo/"), body, format="json").json()["code"] == "conflict"

    stranger = client_of(served.world.stranger)
    assert stranger.get(served.url("review/loss/"), about).status_code == 404
    assert stranger.post(served.url("review/undo/"), body, format="json").status_code == 404
