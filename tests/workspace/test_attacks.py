"""The attacks on agentctl's workspace, through the control plane's API, get the same clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission
from rest_framework.test import APIClient

from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from tests.agentctl.test_workspace_attacks import ATTACKS, Attack, add_secret_and_links, everything
from tests.api.world import World, client_of, make_world
from tests.executors.repositories import run_git
from tests.workspace.served import REAL, Place, make_repository_in, point_at
from tests.workspace.trees import git_of

PLACES: Final = {
    "/files/content": "files/content/",
    "/git/diff": "git/diff/",
    "/git/log": "git/log/",
    "/git/commit": "git/commit/",
    "/git/hunks": "review/hunks/",
    "/git/part": "review/",
    "/git/part/hunks": "review/hunks/",
    "/git/commit/selected": "review/commit/",
    "/git/loss": "review/loss/",
    "/git/undo": "review/undo/",
}
PARAMETERS: Final = {"context": "lines_around"}
"""agentctl's parameters that the API calls by another name."""
CODES: Final = {"git_failed": "conflict"}
"""agentctl's codes that the API translates."""
API_ATTACKS: Final = [one for one in ATTACKS if "author_name" not in one.body and "before" not in one.query]
"""Over the API the author of a commit is the logged-in user, and only Kandev names snapshots."""
SAVED_WORK_ATTACKS: Final = [
    one for one in API_ATTACKS if one.method == "GET" and "path" in one.query and one.endpoint != "/git/loss"
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield one agentctl for all attacks, as none of them changes anything."""
    made = Place(tmp_path_factory.mktemp("attacked"))
    make_repository_in(made.workspace)
    add_secret_and_links(made.workspace)
    with made.agentctl(REAL):
        yield made


@pytest.fixture
def world(db: None, place: Place) -> World:
    """Return a team that may write in the session's workspace."""
    made = make_world()
    point_at(made, place)
    made.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    return made


@pytest.fixture
def api(world: World) -> APIClient:
    return client_of(world.member)


def ask(api: APIClient, world: World, attack: Attack, **more: str) -> Any:
    url = world.url(PLACES[attack.endpoint])
    match attack.method:
        case "GET":
            query = {PARAMETERS.get(name, name): value for name, value in attack.query.items()}
            if attack.endpoint.startswith("/git/part"):
                commit = query.pop("commit", None)
                query["of"] = "uncommitted" if commit is None else f"commit:{commit}"
            return api.get(url, {**query, **more})
        case "PUT":
            return api.put(url, {"content": "stolen"}, format="json", query_params=attack.query)
    return api.post(url, attack.body, format="json")


def is_clear(answer: Any) -> None:
    body = answer.json()
    assert body.keys() == {"code", "message", "details"}
    assert len(body["message"]) > 10
    assert "classified" not in answer.text


def test_there_are_at_least_forty_attacks() -> None:
    assert len(API_ATTACKS) >= 40


@pytest.mark.parametrize("attack", API_ATTACKS, ids=[attack.name for attack in API_ATTACKS])
def test_attack_gets_a_clear_error_and_changes_nothing(
    api: APIClient, world: World, place: Place, attack: Attack
) -> None:
    before, head = everything(place.workspace), run_git(place.workspace, "rev-parse", "HEAD")

    answer = ask(api, world, attack)

    status, code = attack.expected
    assert (answer.status_code, answer.json()["code"]) == (status, CODES.get(code, code)), answer.text
    is_clear(answer)
    assert everything(place.workspace) == before
    assert run_git(place.workspace, "rev-parse", "HEAD") == head


@pytest.fixture
def kept(world: World, place: Place) -> Path:
    """Save the whole workspace in a repository of the team."""
    root = place.workspace
    take_snapshot(git_of(root), str(world.session.id), root.parent / "copy", "turn_end", SnapshotLimits())
    world.repository.path = str(root)
    world.repository.save()
    world.session.worktree_branch = run_git(root, "branch", "--show-current")
    world.session.save(update_fields=["worktree_branch"])
    return root


@pytest.mark.parametrize("attack", SAVED_WORK_ATTACKS, ids=[attack.name for attack in SAVED_WORK_ATTACKS])
def test_saved_work_reveals_nothing_else(api: APIClient, world: World, kept: Path, attack: Attack) -> None:
    answer = ask(api, world, attack, kept="true")

    if answer.status_code != 200:
        assert (answer.status_code, answer.json()["code"]) in {(404, "not_found"), (400, "validation_error")}
        is_clear(answer)
        return
    body = answer.json()
    assert body["kept"]["commit"]
    if "content" in body:  # a link is shown as its target path, not as the target's content
        assert body["content"] == str((kept / body["path"]).readlink())
    elif "files" in body:  # nothing of that name has changed
        assert [(file["change"], file["hunks"]) for file in body["files"]] == [("", [])]
    else:
        assert (body["staged"], body["unstaged"]) == ("", "")
