"""A git directory of our own for a workspace, in which only allowed settings of the repository apply.

An agent owns the configuration of its repository, and repositories carry settings that Kandev has never seen. For
everything that only reads the index and HEAD (status, diff, log, snapshots), git therefore runs in a directory of ours:
HEAD is copied, refs and objects are the repository's, and its configuration is reduced to an allow-list. A setting that
is not on it can neither hide a change nor make git fail or start a program.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_directory
from executors_app.machine.git.git_directory import InvalidPointer, parse_pointer, read_git_file

_ALLOWED: Final = re.compile(
    # How files are compared with the index, and which are ignored. Not those by which git overlooks a file: with
    # ignorecase it takes two files for one, and with trustctime and checkstat a changed file for an unchanged one.
    r"core\.(?:autocrlf|eol|filemode|symlinks|precomposeunicode|excludesfile|attributesfile|sparsecheckout"
    r"|sparsecheckoutcone|sharedrepository|checkroundtripencoding|protecthfs|protectntfs)"
    # What turns a file into a blob: without its filter, the content would be another one.
    r"|filter\..+\.(?:clean|smudge|process|required)"
    r"|(?:user|author|committer)\.(?:name|email)|i18n\.commitencoding"
    # Which objects may be missing.
    r"|remote\..+\.(?:promisor|partialclonefilter)",
    re.DOTALL,
)
_REQUIRED: Final = re.compile(r"filter\..+\.required", re.DOTALL)
_FILTER_PROGRAM: Final = re.compile(r"filter\..+\.(?:clean|smudge|process)", re.DOTALL)
_FILTER_DIRECTORY: Final = "AGENTCTL_GIT_DIR"
_OURS: Final = (
    "GIT_OBJECT_DIRECTORY",
    "GIT_INDEX_FILE",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_COUNT",
)
_FOR_FILTERS: Final = f'unset {" ".join(_OURS)}; GIT_DIR="${_FILTER_DIRECTORY}"; export GIT_DIR; '
"""Begins the command of a filter, which git gives to a shell.

