"""The tampering of a hostile agent: shell scripts by name, run as the agent in its container.

``$W`` is the work tree, ``$R`` its repository, ``$RECORD`` the work tree's record, ``$HOST`` a directory of the host
with a repository and a secret, ``$STATE`` agentctl's own.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from executors_app.runtimes.containers.sites import HOME_PATH
from tests.repositories import attacks
from tests.repositories.attacks import Trap

LAY_TRAP = """mkdir -p AGENT/trap/outside && cat > AGENT/trap/script <<'END'
#!/bin/sh
{ echo "$0 $*"; grep -E '^(Uid|Gid|Groups):' /proc/self/status; cat /var/lib/agentctl/state/token; } \
>> AGENT/trap/canary 2>&1
cat
END
chmod 755 AGENT/trap/script""".replace("AGENT", HOME_PATH)

CONFIGURE = 'printf "%s" "$1" >> $R/config; printf "%s" "$1" > $RECORD/config.worktree; '
CONFIGURE += 'printf "%s" "$1" > $HOME/.gitconfig; git -C $R config extensions.worktreeConfig true; true'

MILD: dict[str, str] = {
    "attributes with drivers": "mkdir -p $R/info; echo '* filter=x diff=x merge=x ident' > $R/info/attributes; "
    "echo '* filter=x diff=x export-subst' > $W/.gitattributes; "
    "for key in filter.x.clean filter.x.smudge filter.x.process diff.x.textconv diff.x.command merge.x.driver; do "
    "git -C $R config $key $1; done",
    "replaced commits": "git replace -f HEAD $(git commit-tree HEAD^{tree} -m Evil)",
    "grafts": "mkdir -p $R/info; git rev-parse HEAD > $R/info/grafts",
    "a false commit graph": "echo CGPH > $R/objects/info/commit-graph; echo MIDX > $R/objects/pack/multi-pack-index",
    "refs of other sessions": "git update-ref refs/kandev/recovery/$OTHER HEAD; git update-ref refs/heads/$THEIRS HEAD;"
    " git update-ref refs/kandev/kept/$OTHER/0123456789ab HEAD; git update-ref refs/heads/main HEAD",
    "two thousand refs": "at=$(git rev-parse HEAD); i=0; while [ $((i+=1)) -le 2000 ]; do "
    "printf 'update refs/kandev/kept/%s/%012x %s\\n' $OWN $i $at; done | git update-ref --stdin",
    "links to the host in the tree": "ln -sfn $DATA/secret_key $W/secret_key; ln -sfn $HOST/secret "
    "$W/secret; ln -sfn $STATE/token $W/token; ln -sfn $HOST $W/link; ln -sfn /proc/1/environ $W/environ; "
    "ln -sfn / $W/root",
    "a pipe and a socket in the tree": "cd $W; rm -f pipe socket; python3 -c '"
    'import os, socket; os.mkfifo("pipe"); socket.socket(socket.AF_UNIX).bind("socket")\'',
    "hostile names in a tree": "blob=$(echo evil | git hash-object -w --stdin); "
    "inner=$(printf '100755 blob %s\\tpost-checkout\\n' $blob | git mktree); "
    "hooks=$(printf '040000 tree %s\\thooks\\n' $inner | git mktree); "
    "tree=$(printf '040000 tree %s\\t.git\\n040000 tree %s\\t..\\n' $hooks $hooks | git mktree --missing); "
    "git update-ref refs/kandev/kept/$OWN/aaaaaaaaaaaa $(git commit-tree $tree -p HEAD -m Names)",
    "a submodule with commands": "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = ext::%s\\n\\tupdate = !%s\\n' "
    "$1 $1 > $W/.gitmodules",
    "submodules with commands, and submodules that lead to the host": "cd $W; rm -rf kid away; git init -q kid; "
    "git -C kid -c core.hooksPath=/dev/null -c user.name=x -c user.email=x@example.org commit -q --allow-empty -m x; "
    "for key in core.fsmonitor core.hooksPath filter.x.clean filter.x.smudge filter.x.process; do "
    "git -C kid config $key $1; done; echo '* filter=x' > kid/.gitattributes; echo x > kid/file; "
    "ln -sfn $HOST/secret kid/secret; mkdir away; printf 'gitdir: %s/.git\\n' $HOST > away/.git; "
    "at=$(git -C kid rev-parse HEAD); for name in kid away; do "
    "git update-index --add --cacheinfo 160000,$at,$name; done",
    "alternates to host directories": "printf '%s\\n' $HOST/.git/objects $TEAM/.git/objects $DATA / $STATE "
    ">> $R/objects/info/alternates; echo ext::$1 > $R/objects/info/http-alternates",
    "hooks": """for name in pre-commit post-commit post-checkout reference-transaction post-index-change pre-auto-gc \
