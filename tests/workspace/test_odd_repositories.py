"""Repositories with settings and files that git stumbles over: everything else is shown, stored and restored."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from executors_app.agentctl.workspace import agent_preparation
from executors_app.agentctl.workspace.agent_preparation import prepare_workspace
from executors_app.agentctl.workspace.changes import create_commit, git_diff, git_log, git_status
from executors_app.agentctl.workspace.preparation import WorkspacePreparation
from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import worktrees
from executors_app.machine.git.private_git_directory import PrivateGitDirectory
from executors_app.machine.git.seeds import Seed, write_seed
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.executors.repositories import commit, make_repository, run_git
from tests.workspace.trees import REF, SESSION, git_of, snapshot_tree

ODD_SETTINGS = {
    "diff.orderFile": "/nope",
    "core.bare": "true",
    "core.worktree": "/nope",
    "status.showUntrackedFiles": "no",
    "status.relativePaths": "maybe",
    "status.renames": "perhaps",
    "diff.noprefix": "true",
    "diff.external": "/nope",
    "diff.ignoreSubmodules": "all",
    "diff.renames": "nonsense",
    "log.date": "nonsense",
    "log.showSignature": "true",
    "format.pretty": "nonsense",
    "i18n.logOutputEncoding": "utf-16",
    "core.fsmonitor": "/nope",
    "core.untrackedCache": "sometimes",
    "core.abbrev": "never",
    "core.pager": "/nope",
    "core.commentChar": "too long",
    "index.version": "99",
    "index.threads": "many",
    "color.ui": "always",
    "feature.manyFiles": "perhaps",
    "submodule.recurse": "true",
}


@pytest.mark.parametrize("key", ODD_SETTINGS)
def test_odd_setting_hides_and_breaks_nothing(repository: Path, worktree: Worktree, key: str) -> None:
    run_git(repository, "config", "extensions.worktreeConfig", "true")
    run_git(repository, "config", key, ODD_SETTINGS[key])
    (worktree.path / "README").write_text("changed\n")
    (worktree.path / "new").write_text("new\n")
    git = git_of(worktree.path)
    status = git_status(git)
    assert [entry["path"] for entry in status["unstaged"]] == ["README"]
    assert status["untracked"] == ["new"]
    assert "+++ b/README" in git_diff(git)["unstaged"]
    assert git_log(git, 5, 0)["commits"][0]["subject"] == "Write README"
    taken = snapshot_tree(worktree.path)
    assert taken.dirty
    assert taken.left_out == []
    run_git(repository, "config", "--unset", key)
    assert run_git(repository, "ls-tree", "--name-only", REF).split() == ["README", "new"]


def test_unreadable_configuration_is_reported_and_the_snapshot_is_taken(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "new").write_text("new\n")
    config = repository / ".git" / "config"
    before = config.read_text()
    config.write_text(before + "[broken\n")
    git = git_of(worktree.path)
    assert git_status(git)["untracked"] == ["new"]
    assert "configuration of the repository" in git.private.settings_problem
    snapshot_tree(worktree.path)
    config.write_text(before)
    assert "new" in run_git(repository, "ls-tree", "--name-only", REF)


def test_line_ends_are_still_converted_as_the_repository_says(repository: Path, worktree: Worktree) -> None:
    run_git(repository, "config", "core.autocrlf", "input")
    run_git(repository, "config", "core.safecrlf", "true")
    (worktree.path / "README").write_bytes(b"one\r\nTWO\r\n")
    assert snapshot_tree(worktree.path).left_out == []
    assert run_git(repository, "cat-file", "blob", f"{REF}:README") == "one\nTWO"


def test_user_settings_say_what_is_ignored(
    repository: Path, worktree: Worktree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ignored").write_text("*.log\n")
    (tmp_path / ".gitconfig").write_text(f"[core]\n\texcludesFile = {tmp_path / 'ignored'}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    (worktree.path / "x.log").write_text("x\n")
    assert git_status(git_of(worktree.path))["clean"]


def _break_filter(repository: Path, name: str = "vault") -> None:
    run_git(repository, "config", f"filter.{name}.clean", "false")
    run_git(repository, "config", f"filter.{name}.smudge", "cat")
    run_git(repository, "config", f"filter.{name}.required", "true")


@pytest.mark.parametrize("count", [1, 30])
def test_files_with_a_failing_filter_are_left_out_alone(repository: Path, worktree: Worktree, count: int) -> None:
    commit(worktree.path, ".gitattributes", "*.enc filter=vault\n")
    for number in range(count):
        commit(worktree.path, f"{number}.enc", "x\n")
    _break_filter(repository)
    for number in range(count):
        (worktree.path / f"{number}.enc").write_text("longer\n")
    (worktree.path / "README").write_text("better\n")
    (worktree.path / "new").write_text("new\n")

    git = git_of(worktree.path)
    assert "README" in [entry["path"] for entry in git_status(git)["unstaged"]]
    assert "+better" in git_diff(git)["unstaged"]
    taken = snapshot_tree(worktree.path)
    assert sorted(taken.left_out) == sorted(f"{number}.enc" for number in range(count))
    assert all("filter vault" in reason or "too many" in reason for reason in taken.left_out_reasons)
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (worktree.path / "README").read_text() == "better\n"
    assert (worktree.path / "new").read_text() == "new\n"


STORING_FILTER = """#!/bin/sh
# As git-lfs does: the content is kept in a directory of the repository, and git stores only a pointer to it.
store=$({where})/content
mkdir -p "$store"
case "$1" in
clean)
    cat > "$store/draft.$$"
    name=$(cksum < "$store/draft.$$" | tr -d " ")
    mv "$store/draft.$$" "$store/$name"
    echo "$name"
    ;;
