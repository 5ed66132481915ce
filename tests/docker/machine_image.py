"""A base image of this machine's own files: Python, git and a shell. It needs no registry."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

NAME: Final = "kandev-machine"
ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = "git sh bash env cat ls cp mv rm mkdir chmod chown ln sleep true id printf head tail touch stty ps"
_LIBRARY: Final = re.compile(r"(?:=>\s+)?(/\S+)\s+\(0x")
_LEFT_OUT: Final = {"site-packages", "dist-packages", "test", "idlelib", "ensurepip", "tkinter", "__pycache__"}
_ACCOUNTS: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@cache
def archive(requirements: str = "agentctl", more_programs: str = "") -> bytes:
    """Return the image's root directory as a tar; about 130 MB, created once in a run.

    It has the packages of ``requirements/<requirements>.txt`` as they are installed for these tests, and what this
    machine has compiled of them and of Python: users of an image cannot write there, so each start would compile again.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tree = _Tree(tar)
        # First, because files from below /tmp would otherwise add it with a mode that lets only root write.
        for directory, mode in (("tmp", 0o1777), ("root", 0o755), ("var/tmp", 0o1777)):
            tree.directory(directory, mode)
        interpreter = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
        for top in Path("/").iterdir():
            if top.is_symlink() and top.name.startswith(("bin", "lib", "sbin")):
                tree.follow(top)
        tree.take(interpreter)
        for program in filter(None, map(shutil.which, f"{PROGRAMS} {more_programs}".split())):
            tree.take(Path(program))
        tree.take_all(Path(sysconfig.get_path("stdlib")))
        tree.take_all(Path(subprocess.check_output(["git", "--exec-path"], text=True).strip()))
        _take_packages(tree, _site_packages(interpreter), requirements)
        tree.link("/usr/local/bin/python3", str(interpreter))
        for place, text in _ACCOUNTS.items():
            tree.write(place, text.encode())
    return packed.getvalue()


def import_into(engine: Any, tag: str = "test", **of_archive: str) -> str:
    """Import the image that ``archive(**of_archive)`` returns into a Docker engine; return its name."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    engine.import_image_from_data(archive(**of_archive), repository=NAME, tag=tag, changes=[f"ENV PATH={path}"])
    return f"{NAME}:{tag}"


@contextmanager
def layer_of(programs: Path, into: Path) -> Iterator[IO[bytes]]:
    """Yield a tar of a directory's files, placed at ``into``, with the libraries that they need."""
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            _Tree(tar).take_all(programs, into)
        packed.seek(0)
        yield packed


class _Tree:
    """A tar that holds each path once, with all symbolic links on the way and the shared libraries it needs."""

    def __init__(self, tar: tarfile.TarFile):
        self._tar = tar
        self._known: set[str] = set()

    def take(self, path: Path) -> None:
        """Add a file, the links that lead to it, and its shared libraries."""
        real = self.follow(path)
        if real is None or not self._is_new(real):
            return
        self._tar.add(real, real.relative_to("/"), recursive=False)
        if _is_elf(real):
            for library in _libraries(real):
                self.take(library)

    def take_all(self, root: Path, into: Path | None = None) -> None:
        """Add a directory with everything below it, at ``into`` if given."""
        for file in _files_below(root):
            if into is None:
                self.take(file)
                continue
            place = into / file.relative_to(root)
            self.directory(str(place.parent)[1:])
            if self._is_new(place):
                self._tar.add(file, place.relative_to("/"), recursive=False)
            for library in _libraries(file) if _is_elf(file) else ():
                self.take(library)

    def directory(self, place: str, mode: int = 0o755) -> None:
        """Add a directory and its parents, readable by all."""
        for parent in reversed(PurePosixPath(place).parents):
            if str(parent) != ".":
                self._add_directory(str(parent), 0o755)
        self._add_directory(place, mode)

    def link(self, place: str, target: str) -> None:
        """Add a symbolic link."""
        if self.follow(Path(place).parent) is not None and self._is_new(Path(place)):
            self._tar.addfile(_entry(place[1:], tarfile.SYMTYPE, target))

    def write(self, place: str, data: bytes) -> None:
        """Add a file with this content unless the path exists."""
        if not self._is_new(Path("/") / place):
            return
        self.directory(str(PurePosixPath(place).parent))
        info = _entry(place, tarfile.REGTYPE)
        info.size, info.mode = len(data), 0o644
        self._tar.addfile(info, io.BytesIO(data))

    def follow(self, path: Path) -> Path | None:
        """Add each symbolic link on the way; return the real path, or None if it does not exist."""
        here, rest = Path("/"), list(path.parts[1:])
        for _ in range(200):
            if not rest:
                return here if here.exists() else None
            step = here / rest.pop(0)
            if not step.is_symlink():
                if step.is_dir():
                    self.directory(str(step)[1:])
                here = step
                continue
            target = step.readlink()
            if self._is_new(step):
                self._tar.addfile(_entry(str(step)[1:], tarfile.SYMTYPE, str(target)))
            rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
            here = Path("/") if target.is_absolute() else here
            while rest and rest[0] == "..":
                here, rest = here.parent, rest[1:]
        return None

    def _add_directory(self, place: str, mode: int) -> None:
        if self._is_new(Path("/") / place):
            info = _entry(place, tarfile.DIRTYPE)
            info.mode = mode
            self._tar.addfile(info)

    def _is_new(self, path: Path) -> bool:
        new = str(path) not in self._known
        self._known.add(str(path))
        return new


def _entry(place: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(place)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info


def _files_below(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        is_needed = (path.parent.name, path.name) == ("django", "test")  # only its name is that of tests
        if (path.name in _LEFT_OUT and not is_needed) or path.name.startswith("config-"):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        elif path.is_file():
            yield path
            yield from _compiled(path)


def _compiled(path: Path) -> list[Path]:
    """Return the file that this machine's Python has compiled from a module, if there is one."""
    compiled = Path(cache_from_source(path)) if path.suffix == ".py" else path
    return [compiled] if compiled != path and compiled.is_file() else []


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _libraries(path: Path) -> list[Path]:
    completed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    return [Path(os.path.normpath(found)) for found in _LIBRARY.findall(completed)]


def _site_packages(interpreter: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.check_output([str(interpreter), "-I", "-c", code], text=True).strip())


def _take_packages(tree: _Tree, into: Path, requirements: str) -> None:
    """Add the packages that a requirements file lists, as installed for these tests."""
    listed = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / f"{requirements}.txt").read_text(), re.MULTILINE)
    for name in listed:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # not for this version of Python
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            place = Path(str(found.locate_file(top)))
            if place.is_dir():
                tree.take_all(place, into / top)
            elif place.is_file():
                tree.write(str(into / place.name)[1:], place.read_bytes())