fsmonitor-watchman prepare-commit-msg commit-msg post-rewrite pre-receive update post-update push-to-checkout; do
for folder in $R/hooks $RECORD/hooks; do mkdir -p $folder; \
printf '#!/bin/sh\ntest ! -x %s || %s\n' $1 $1 > $folder/$name; chmod 755 $folder/$name; done; done""",
    "stale locks": "touch $R/HEAD.lock $R/packed-refs.lock $RECORD/index.lock",
}
"""git still works after these, so tests can combine them."""

BROKEN: dict[str, str] = {
    "the repository is a link to the team's": "rm -rf $R; ln -s $TEAM/.git $R",
    "the repository is a link to the host": "rm -rf $R; ln -s $HOST/.git $R",
    "the repository is a pipe": "rm -rf $R; python3 -c 'import os; os.mkfifo(\"/workspace/repository.git\")'",
    "the tree is a link to agentctl's state": "rm -rf $W; ln -s $STATE $W",
    "the tree is a link to a process": "rm -rf $W; ln -s /proc/1 $W",
    "the trees are a link to the state's folder": "rm -rf /workspace/worktrees; ln -s /var/lib/agentctl $W/.. ; "
    "ln -s /var/lib/agentctl /workspace/worktrees",
    "the tree is a link to the host": "rm -rf $W; ln -s $HOST $W",
    "the pointer leads to the state": "echo gitdir: $STATE > $W/.git",
    "the pointer leads to the host": "echo gitdir: $HOST/.git > $W/.git",
    "the pointer is a link": "ln -sf $HOST/.git $W/.git",
    "the pointer is a pipe": "cd $W; rm .git; python3 -c 'import os; os.mkfifo(\".git\")'",
    "the index is agentctl's token": "ln -sf $STATE/token $RECORD/index",
    "the index is garbage": "head -c 100000 /dev/urandom > $RECORD/index",
    "the index has no end": "ln -sf /dev/zero $RECORD/index",
    "HEAD is a link": "ln -sf $STATE/token $R/HEAD; ln -sf $STATE/token $RECORD/HEAD",
    "packed refs are a link": "ln -sf $HOST/secret $R/packed-refs",
    "refs are a link": "rm -rf $R/refs; ln -s $TEAM/.git/refs $R/refs",
    "snapshots are a link": "rm -rf $R/refs/kandev; ln -s $TEAM/.git/refs/heads $R/refs/kandev",
    "a symbolic snapshot": "git symbolic-ref refs/kandev/recovery/$OWN refs/heads/main",
    "objects are a link": "rm -rf $R/objects; ln -s $HOST/.git/objects $R/objects",
    "another common directory": "echo $TEAM/.git > $RECORD/commondir; echo $HOST/.git > $R/commondir",
    "a record that leads elsewhere": "echo $HOST/.git > $RECORD/gitdir; printf initializing > $RECORD/locked",
    "nothing is left": "rm -rf /workspace/repository.git /workspace/worktrees",
    "a shallow file": "git rev-parse HEAD > $R/shallow",
    "the copy of the index is a link": "for place in /tmp/agentctl-*; do rm -rf $place; ln -s $STATE $place; done",
}
"""Little works after any of these, so each is applied alone to a restored workspace."""


def settings_text(root: Path, form: str) -> str:
    """Return every git setting with a value of one form, except those with which git would not work at all."""
    pieces = _pieces(Trap(root), form)
    return "".join(f"{pieces[number].rstrip()}\n" for number in _usable(form))


@cache
def _usable(form: str) -> list[int]:
    """Return which settings leave git usable, by their number, with values that lead to a trap on this machine.

    They are found once for each form: it takes a thousand calls of git.
    """
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        trap = Trap(folder / "trap").set_up()
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        pieces = _pieces(trap, form)
        accepted = set(_accepted(folder, pieces))
        return [number for number, piece in enumerate(pieces) if piece in accepted]


def _pieces(trap: Trap, form: str) -> list[str]:
    first, *others = attacks.configuration(trap, form).split("\n[")
    return [first, *(f"[{piece}" for piece in others)]


def _accepted(folder: Path, pieces: list[str]) -> list[str]:
    """Return the settings with which git still works, found by bisection."""
    if not pieces or _works(folder, pieces):
        return pieces
    if len(pieces) == 1:
        return []
    half = len(pieces) // 2
    return [*_accepted(folder, pieces[:half]), *_accepted(folder, pieces[half:])]


def _works(folder: Path, pieces: list[str]) -> bool:
    (folder / "settings").write_text("\n".join(pieces))
    config = folder / ".git/config"
    original = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    config.write_text(original + "\n".join(pieces) + "\n")
    words = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        return not any(
            subprocess.run([*words, *call], capture_output=True, check=False, timeout=10).returncode
            for call in (["status"], ["for-each-ref"], ["hash-object", "--stdin"], ["config", "--list"])
        )
    finally:
        config.write_text(original)