smudge) cat "$store/$(cat)" ;;
esac
"""


@pytest.mark.parametrize("where", ["git rev-parse --git-common-dir", "git config storing.directory"])
def test_content_that_a_filter_keeps_in_the_repository_returns(
    repository: Path, worktree: Worktree, tmp_path: Path, where: str
) -> None:
    program = tmp_path / "filter"
    program.write_text(STORING_FILTER.format(where=where))
    program.chmod(0o755)
    settings = {"clean": f"{program} clean", "smudge": f"{program} smudge", "required": "true"}
    for key, value in settings.items():
        run_git(repository, "config", f"filter.storing.{key}", value)
    run_git(repository, "config", "storing.directory", str(tmp_path / "elsewhere"))
    (worktree.path / ".gitattributes").write_text("*.bin filter=storing\n")
    (worktree.path / "first.bin").write_text("precious\n")

    git = git_of(worktree.path)
    assert take_snapshot(git, SESSION, tmp_path / "copy", "turn_end").left_out == []
    git.close()
    shutil.rmtree(worktree.path)
    worktrees.make_worktree(repository, "", worktree, existed=True)
    assert (worktree.path / "first.bin").read_text() == "precious\n"


@pytest.mark.parametrize(
    ("setting", "attributes", "content", "is_converted"),
    [
        ("true", "", b"one\ntwo\n", True),
        ("true", "", b"one\r\ntwo\r\n", False),
        ("input", "", b"one\r\n", True),
        ("false", "* text eol=crlf\n", b"one\n", True),
        ("false", "* text=auto\n", b"mixed\nends\r\n", True),
        ("false", "", b"mixed\nends\r\n", False),
    ],
)
@pytest.mark.parametrize("prune", [True, False])
def test_line_ends_that_do_not_return_are_named(
    repository: Path,
    tmp_path: Path,
    setting: str,
    attributes: str,
    content: bytes,
    is_converted: bool,
    prune: bool,
) -> None:
    run_git(repository, "config", "core.autocrlf", setting)
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text(attributes)
    worktree = _session(repository, tmp_path)
    (worktree.path / "new").write_bytes(content)
    snapshot_tree(worktree.path)
    shutil.rmtree(worktree.path)
    if prune:
        run_git(repository, "worktree", "prune")
    note = worktrees.make_worktree(repository, "", worktree, existed=True)
    assert ((worktree.path / "new").read_bytes() != content) == is_converted
    assert ("other line ends" in note) == is_converted


def test_empty_command_of_a_filter_stays_empty(repository: Path, worktree: Worktree) -> None:
    run_git(repository, "config", "filter.none.clean", "")
    (worktree.path / ".gitattributes").write_text("*.txt filter=none\n")
    (worktree.path / "new.txt").write_text("new\n")
    assert snapshot_tree(worktree.path).left_out == []
    assert run_git(repository, "cat-file", "blob", f"{REF}:new.txt") == "new"


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_changes_that_a_flag_hides_are_stored(repository: Path, worktree: Worktree, flag: str) -> None:
    run_git(worktree.path, "update-index", flag, "README")
    (worktree.path / "README").write_text("hidden\n")
    assert run_git(worktree.path, "status", "--porcelain") == ""
    assert snapshot_tree(worktree.path).dirty
    assert run_git(repository, "cat-file", "blob", f"{REF}:README") == "hidden"
    assert run_git(worktree.path, "ls-files", "-v")[0] != "H"


def test_files_outside_of_a_sparse_checkout_stay_in_the_snapshot(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "sub").mkdir()
    commit(worktree.path, "sub/inside", "x\n")
    run_git(worktree.path, "sparse-checkout", "set", "--no-cone", "/sub/")
    assert not (worktree.path / "README").exists()
    (worktree.path / "sub" / "inside").write_text("changed\n")
    snapshot_tree(worktree.path)
    assert run_git(repository, "cat-file", "blob", f"{REF}:README") == "hello"
    assert run_git(repository, "cat-file", "blob", f"{REF}:sub/inside") == "changed"


def test_intent_to_add_pipes_and_dangling_links_harm_nothing(repository: Path, worktree: Worktree) -> None:
    (worktree.path / "later").write_text("later\n")
    run_git(worktree.path, "add", "--intent-to-add", "later")
    os.mkfifo(worktree.path / "pipe")
    (worktree.path / "link").symlink_to("nowhere")
    snapshot_tree(worktree.path)
    assert run_git(repository, "ls-tree", "--name-only", REF).split() == ["README", "later", "link"]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "library", "f.txt", "lib\n")


def _add_submodule(repository: Path, library: Path) -> None:
    run_git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "sub")
    run_git(repository, "commit", "--quiet", "-m", "with sub")


def _session(repository: Path, tmp_path: Path) -> Worktree:
    made = worktrees.session_worktree(tmp_path / "data", SESSION)
    worktrees.make_worktree(repository, "", made, existed=False)
    return made


def test_submodule_is_filled_from_the_repositorys_own_copy(repository: Path, library: Path, tmp_path: Path) -> None:
    _add_submodule(repository, library)
    made = _session(repository, tmp_path)
    library.rename(tmp_path / "gone")
    assert prepare_workspace(git_of(made.path), "") == []
    assert (made.path / "sub" / "f.txt").read_text() == "lib\n"
    assert run_git(made.path, "status", "--porcelain") == ""


def test_submodule_without_a_copy_stays_empty_and_is_named(repository: Path, library: Path, tmp_path: Path) -> None:
    _add_submodule(repository, library)
    shutil.rmtree(repository / ".git" / "modules")
    made = _session(repository, tmp_path)
    [notice] = prepare_workspace(git_of(made.path), "")
    assert notice.code == "submodules_empty"
    assert "sub" in notice.text
    assert list((made.path / "sub").iterdir()) == []


@pytest.mark.parametrize("name", ["../../victim", "x/../../../victim"])
def test_name_of_a_submodule_leads_to_no_other_repository(
    repository: Path, library: Path, tmp_path: Path, name: str
) -> None:
    _add_submodule(repository, library)
    text = (repository / ".gitmodules").read_text().replace('"sub"', f'"{name}"')
    commit(repository, ".gitmodules", text)
    library.rename(repository / "victim")
    made = _session(repository, tmp_path)
    assert [notice.code for notice in prepare_workspace(git_of(made.path), "")] == ["submodules_empty"]


@pytest.mark.parametrize("key", ["core.bare", "core.worktree"])
def test_agents_git_works_despite_shared_settings_of_the_main_worktree(
    repository: Path, tmp_path: Path, key: str
) -> None:
    run_git(repository, "config", "extensions.worktreeConfig", "true")
    run_git(repository, "config", key, "true" if key == "core.bare" else "/nope")
    made = worktrees.session_worktree(tmp_path / "data", SESSION)
    worktrees.make_worktree(repository, "", made, existed=False)
    assert prepare_workspace(git_of(made.path), "") == []
    assert run_git(made.path, "status", "--porcelain") == ""


@pytest.mark.parametrize(("behind", "words"), [(1, "1 commit behind"), (10, "10 commits behind")])
def test_base_behind_its_upstream_is_counted(repository: Path, worktree: Worktree, behind: int, words: str) -> None:
    base = run_git(repository, "rev-parse", "HEAD")
    for number in range(behind):
        commit(repository, f"n{number}", "x\n")
    run_git(repository, "update-ref", "refs/remotes/upstream/trunk", "HEAD")
    run_git(repository, "reset", "--quiet", "--hard", base)
    run_git(repository, "config", "remote.upstream.url", "https://example.org/x.git")
    run_git(repository, "config", "remote.upstream.fetch", "+refs/heads/*:refs/remotes/upstream/*")
    run_git(repository, "config", "branch.main.remote", "upstream")
    run_git(repository, "config", "branch.main.merge", "refs/heads/trunk")
    [notice] = prepare_workspace(git_of(worktree.path), "main")
    assert notice.code == "base_behind"
    assert words in notice.text
    assert "upstream/trunk" in notice.text
    assert prepare_workspace(git_of(worktree.path), "") == []


@pytest.mark.parametrize("kind", ["plain", "bare", "linked"])
@pytest.mark.parametrize("base", ["", "main", "refs/heads/main"])
def test_base_that_is_not_named_or_named_in_full_is_compared_too(
    repository: Path, tmp_path: Path, kind: str, base: str
) -> None:
    commit(repository, "new", "x\n")
    run_git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    run_git(repository, "reset", "--quiet", "--hard", "HEAD~1")
    if kind == "bare":
        run_git(repository, "config", "core.bare", "true")
        repository = repository / ".git"
    elif kind == "linked":
        run_git(repository, "checkout", "--quiet", "--detach")
        run_git(repository, "worktree", "add", "--quiet", str(tmp_path / "linked"), "main")
        repository = tmp_path / "linked"
    made = worktrees.session_worktree(tmp_path / "data", SESSION)
    seed_file = tmp_path / "seed"
    write_seed(Seed(made.branch, repository=str(repository), base=base), seed_file)
    preparation = WorkspacePreparation(seed_file, tmp_path / "root", SESSION, made.path)
    made.path.parent.mkdir(parents=True)
    worktrees.make_worktree(repository, base, made, existed=False)
    workspace = Workspace(made.path, {EXECUTION_MARKER: "execution-1"}, preparation)
    assert [notice.code for notice in workspace.prepare_for_agent()] == ["base_behind"]


def test_rebuilt_worktree_and_its_base_are_reported_once(repository: Path, worktree: Worktree, tmp_path: Path) -> None:
    seed_file = tmp_path / "seed"
    write_seed(Seed(worktree.branch, repository=str(repository), base="main", existed=True), seed_file)
    preparation = WorkspacePreparation(seed_file, tmp_path / "root", SESSION, worktree.path)
    commit(worktree.path, "work", "x\n")
    snapshot_tree(worktree.path)
    shutil.rmtree(worktree.path)
    run_git(repository, "worktree", "prune")
    run_git(repository, "branch", "-D", worktree.branch)
    preparation.recreate()
    workspace = Workspace(worktree.path, {EXECUTION_MARKER: "execution-1"}, preparation)
    [notice] = workspace.prepare_for_agent()
    assert notice.code == "workspace_rebuilt"
    assert worktree.branch in notice.text
    assert ".gitignore" in notice.text
    assert workspace.rebuild_note == notice.text.removeprefix("The worktree was rebuilt. ")
    assert workspace.prepare_for_agent() == []
    assert workspace.rebuild_note == ""
    assert workspace.head() == {
        "branch": worktree.branch,
        "head": run_git(worktree.path, "rev-parse", "HEAD"),
    }


def test_settings_are_read_again_when_they_change(repository: Path, worktree: Worktree) -> None:
    git = git_of(worktree.path)
    (worktree.path / "README").chmod(0o755)
    assert not git_status(git)["clean"]
    run_git(repository, "config", "core.fileMode", "false")
    assert git_status(git)["clean"]


def test_private_directory_is_removed(worktree: Worktree) -> None:
    private = PrivateGitDirectory(worktree.path, list)
    variables = private.environment()
    assert variables is not None
    path = Path(variables["GIT_DIR"])
    assert (path / "HEAD").read_text().strip() == f"ref: refs/heads/{worktree.branch}"
    private.close()
    assert not path.exists()


def _git(root: Path) -> WorkspaceGit:
    run_git(root, "config", "user.name", "Agent")
    run_git(root, "config", "user.email", "agent@example.org")
    return git_of(root)


def test_staged_deletion_can_be_committed_alone(worktree: Worktree) -> None:
    commit(worktree.path, "other", "x\n")
    run_git(worktree.path, "rm", "--quiet", "README")
    (worktree.path / "other").write_text("changed\n")
    create_commit(_git(worktree.path), "Delete it", None, ["README"])
    assert run_git(worktree.path, "show", "--format=", "--name-status", "HEAD") == "D\tREADME"
    assert run_git(worktree.path, "status", "--porcelain") == "M other"


def test_staged_deletion_blocks_no_other_file(worktree: Worktree) -> None:
    commit(worktree.path, "other", "x\n")
    run_git(worktree.path, "rm", "--quiet", "README")
    (worktree.path / "other").write_text("changed\n")
    create_commit(_git(worktree.path), "Both", None, ["README", "other"])
    assert run_git(worktree.path, "show", "--format=", "--name-status", "HEAD") == "D\tREADME\nM\tother"


@pytest.mark.parametrize("names", [["inner"], ["inner", "it's", "é", ":(top)x", "deep/inner"]])
def test_repository_without_a_commit_blocks_no_other_file(worktree: Worktree, names: list[str]) -> None:
    for name in names:
        (worktree.path / name).mkdir(parents=True)
        run_git(worktree.path / name, "init", "--quiet")
        (worktree.path / name / "file").write_text("inside\n")
    (worktree.path / "new").write_text("new\n")
    git = git_of(worktree.path)
    create_commit(git, "Everything else", None, [])
    assert run_git(worktree.path, "ls-tree", "-r", "--name-only", "HEAD").split() == ["README", "new"]
    assert sorted(git_status(git)["untracked"]) == sorted(f"{name}/" for name in names)


@pytest.mark.parametrize("staged", [True, False])
def test_rename_is_committed_as_a_rename(worktree: Worktree, staged: bool) -> None:
    if staged:
        run_git(worktree.path, "mv", "README", "READ ME")
    else:
        (worktree.path / "README").rename(worktree.path / "READ ME")
        run_git(worktree.path, "add", "--all")
    create_commit(_git(worktree.path), "Rename it", None, ["READ ME"])
    assert run_git(worktree.path, "show", "--format=", "--name-status", "-M", "HEAD") == "R100\tREADME\tREAD ME"
    assert run_git(worktree.path, "status", "--porcelain") == ""


def test_other_staged_files_stay_staged(worktree: Worktree) -> None:
    (worktree.path / "staged").write_text("staged\n")
    run_git(worktree.path, "add", "staged")
    (worktree.path / "wanted").write_text("wanted\n")
    create_commit(_git(worktree.path), "One", None, ["wanted"])
    assert run_git(worktree.path, "show", "--format=", "--name-only", "HEAD") == "wanted"
    assert run_git(worktree.path, "status", "--porcelain") == "A  staged"


def test_first_commit_of_one_file(tmp_path: Path) -> None:
    root = tmp_path / "empty"
    root.mkdir()
    run_git(root, "init", "--quiet")
    for name in ("one", "two"):
        (root / name).write_text("x\n")
    create_commit(_git(root), "One", None, ["one"])
    assert run_git(root, "ls-tree", "--name-only", "HEAD") == "one"


@pytest.mark.parametrize(
    ("paths", "groups"),
    [
        ([b"README", b"readme", b"other"], [[b"README", b"readme"]]),
        ([b"src/a", b"Src/b"], [[b"Src", b"src"]]),
        ([b"src/A", b"src/a", b"src/\xff"], [[b"src/A", b"src/a"]]),
        (["Stra\u00dfe".encode(), b"STRASSE"], [[b"STRASSE", "Stra\u00dfe".encode()]]),
        ([b"a", b"b/a", b"b/c"], []),
    ],
)
def test_paths_that_differ_only_in_case_collide(paths: list[bytes], groups: list[list[bytes]]) -> None:
    assert agent_preparation.find_case_collisions(paths) == groups


def test_colliding_paths_are_named_where_the_file_system_ignores_case(
    repository: Path, worktree: Worktree, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(worktree.path, "readme", "lower\n")
    assert prepare_workspace(git_of(worktree.path), "") == [], "this file system distinguishes them"
    assert not agent_preparation.ignores_case(worktree.path)
    monkeypatch.setattr(agent_preparation, "ignores_case", lambda root: True)
    [notice] = prepare_workspace(git_of(worktree.path), "")
    assert notice.code == "case_collisions"
    assert "README and readme" in notice.text