A filter such as git-lfs stores the content of files in the git directory, where it has settings of its own: with ours
the content would be removed with the directory, and a snapshot would contain nothing but pointers to it.
"""
_FORMAT_KEYS: Final = ("extensions.objectformat", "extensions.partialclone")
"""Settings that git reads only from the repository's own file."""
_MAX_SETTINGS: Final = 400
_MAX_AGE: Final = 5.0
"""Seconds after which the settings are read again even if no known file has changed: one may be included."""
_OWN_NAMES: Final = frozenset(
    {
        *("HEAD", "config", "config.worktree", "index", "objects", "info", "hooks", "logs", "worktrees", "modules"),
        # A worktree may have refs of its own (bisect, rebase), but branches and snapshots are in the shared ones.
        *("refs", "packed-refs"),
        *("gitdir", "commondir", "locked", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG"),
    }
)
"""Entries of a git directory that are not linked: replaced by ours, or never read here."""
_HEAD: Final = re.compile(rb"ref:\s*\S|[0-9a-f]{40}")
_INFO_NAMES: Final = ("exclude", "attributes")
_MAX_LINKS: Final = 200


@dataclass(slots=True)
class _Settings:
    """The allowed settings at one moment."""

    values: Sequence[tuple[str, str]] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    read_at: float = float("-inf")
    signature: object = None
    problem: str = ""
    """Why the repository's own settings could not be read; empty if they were."""


class PrivateGitDirectory:
    """The directory for one workspace.

    ``read_settings`` runs ``git config --list -z`` in the repository itself and returns its fields; it raises an error
    with git's message.
    """

    def __init__(self, root: Path, read_settings: Callable[[], list[bytes]]):
        self._root, self._read_settings = root, read_settings
        self._path: Path | None = None
        self._settings = _Settings()

    @property
    def settings_problem(self) -> str:
        """Why the settings of the repository could not be read the last time; empty if they were."""
        return self._settings.problem

    def environment(self, *, lenient: bool = False) -> dict[str, str] | None:
        """Return the variables with which git uses this directory; None if the repository needs its own.

        ``lenient``: no filter is required, so git goes on without one that fails. Raises OSError.
        """
        own = git_directory.git_directory_of(self._root)
        if own is None:
            return None
        common = common_directory_of(own)
        if (common / "reftable").exists():
            return None  # refs are not files there, so they cannot be linked
        self._refresh_settings(own, common)
        path = self._prepare(own, common)
        variables = {
            "GIT_DIR": str(path),
            "GIT_OBJECT_DIRECTORY": str(common / "objects"),
            "GIT_INDEX_FILE": str(own / "index"),
            _FILTER_DIRECTORY: str(own),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_COUNT": str(len(self._settings.values)),
        }
        for number, (key, setting) in enumerate(self._settings.values):
            value = _setting_here(key, setting, lenient=lenient)
            variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return variables

    def close(self) -> None:
        """Remove the directory."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None

    def _refresh_settings(self, own: Path, common: Path) -> None:
        signature = tuple(_signature(path) for path in (common / "config", own / "config.worktree"))
        if signature == self._settings.signature and time.monotonic() - self._settings.read_at < _MAX_AGE:
            return
        try:
            pairs = [_split_setting(entry) for entry in self._read_settings()]
        except Exception as error:  # noqa: BLE001  (git's own; without its settings a snapshot is still better than none)
            self._settings = _Settings(
                self._settings.values,
                self._settings.formats,
                time.monotonic(),
                signature,
                str(error) or type(error).__name__,
            )
            return
        allowed = [(key, value) for key, value in pairs if _ALLOWED.fullmatch(key)]
        formats = {key: value for key, value in pairs if key in _FORMAT_KEYS}
        self._settings = _Settings(allowed[-_MAX_SETTINGS:], formats, time.monotonic(), signature)

    def _prepare(self, own: Path, common: Path) -> Path:
        """Create or update the directory, which git, possibly as another user, only reads."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="agentctl-git-"))
            self._path.chmod(0o755)
            (self._path / "info").mkdir(mode=0o755)
        path = self._path
        head = read_git_file(own / "HEAD")
        if head is None:
            head = b"ref: refs/heads/none\n"
        if not _HEAD.match(head):
            raise OSError(errno.EINVAL, "its HEAD names neither a branch nor a commit")
        _write(path / "HEAD", head)
        _write(path / "config", self._format_config().encode())
        wanted = dict(self._links(own, common))
        for name, target in wanted.items():
            _link(path / name, target)
        for entry in (*path.iterdir(), *(path / "info").iterdir()):
            if entry.is_symlink() and str(entry.relative_to(path)) not in wanted:
                entry.unlink()
        return path

    def _format_config(self) -> str:
        formats = self._settings.formats
        version = int(bool(formats))
        lines = ["[core]", f"\trepositoryFormatVersion = {version}", "\tbare = false"]
        plain = {key: value for key, value in formats.items() if value.isalnum()}
        if plain:
            lines += ["[extensions]", *(f"\t{key.partition('.')[2]} = {value}" for key, value in plain.items())]
        return "\n".join(lines) + "\n"

    def _links(self, own: Path, common: Path) -> Iterator[tuple[str, Path]]:
        """Yield what is linked: refs, what filters store beside the objects, and shared parts of a split index."""
        yield "refs", common / "refs"
        yield "packed-refs", common / "packed-refs"
        for place in (common, own):
            with os.scandir(place) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name)[:_MAX_LINKS]:
                    if entry.name not in _OWN_NAMES and not entry.name.endswith(".lock"):
                        yield entry.name, place / entry.name
        for name in _INFO_NAMES:
            yield f"info/{name}", common / "info" / name
        yield "info/sparse-checkout", own / "info" / "sparse-checkout"


def common_directory_of(own: Path) -> Path:
    """Return the directory that a worktree shares with others; itself if it shares none."""
    try:
        return parse_pointer(read_git_file(own / "commondir"), own)
    except InvalidPointer:
        return own


def _setting_here(key: str, setting: str, *, lenient: bool) -> str:
    """Return what a setting of the repository becomes in our directory; an empty command means no filter."""
    if lenient and _REQUIRED.fullmatch(key):
        return "false"
    if setting and _FILTER_PROGRAM.fullmatch(key):
        return _FOR_FILTERS + setting
    return setting


def _split_setting(entry: bytes) -> tuple[str, str]:
    key, has_value, value = entry.decode("utf-8", "surrogateescape").partition("\n")
    if not has_value:
        value = "true"
    return key, value


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns, about.st_size


def _write(path: Path, content: bytes) -> None:
    """Write a file unless it has this content; a git that runs at the same time sees the old or the new one."""
    if read_git_file(path) == content:
        return
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(content)
    draft.chmod(0o644)
    draft.replace(path)


def _link(path: Path, target: Path) -> None:
    if path.is_symlink() and path.readlink() == target:
        return
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(path)
