"""What ended executions leave behind (state directories, homes, workspaces, archives, refs) and when it may go."""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from executors_app.machine.git import recovery_snapshots, worktree_trash
from executors_app.machine.launch import is_lock_free
from executors_app.machine.process import execution_processes
from executors_app.repositories import bare
from executors_app.repositories.archive import Archive
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import execution_storage, state_directory_of
from executors_app.wire import journal_files

_DATA_FOLDERS: Final = ("agent_homes", "agent-tests", "archives", "workspaces", "worktrees")
REMOVING_PREFIX: Final = ".going-"
"""Prefix of a directory's name while it is being removed."""

_JOURNAL_ENDING: Final = "-journal"
_RECOVERY: Final = "refs/kandev/recovery/"
_REF_FOLDERS: Final = ("refs/kandev/kept/", "refs/kandev/arrived/")
Ref = tuple[str, str]
"""Name, and the commit that it names."""


def list_state_directories() -> Iterator[str]:
    """Yield the execution ids of the state directories on this disk."""
    folder = state_directory_of(str(uuid.UUID(int=0))).path.parent
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if _is_id(path.name) and path.is_dir() and not path.is_symlink():
            yield path.name


def find_living_executions() -> frozenset[str]:
    """Return the executions that have any process on this machine; reads the process table once."""
    return frozenset(execution_processes.find_all_processes())


def is_idle(execution_id: str, living_ones: frozenset[str]) -> bool:
    """Whether nothing of an execution runs here: no marked process, and its lock is free."""
    if execution_id in living_ones:
        return False
    lock = state_directory_of(execution_id).lock_file
    try:
        return is_lock_free(lock)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def is_journal_read(execution_id: str, epoch: str, seq: int) -> bool:
    """Whether the cursor is past every line of the journal; False if the journal cannot be read."""
    journal = journal_files.journal_directory(state_directory_of(execution_id).path)
    if not journal.is_dir():
        return True
    try:
        if journal_files.read_epoch(journal) not in (epoch, None):
            return False
        return next(journal_files.read_lines(journal, seq, epoch), None) is None
    except (OSError, ValueError):
        return False


def remove_state(execution_id: str) -> bool:
    """Remove the state directory of a proven dead execution; return whether there was one. Raises OSError."""
    return _remove(state_directory_of(execution_id).path)


def set_journal_aside(execution_id: str) -> Path | None:
    """Rename the journal of a dead execution for ``remove_set_aside``; None if there is none. Raises OSError.

    What the session needs if it runs again stays: token, conversations, and the prompts that were accepted.
    """
    directory = state_directory_of(execution_id)
    journal = journal_files.journal_directory(directory.path)
    if directory.path.is_symlink() or not _is_directory(journal):
        return None
    # Beside the state directory: a killed run's rest is found there, and no journal is found half.
    going = directory.path.with_name(f"{REMOVING_PREFIX}{execution_id}{_JOURNAL_ENDING}")
    journal.rename(going)
    return going


def has_journal(execution_id: str, epoch: str) -> bool:
    """Whether the execution's journal on this disk is the one of an epoch; not of an older one, or of none."""
    journal = journal_files.journal_directory(state_directory_of(execution_id).path)
    return _is_directory(journal) and journal_files.read_epoch(journal) == epoch


def journals_set_aside() -> dict[str, str]:
    """Return the epochs of journals that ``set_journal_aside`` has renamed and a killed run has left, by execution."""
    folder = state_directory_of(str(uuid.UUID(int=0))).path.parent
    found = {}
    for going in folder.glob(f"{REMOVING_PREFIX}*{_JOURNAL_ENDING}"):
        execution_id = going.name.removeprefix(REMOVING_PREFIX).removesuffix(_JOURNAL_ENDING)
        epoch = journal_files.read_epoch(going)
        if _is_id(execution_id) and epoch is not None:
            found[execution_id] = epoch
    return found


def remove_set_aside(going: Path) -> None:
    """Delete what ``set_journal_aside`` has renamed. Raises OSError."""
    _remove_tree(going)


def remove_home(session_id: str) -> bool:
    """Remove the home directory of a deleted session's containers; return whether there was one. Raises OSError."""
    return _remove(execution_storage().root / "agent_homes" / session_id)


