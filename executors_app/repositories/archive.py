"""The archive of a workspace: ``<data>/archives/<workspace id>.git``, a bare repository that no agent can write.

All work of a workspace arrives here, in bundles that its agentctl sends. Everything else is made from the archive:
what is published to the team's repository, a rebuilt workspace, a backup. A git bundle of all its refs is the archive
format: ``take_in`` restores it anywhere.

Objects that the team has published are borrowed from its object store. What a workspace sends is untrusted: we parse
it, git checks it in quarantine (as ``receive-pack`` does), and only then is it moved in.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Final

from executors_app.machine.git.seeds import Seed
from executors_app.repositories import bare, bundles, transfer
from executors_app.repositories.bundles import BUNDLE_LIMIT, BundleHeader
from executors_app.repositories.carried_settings import CarriedSettings
from executors_app.repositories.git import CHECK, Git, GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.published_packs import Published, PublishedPacks
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.transfer import Pack
from executors_app.repositories.workspace_refs import WorkspaceRefs, check_workspace_id
from executors_app.wire.errors import BundleRefused, PublicationRefused, RepositoryUnusable

ARCHIVE_LIMIT: Final = 8 << 30
"""Largest archive, in bytes."""
KEPT_LIMIT: Final = 1000
"""Maximum number of refs in one archive."""
MAX_PATHS: Final = 2_000_000
"""Files and directories of one commit. A few small trees that name one another can describe billions."""
_MAX_PACKS: Final = 16
"""With more packs than this, they are merged into one without unreachable objects."""
_INCOMING_PREFIX: Final = "incoming-"
REMOVING_PREFIX: Final = ".going-"

_PUBLISHED: Final = "published.json"


class Archive:
    """The archive of one workspace; see ``of``."""

    def __init__(self, path: Path, workspace_id: str, store: ObjectStore | None, account: str):
        self.path = path
        self._account = account
        self.workspace_id = workspace_id
        self.store = store

    @classmethod
    def of(cls, root: Path, workspace_id: str, store: ObjectStore | None = None, *, account: str = "") -> Archive:
        """Return the archive of a workspace below the data directory ``root``; it may not exist yet.

        ``store`` is what a new one borrows from, ``account`` the repository whose calls of git wait for one another
        (default: the store's, or the workspace alone). Raises RepositoryUnusable for an invalid id.
        """
        if store is not None:
            account = str(store.repository.common)
        path = root / "archives" / f"{check_workspace_id(workspace_id)}.git"
        return cls(path, workspace_id, store, account or workspace_id)

    @property
    def git(self) -> Git:
        """Git for the archive."""
        return self._git()

    def _git(self, objects: Path | None = None) -> Git:
        # All workspaces of a repository share its slots: what one of them sends delays no other team.
        return Git(self.path, objects, account=self._account)

    def exists(self) -> bool:
        """Whether the archive has been created."""
        return (self.path / "HEAD").is_file()

    def tips(self) -> dict[str, str]:
        """Return its refs and the commits they name; raises GitFailed."""
        if self.exists():
            return bare.list_refs(self.git)
        return {}

    def begin(self, branch: str, commit: str) -> None:
        """Create the workspace's branch at ``commit``, unless it exists.

        A commit that is not published is copied from the team's repository. Raises RepositoryUnusable, GitFailed.
        """
        names = WorkspaceRefs(self.workspace_id, branch)
        object_format = "sha1"
        if self.store:
            object_format = self.store.repository.object_format
        with self._locked(object_format) as held:
            if names.branch not in self.tips():
                self._bring({names.branch: commit}, held)

    def adopt(self, branch: str) -> dict[str, str]:
        """Copy the workspace's refs that only the team's repository has, and return them.

        For a workspace whose archive was lost, or that comes from another machine. Raises RepositoryUnusable and
        GitFailed.
        """
        names = WorkspaceRefs(self.workspace_id, branch)
        repository = self._repository()
        with self._locked(repository.object_format) as held:
            archived = self.tips()
            in_team = repository.refs(names.branch, names.recovery, names.kept)
            taken = {ref: at for ref, at in in_team.items() if names.owns(ref) and ref not in archived}
            self._bring(taken, held)
        return taken

    def take_in(self, bundle: Path, branch: str) -> dict[str, str]:
        """Import a bundle: set the workspace's refs to those it names, and return all refs of the archive.

        Commits that the branch loses are set aside. A rejected bundle changes nothing, and importing a bundle again
        changes nothing either. Raises BundleRefused, GitFailed, OSError; ``details["missing"]`` of BundleRefused names
        commits that the bundle builds on and the archive lacks.
        """
        names = WorkspaceRefs(self.workspace_id, branch)
        with bundle.open("rb", buffering=0) as file:
            header = bundles.parse_bundle(file)
            if strange := next((ref for ref in header.refs if not names.owns(ref)), ""):
                raise BundleRefused(f"The bundle names {strange}, which is not this workspace's.", ref=strange)
            if os.fstat(file.fileno()).st_size > BUNDLE_LIMIT:
                raise BundleRefused(f"The bundle is longer than {BUNDLE_LIMIT} bytes.")
            with self._locked(header.object_format) as held:
                before = self.tips()
                with self._quarantine() as draft:
                    self._check(draft, header, before, file, held)
                    changes = self._changes(self._git(draft), names, before, header.refs)
                    self._accept(draft, held)
                # After a crash before this line the archive has objects without refs; the same bundle can come again.
                bare.update_refs(self.git, changes, (held,))
                self._tidy(held)
                return {**before, **{ref: at for ref, (_, at) in changes.items()}}

    def follow(self, branch: str, refs: Mapping[str, str]) -> None:
        """Set the workspace's refs to ``refs``, except where a commit has not arrived.

        For refs that went back to a commit that was sent earlier, which no bundle can contain. Raises BundleRefused if
        something that a commit reaches is missing, GitFailed.
        """
        names = WorkspaceRefs(self.workspace_id, branch)
        with self._locked("") as held:
            here = bare.object_types(self.git, refs.values())
            wanted = {ref: at for ref, at in refs.items() if names.owns(ref) and here.get(at) == "commit"}
            before = self.tips()
            self._check_whole(self.git, wanted, before, held)
            bare.update_refs(self.git, self._changes(self.git, names, before, wanted), (held,))

    def time_of(self, ref: str) -> str:
        """Return the time of a ref's commit, ISO 8601; empty if there is none. Raises GitFailed."""
        commit = self.tips().get(ref)
        if commit:
            return self.git.text("log", "-1", "--format=%cI", commit, "--")
        return ""

    def write_seed(
        self,
        into: Path,
        *,
        branch: str,
        store: ObjectStore,
        carried: CarriedSettings,
        base: str,
        borrow: Sequence[str],
        whole: bool,
    ) -> None:
        """Write the seed from which a sandbox creates its repository; see ``transfer``. Raises GitFailed, OSError.

        ``borrow`` are object directories that the sandbox sees. Without any, only the refs that ``base`` names are sent
        in addition to the workspace's own. ``whole``: append the pack.
        """
        published = store.refs()
        if borrow:
            shared, borrowed = published, published
        else:
            names = (f"refs/heads/{base}", f"refs/remotes/origin/{base}", f"refs/tags/{base}")
            shared, borrowed = {name: published[name] for name in names if name in published}, {}
        seed = Seed(
            branch,
            refs={**shared, **self.tips()},
            objects=tuple(borrow),
            complete=whole,
            object_format=bare.read_object_format(self.path),
            identity=dict(carried.identity),
            remotes=dict(carried.remotes),
            exclude=carried.exclude,
            hooks=carried.hooks,
            base=base,
        )
        transfer.write_seed(self.git, into, seed, borrowed)

    @contextmanager
    def pack_for_publication(self, commits: Sequence[str], known: Sequence[str], held: int) -> Iterator[Pack | None]:
        """Yield a pack of what the commits reach and ``known`` does not, after charging it to the workspace.

        ``held`` is the archive's lock. None if there is nothing to send. Raises PublicationRefused, GitFailed.
        """
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING_PREFIX, dir=self.path))
        try:
            object_format = bare.read_object_format(self.path)
            try:
                pack = transfer.make_pack(self.git, folder, commits, known, object_format=object_format, hold=(held,))
            except BundleRefused as error:
                raise PublicationRefused(
                    f"{error.message} It is not published; this workspace's work is kept in its archive."
                ) from error
            if pack is not None:
                self._charge(pack)
            yield pack
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def published_packs(self) -> PublishedPacks:
        """The packs that the workspace has added to the team's repository."""
        return PublishedPacks(self.path, self.git)

    def remove_leftovers(self) -> None:
        """Remove what killed calls have left behind; the caller holds the archive's lock."""
        _remove_stale_files(self.path)

    def published(self) -> Published:
        """Return what the workspace has added to the team's repository so far."""
        try:
            return Published(**json.loads((self.path / _PUBLISHED).read_text()))
        except FileNotFoundError:
            return Published()

    def _charge(self, pack: Pack) -> None:
        # Written before the pack is sent: a crash in between charges the same pack twice, never not at all.
        total = self.published().plus(pack)
        total.check()
        draft = self.path / f"{_PUBLISHED}.draft"
        draft.write_text(json.dumps(asdict(total)))
        draft.rename(self.path / _PUBLISHED)

    def drop(self, refs: Mapping[str, str]) -> None:
        """Remove refs that still name the given commits; raises GitFailed for one that has moved."""
        with self._locked("") as held:
            bare.update_refs(self.git, {ref: (commit, "") for ref, commit in refs.items()}, (held,))

    def remove(self) -> None:
        """Remove the archive, if it exists. Raises OSError, GitFailed."""
        try:
            with bare.repository_lock(self.path, folder=True):
                # Renamed first, so that a half-deleted archive is never mistaken for an archive.
                going = self.path.with_name(f"{REMOVING_PREFIX}{self.path.name}")
                shutil.rmtree(going, ignore_errors=True)
                self.path.rename(going)
                shutil.rmtree(going)
        except FileNotFoundError:
            return

    def _repository(self) -> TeamRepository:
        if self.store is None:
            raise RepositoryUnusable(f"The workspace {self.workspace_id} has no repository to start from.")
        return self.store.repository

    @contextmanager
    def _locked(self, object_format: str) -> Iterator[int]:
        """Lock the archive, creating it if necessary, and remove the leftovers of killed calls."""
        if object_format:
            bare.make_bare_repository(self.path, object_format, mode=0o700)
        with bare.repository_lock(self.path, folder=True) as held:
            if object_format and bare.read_object_format(self.path) != object_format:
                raise BundleRefused(f"The archive of {self.workspace_id} has another object format.")
            self._borrow()
            _remove_stale_files(self.path)
            yield held

    def _borrow(self) -> None:
        """Add the store to the alternates; relative, so that the data directory can be moved."""
        if self.store is None or not self.store.path.is_dir():
            return
        file = self.path / "objects" / "info" / "alternates"
        named: list[str] = []
        if file.exists():
            named = file.read_text().splitlines()
        line = os.path.relpath(self.store.objects, self.path / "objects")
        if line not in named:
            draft = file.with_name("alternates.draft")
            draft.write_text("".join(f"{one}\n" for one in [*named, line]))
            draft.rename(file)

    def _published_refs(self) -> dict[str, str]:
        """Return the refs of the store; empty without one."""
        if self.store is None:
            return {}
        return self.store.refs()

    def _alternates(self) -> list[Path]:
        file = self.path / "objects" / "info" / "alternates"
        if file.exists():
            return [self.path / "objects" / line for line in file.read_text().splitlines()]
        return []

    def _bring(self, wanted: Mapping[str, str], held: int) -> None:
        """Create refs to commits of the team's repository, after copying what the store lacks."""
        published = self._published_refs()
        if self.store and self.store.path.is_dir():
            here = bare.object_types(self.store.git, wanted.values())
        else:
            here = {}
        # Everything in the store is complete with all that it reaches; objects in the archive may not be.
        new = [commit for commit in wanted.values() if commit not in here]
        if new:
            source = self._repository().git
            known = bare.object_types(source, published.values())
            transfer.copy_objects(
                source, self.git, new, [one for one, kind in known.items() if kind == "commit"], hold=(held,)
            )
        bare.update_refs(self.git, {ref: ("", commit) for ref, commit in wanted.items()}, (held,))

    @contextmanager
    def _quarantine(self) -> Iterator[Path]:
        """Yield a separate object directory on top of the archive's."""
        draft = Path(tempfile.mkdtemp(prefix=_INCOMING_PREFIX, dir=self.path))
        try:
            (draft / "pack").mkdir()
            (draft / "info").mkdir()
            # Every alternate is listed: git does not follow relative paths in an alternate's own alternates.
            alternates = [self.path / "objects", *self._alternates()]
            lines = [f"{os.path.relpath(place, draft)}\n" for place in alternates]
            (draft / "info" / "alternates").write_text("".join(lines))
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _check(self, draft: Path, header: BundleHeader, before: Mapping[str, str], file: IO[bytes], held: int) -> None:
        """Index the pack in quarantine and check that nothing is missing; raises BundleRefused."""
        git = self._git(draft)
        here = bare.object_types(git, header.prerequisites)
        if missing := sorted(header.prerequisites - set(here)):
            raise BundleRefused("The bundle depends on commits that have not arrived.", missing=missing)
        if header.objects:
            bundles.index_bundle(git, file, header, (held,))
        kinds = bare.object_types(git, header.refs.values())
        if any(kinds.get(commit) != "commit" for commit in header.refs.values()):
            raise BundleRefused("The bundle names something other than its own commits.")
        self._check_whole(git, header.refs, before, held)
        for commit in sorted(set(header.refs.values()) - set(before.values())):
            _check_paths(git, commit, header.object_format, held)

    def _check_whole(self, git: Git, refs: Mapping[str, str], before: Mapping[str, str], held: int) -> None:
        """Check that everything the commits reach is present; raises BundleRefused."""
        known = {*before.values(), *self._published_refs().values()}
        wanted = bare.revision_input(refs.values(), sorted(known))
        try:
            git.run("rev-list", "--objects", "--quiet", "--stdin", stdin=wanted, bounds=CHECK, hold=(held,))
        except GitFailed as error:
            raise BundleRefused(f"The bundle is not complete: {error.message}") from error

    def _accept(self, draft: Path, held: int) -> None:
        """Move the checked pack in, its index last: git finds a pack by its index."""
        if _size(self.path) > ARCHIVE_LIMIT:
            self._repack(held)
            if _size(self.path) > ARCHIVE_LIMIT:
                raise BundleRefused(f"The archive would become larger than {ARCHIVE_LIMIT} bytes.")
        arrived = [path for path in (draft / "pack").iterdir() if path.suffix in {".pack", ".rev", ".idx"}]
        for path in sorted(arrived, key=lambda path: path.suffix == ".idx"):
            path.rename(self.path / "objects" / "pack" / path.name)

    @staticmethod
    def _changes(
        git: Git, names: WorkspaceRefs, before: Mapping[str, str], wanted: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        """Return the change of each ref, with commits that the branch loses set aside; raises BundleRefused."""
        changes = {ref: (before.get(ref, ""), at) for ref, at in wanted.items() if before.get(ref) != at}
        old, new = changes.get(names.branch, ("", ""))
        if old and not bare.is_ancestor(git, old, new):
            aside = names.kept_as(old)
            changes[aside] = (before.get(aside, ""), old)
        if len({*before, *changes}) > KEPT_LIMIT:
            raise BundleRefused(f"The archive would have more than {KEPT_LIMIT} refs.")
        return changes

    def _tidy(self, held: int) -> None:
        if len(list((self.path / "objects" / "pack").glob("*.pack"))) > _MAX_PACKS:
            self._repack(held)

    def _repack(self, held: int) -> None:
        self.git.run("repack", "-a", "-d", "-l", "-n", "-q", bounds=CHECK, hold=(held,))


def _check_paths(git: Git, commit: str, object_format: str, held: int) -> None:
    """Check that a commit has no more paths than anyone can check out; raises BundleRefused."""
    line = bare.OBJECT_FORMATS[object_format] + 1
    bounds = replace(CHECK, output=MAX_PATHS * line)
    try:
        # Directories are listed, too: trees without files could be nested to any number.
        git.count_output("ls-tree", "-r", "-t", "--object-only", commit, bounds=bounds, hold=(held,))
    except GitFailed as error:
        if error.cause is Cause.BUSY:
            raise
        raise BundleRefused(f"A commit has more than {MAX_PATHS} paths, or paths that git cannot list.") from error


def _remove_stale_files(path: Path) -> None:
    """Remove leftovers of killed gits. None runs, because each would hold the archive's lock, which the caller has."""
    for draft in path.glob(f"{_INCOMING_PREFIX}*"):
        shutil.rmtree(draft, ignore_errors=True)
    for left in [*path.glob("objects/pack/tmp_*"), *path.glob("*.lock"), *path.glob("refs/**/*.lock")]:
        left.unlink(missing_ok=True)


def _size(path: Path) -> int:
    """Return the bytes of all files below; links are not followed."""
    return sum(entry.stat(follow_symlinks=False).st_size for entry in _files(path))


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry
