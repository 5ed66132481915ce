"""Ways in which a repository may make git run a command or use other files; each would create the canary file."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.executors.repositories import commit, run_git

OURS_TO_READ = {"extensions.objectformat", "extensions.refstorage", "core.repositoryformatversion"}
"""Configuration keys that decide whether a repository is usable at all."""


@dataclass(frozen=True)
class Trap:
    """A canary file, a script that creates it, and a directory that must not change."""

    root: Path

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    @property
    def script(self) -> Path:
        return self.root / "script"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    def set_up(self) -> Trap:
        self.root.mkdir()
        self.outside.mkdir()
        self.script.write_text(f"#!/bin/sh\necho ran >> '{self.canary}'\ncat\nexit 0\n")
        self.script.chmod(0o755)
        return self


FORMS: dict[str, Callable[[Trap], str]] = {
    "command": lambda trap: str(trap.script),
    "alias": lambda trap: f"!{trap.script}",
    "address": lambda trap: f"ext::{trap.script}",
    "directory": lambda trap: str(trap.outside),
    "file": lambda trap: str(trap.outside / "file"),
    "true": lambda trap: "true",
}


@cache
def keys() -> tuple[str, ...]:
    """Return all configuration keys of git's own list, with ``x`` for variable parts."""
    completed = subprocess.run(["git", "help", "-c"], capture_output=True, text=True, check=True).stdout
    names = (line.strip() for line in completed.splitlines() if re.fullmatch(r"[A-Za-z][\w-]*\.\S+", line.strip()))
    return tuple(re.sub(r"<[^>]+>", "x", name).replace("*", "x") for name in names)


def configuration(trap: Trap, form: str) -> str:
    """Return a configuration in which every key of git has a value of one form."""
    value = FORMS[form](trap)
    wanted = [key for key in keys() if key.lower() not in OURS_TO_READ]
    more = [
        "include.path", "includeIf.gitdir:/.path", "url.ext::x.insteadOf", "remote.origin.url", "remote.origin.vcs",
        "filter.x.clean", "filter.x.smudge", "filter.x.process", "filter.x.required", "diff.x.textconv",
        "diff.x.command", "merge.x.driver", "gpg.program", "log.showSignature", "credential.https://x.helper",
    ]  # fmt: skip
    return "".join(_line(key, value) for key in [*wanted, *more])


def _line(key: str, value: str) -> str:
    section, _, rest = key.partition(".")
    middle, _, name = rest.rpartition(".")
    head = f'[{section} "{middle}"]' if middle else f"[{section}]"
    return f'{head}\n\t{name} = "{value}"\n'


def _hooks(common: Path, trap: Trap) -> None:
    names = subprocess.run(["git", "help", "githooks"], capture_output=True, text=True, check=False).stdout
    known = set(re.findall(r"^   ([a-z][a-z0-9-]+)$", names, re.MULTILINE))
    known |= {"reference-transaction", "post-checkout", "pre-auto-gc", "post-index-change", "fsmonitor-watchman"}
    known |= {
        "pre-receive",
        "update",
        "post-receive",
        "post-update",
        "proc-receive",
        "push-to-checkout",
        "post-rewrite",
    }
    (common / "hooks").mkdir(exist_ok=True)
    for name in known:
        (common / "hooks" / name).write_bytes(trap.script.read_bytes())
        (common / "hooks" / name).chmod(0o755)


def _attributes(common: Path, trap: Trap) -> None:
    (common / "info").mkdir(exist_ok=True)
    (common / "info/attributes").write_text(
        "* filter=x diff=x merge=x text eol=crlf working-tree-encoding=UTF-16 ident\n"
    )
    with (common / "config").open("a") as config:
        config.write(configuration(trap, "command"))


def _committed_attributes(common: Path, trap: Trap) -> None:
    commit(common.parent, ".gitattributes", "* filter=x diff=x merge=x export-subst\n")
    _attributes(common, trap)


def _submodule(common: Path, trap: Trap) -> None:
    commit(
        common.parent,
        ".gitmodules",
        f'[submodule "x"]\n\tpath = x\n\turl = ext::{trap.script}\n\tupdate = !{trap.script}\n',
    )


def _mailmap(common: Path, _trap: Trap) -> None:
    os.symlink("/etc/passwd", common.parent / ".mailmap")  # noqa: PTH211
    run_git(common.parent, "add", ".mailmap")
    run_git(common.parent, "commit", "--quiet", "-m", "mailmap")


def _replaced(common: Path, _trap: Trap) -> None:
    root = common.parent
    evil = run_git(root, "commit-tree", "HEAD^{tree}", "-m", "Evil")
    run_git(root, "replace", "HEAD", evil)


def _grafted(common: Path, _trap: Trap) -> None:
    (common / "info").mkdir(exist_ok=True)
    (common / "info/grafts").write_text(run_git(common.parent, "rev-parse", "HEAD") + "\n")


def _text(name: str, text: str) -> Callable[[Path, Trap], None]:
    def write(common: Path, trap: Trap) -> None:
        (common / name).parent.mkdir(parents=True, exist_ok=True)
        (common / name).write_text(text.format(trap=trap))

    return write


def _link(name: str) -> Callable[[Path, Trap], None]:
    def link(common: Path, trap: Trap) -> None:
        path = common / name
        if path.is_dir():
            path.rename(trap.outside / path.name)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(trap.outside / path.name)

    return link


def _worktree_record(common: Path, trap: Trap) -> None:
    record = common / "worktrees" / "x"
    record.mkdir(parents=True)
    for name, text in {
        "HEAD": "ref: refs/heads/other\n", "commondir": f"{trap.outside}\n", "gitdir": f"{trap.outside}/.git\n",
        "config.worktree": configuration(trap, "command"), "locked": "initializing",
    }.items():  # fmt: skip
        (record / name).write_text(text)


def _configured(form: str) -> Callable[[Path, Trap], None]:
    def write(common: Path, trap: Trap) -> None:
        with (common / "config").open("a") as config:
            config.write(configuration(trap, form))
        (common / "config.worktree").write_text(configuration(trap, form))
        with (common / "config").open("a") as config:
            config.write("[extensions]\n\tworktreeConfig = true\n")

    return write


FILES: dict[str, Callable[[Path, Trap], None]] = {
    **{f"every key, as {form}": _configured(form) for form in FORMS},
    "hooks": _hooks,
    "attributes": _attributes,
    "committed attributes": _committed_attributes,
    "a submodule": _submodule,
    "a mailmap that is a link": _mailmap,
    "a replaced commit": _replaced,
    "grafts": _grafted,
    "a worktree's record": _worktree_record,
    "another common directory": _text("commondir", "{trap.outside}\n"),
    "alternates": _text("objects/info/alternates", "{trap.outside}\n"),
    "alternates over http": _text("objects/info/http-alternates", "ext::{trap.script}\n"),
    "a shallow file": _text("shallow", "0123456789012345678901234567890123456789\n"),
    "a false commit graph": _text("objects/info/commit-graph", "CGPH garbage"),
    "a false index of packs": _text("objects/pack/multi-pack-index", "MIDX garbage"),
    "remotes of old": _text("remotes/origin", "URL: ext::{trap.script}\nPull: refs/heads/*:refs/heads/*\n"),
    "branches of old": _text("branches/origin", "ext::{trap.script}\n"),
    "a symbolic branch": _text("refs/heads/kandev/1234567890ab", "ref: refs/heads/main\n"),
    "a symbolic snapshot": _text(
        "refs/kandev/recovery/12345678-90ab-4def-9234-567890abcdef", "ref: refs/heads/main\n"
    ),
    "a symbolic published ref": _text("refs/heads/alias", "ref: refs/kandev/recovery/other\n"),
    "a branch that is a path": _text("refs/heads/path", "ref: ../../../outside\n"),
    **{
        f"{name} elsewhere": _link(name)
        for name in (
            "objects", "objects/pack", "objects/info", "objects/ab", "refs", "refs/heads", "refs/heads/kandev",
            "refs/kandev", "refs/kandev/recovery", "refs/heads/link", "packed-refs", "logs", "info", "hooks", "config",
            "worktrees", "lfs", "index",
        )
    },
}  # fmt: skip


def environment(trap: Trap) -> Iterator[tuple[str, str]]:
    """Yield environment variables of the control plane that could redirect git."""
    for name in (
        "GIT_EXTERNAL_DIFF", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_PAGER", "PAGER",
        "GIT_EDITOR", "EDITOR", "VISUAL", "GIT_PROXY_COMMAND", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR",
    ):  # fmt: skip
        yield name, str(trap.script)
    for name in (
        "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_INDEX_FILE", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "HOME", "XDG_CONFIG_HOME", "GIT_TRACE2_EVENT",
    ):  # fmt: skip
        yield name, str(trap.outside)
    yield from {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": str(trap.script),
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor={trap.script}'", "GIT_NAMESPACE": "x", "GIT_TRACE": str(trap.canary),
        "GIT_TRACE2": str(trap.canary), "GIT_REPLACE_REF_BASE": "refs/heads/",
        "GIT_CONFIG_GLOBAL": str(trap.outside / "config"),
    }.items()  # fmt: skip