def has_home(session_id: str) -> bool:
    """Whether the session has a home directory for containers."""
    return (execution_storage().root / "agent_homes" / session_id).is_dir()


def has_worktree(session_id: str) -> bool:
    """Whether a worktree of the session is on this machine, also in the trash."""
    path = execution_storage().worktree_of(session_id, "", "").path
    return _is_directory(path) or _is_directory(worktree_trash.trash_of(path))


def list_worktrees() -> Iterator[Path]:
    """Yield the directories of worktrees on this machine whose names are session ids, in random order.

    Otherwise those that must stay would use up the time of every run.
    """
    yield from _list_sessions("worktrees")


def list_trash() -> Iterator[Path]:
    """Yield where the worktrees in the trash were, in random order."""
    folder = execution_storage().root / "worktrees"
    return (folder / path.name for path in _list_sessions("trash"))


def _list_sessions(kind: str) -> Iterator[Path]:
    folder = execution_storage().root / kind
    if not folder.is_dir():
        return
    found = [entry.name for entry in os.scandir(folder) if _is_id(entry.name)]
    random.shuffle(found)
    for name in found:
        yield folder / name


def finish_trash(seconds: float) -> list[Path]:
    """Delete what was taken out of the trash, for at most that time; return what is not all deleted.

    The rest follows with the next call: agents decide how many files there are. In random order, and one that cannot
    be deleted does not keep the others.
    """
    until = time.monotonic() + seconds
    found = list((execution_storage().root / "trash").glob(f"{REMOVING_PREFIX}*"))
    random.shuffle(found)
    return [going for going in found if time.monotonic() > until or not _remove_until(going, until)]


def _remove_until(going: Path, until: float) -> bool:
    """Remove a tree, following no link and crossing no mount; return False if it was not finished in time."""
    remove, open_up = ("rm", "-rf", "--one-file-system"), ("chmod", "-R", "u+rwX")
    for program in (remove, open_up, remove):
        try:
            command = [*program, "--", str(going)]
            subprocess.run(command, capture_output=True, check=False, timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        if not os.path.lexists(going):
            return True
    return False


def take_out_of_trash(worktree: Path, record: Path) -> None:
    """Mark a worktree in the trash for ``finish_trash``, and delete git's record of it. Raises OSError.

    The caller holds the worktree's lock, so that nobody rebuilds it from the record meanwhile.
    """
    trash = worktree_trash.trash_of(worktree)
    trash.rename(trash.with_name(f"{REMOVING_PREFIX}{trash.name}"))
    # Unlocked first: of a record that is half deleted, git itself removes the rest.
    worktree_trash.unlock(record)
    _remove_tree(record)


def remove_worktree(session_id: str) -> bool:
    """Remove the worktree of a deleted session on this machine; return whether there was one. Raises OSError."""
    return _remove(execution_storage().worktree_of(session_id, "", "").path)


def remove_directory(directory: Path) -> bool:
    """Remove a directory that is ours; return whether there was one. Raises OSError."""
    return _remove(directory)


def has_workspace(session_id: str) -> bool:
    """Whether a workspace of the session's local containers is on this disk."""
    return _is_directory(workspace_directory(session_id))


def remove_workspace(session_id: str) -> bool:
    """Remove the workspace of a deleted session; return whether there was one. Raises OSError."""
    return _remove(workspace_directory(session_id))


def workspace_directory(session_id: str) -> Path:
    """Return the directory of the session's workspace for local containers."""
    return execution_storage().root / "workspaces" / session_id


def finish_removals() -> int:
    """Delete what an interrupted run has renamed but not deleted; returns how many. Raises OSError."""
    root = execution_storage().root
    folders = (state_directory_of(str(uuid.UUID(int=0))).path.parent, *(root / name for name in _DATA_FOLDERS))
    found = [path for folder in folders if folder.is_dir() for path in folder.glob(f"{REMOVING_PREFIX}*")]
    for path in found:
        _remove_tree(path)
    return len(found)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> bool:
    if not _is_directory(path):
        return False
    # Renamed first: a half-removed directory is not taken for a whole one, and ``finish_removals`` finds the rest.
    going = path.with_name(f"{REMOVING_PREFIX}{path.name}")
    path.rename(going)
    _remove_tree(going)
    return True


def _remove_tree(going: Path) -> None:
    """Remove a tree of any depth, including parts that an agent made read-only; follows no link."""
    if _run_rm(going):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(going)], capture_output=True, check=False)
        if failure := _run_rm(going):
            raise OSError(f"{going} cannot be removed: {failure}")


def _run_rm(path: Path) -> str:
    """Remove with rm, because Python's rmtree fails at a thousand levels; returns the error, if any."""
    done = subprocess.run(["rm", "-rf", "--", str(path)], capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        return done.stderr[:500]
    return ""


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def session_refs(repository: Path, session_id: str) -> list[Ref]:
    """Return all refs of a session in the team's repository; raises RepositoryUnusable, ValueError."""
    wanted = (
        recovery_snapshots.session_recovery_ref(session_id),
        recovery_snapshots.session_turns_ref(session_id),
        *(f"{folder}{session_id}/" for folder in _REF_FOLDERS),
    )
    return list(TeamRepository.open(repository).refs(*wanted).items())


def sessions_with_snapshots(repository: Path) -> list[str]:
    """Return the ids of the sessions that have a snapshot in the repository; raises RepositoryUnusable."""
    return [name.removeprefix(_RECOVERY) for name in TeamRepository.open(repository).refs(_RECOVERY)]


def find_redundant_snapshot(repository: Path, session_id: str, branch: str) -> Ref | None:
    """Return the session's snapshot if its branch contains every file unchanged, else None.

    Work inside submodules is in no branch of this repository. Raises RepositoryUnusable.
    """
    team = TeamRepository.open(repository)
    ref = recovery_snapshots.session_recovery_ref(session_id)
    kept = recovery_snapshots.find_recovery(team.git.text, ref)
    if kept is None or kept.submodules or not bare.OBJECT_ID.fullmatch(kept.head) or not branch:
        return None
    tip = team.commit_of(f"refs/heads/{branch}")
    if tip is None or not bare.is_ancestor(team.git, kept.head, tip):
        return None
    trees = {bare.resolve_tree(team.git, commit) for commit in (kept.commit, kept.index, kept.head)}
    if len(trees) == 1:
        return (ref, kept.commit)
    return None


def find_kept_turns(repository: Path, session_id: str) -> Ref | None:
    """Return the ref that keeps the snapshots of a session's past turns; raises RepositoryUnusable."""
    ref = recovery_snapshots.session_turns_ref(session_id)
    commit = TeamRepository.open(repository).refs(ref).get(ref)
    if commit is None:
        return None
    return (ref, commit)


def keep_newest_snapshot(repository: Path, session_id: str) -> str:
    """Give the session's newest snapshot a ref that no later one replaces, and return it; empty if there is none.

    May be repeated. Raises RepositoryUnusable, ValueError.
    """
    team = TeamRepository.open(repository)
    found = recovery_snapshots.find_recovery(team.git.text, recovery_snapshots.session_recovery_ref(session_id))
    if found is None or found.session_id != session_id:
        return ""
    ref = f"{recovery_snapshots.KEPT_PREFIX}{session_id}/{found.commit[:16]}"
    if team.refs(ref).get(ref) is None:
        team.update_refs({ref: ("", found.commit)})
    return ref


def drop_refs(repository: Path, session_id: str, refs: Sequence[Ref]) -> bool:
    """Remove refs that still name the given commits; raises GitFailed for one that has moved.

    They are removed from the session's archive, too: refs that remain there would be published again.
    """
    team = TeamRepository.open(repository)
    archive = Archive.of(execution_storage().root, session_id)
    archived = archive.tips()
    both = {name: commit for name, commit in refs if archived.get(name) == commit}
    # The archive first: after a crash in between, the team's refs are still there, so a repetition finds them.
    if both:
        archive.drop(both)
    team.update_refs({name: (commit, "") for name, commit in refs})
    return bool(refs)


def has_archive(session_id: str) -> bool:
    """Whether the session's archive is on this machine."""
    return Archive.of(execution_storage().root, session_id).exists()


def remove_archive(session_id: str) -> bool:
    """Remove the archive of a deleted session; return whether there was one. Raises GitFailed, OSError."""
    archive = Archive.of(execution_storage().root, session_id)
    there = archive.exists()
    archive.remove()
    return there
