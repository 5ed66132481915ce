"""The programs of Kubernetes, built once from Debian's source package into a cache outside of the project.

No package registry that Kandev's machines use has kube-apiserver or kubelet as a program. Debian packages that the
build and the nodes need are unpacked into the cache too: nothing is installed, and the machine's own lists of packages
stay as they are. About six minutes of CPU time; 320 MB are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CACHE: Final = "TEST_KUBERNETES_CACHE"
"""Environment variable with another directory for the cache."""
SOURCE: Final = "kubernetes"
VERSION: Final = "1.20.2"
RECIPE: Final = 1
"""Raised when this module changes what is in the cache, so that an older cache is built again."""
VENDOR: Final = "k8s.io/kubernetes/vendor"
GO: Final = "usr/lib/go-1.19"
REFLECT: Final = "github.com/modern-go/reflect2"
BUILD_PACKAGES: Final = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
NODE_PACKAGES: Final = ("etcd-server", "containernetworking-plugins", "socat", "conntrack")
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
NOT_OURS: Final = re.compile("sample-apiserver|code-generator|apiserver/pkg/apis/example|codegen")
_NEEDED: Final = ("apt-get", "dpkg", "dpkg-source")


def cache() -> Path:
    """Return the directory of the cache, which need not exist."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(shared) / "kandev" / "kubernetes"


def program(name: str) -> str:
    """Return the path of a program of Kubernetes in the cache."""
    return str(cache() / "bin" / name)


def unpacked(path: str) -> Path:
    """Return where the cache has a file of Debian's packages; ``path`` is relative to the root directory."""
    return cache() / "root" / path


def missing() -> str:
    """Return why there is no complete cache of this recipe here, or an empty string."""
    stamp = _read_stamp()
    if stamp.get("recipe") != RECIPE:
        return f"Kubernetes {VERSION} is not built (make test-cluster, once)"
    programs: Mapping[str, int] = {name: facts["size"] for name, facts in stamp["programs"].items()}
    damaged = [name for name, size in programs.items() if not _has_size(Path(program(name)), size)]
    return f"the cache of Kubernetes is damaged: {', '.join(damaged)} (make test-cluster)" if damaged else ""


def ensure() -> None:
    """Build what is missing, or what differs from the stamp of the last build; only one process does so at a time.

    Raises RuntimeError if the machine lacks Debian's tools, and CalledProcessError if a step fails.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with _locked(cache() / "lock"):
        if missing() or _changed_programs():
            _build()


def _build() -> None:
    lacking = [name for name in _NEEDED if not shutil.which(name)]
    if lacking:
        raise RuntimeError(f"Building Kubernetes needs a Debian machine with {', '.join(lacking)}.")
    (cache() / "stamp.json").unlink(missing_ok=True)
    for name in ("packages", "source", "root", "bin"):
        shutil.rmtree(cache() / name, ignore_errors=True)
    _remove(_work())
    try:
        _say("downloading Debian's packages")
        _download()
        _unpack()
        _say(f"building Kubernetes {VERSION}: some minutes")
        _compile()
        _write_stamp()
    finally:
        _remove(_work())


def _download() -> None:
    """Download the packages with the sources that this machine is set up with, and lists of the cache's own."""
    apt = _work() / "apt"
    parts = apt / "sources.list.d"
    for directory in (parts, apt / "lists" / "partial", apt / "archives" / "partial"):
        directory.mkdir(parents=True)
    for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
        with_source = re.sub(r"(?m)^Types:.*", "Types: deb deb-src", file.read_text())
        (parts / file.name).write_text(with_source)
    lines = _lines(Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list"))
    of_packages = [line for line in lines if line.startswith("deb ")]
    of_sources = [re.sub("^deb ", "deb-src ", line) for line in of_packages]
    (apt / "sources.list").write_text("\n".join([*of_packages, *of_sources, ""]))
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt,
        "Dir::Cache::Archives": apt / "archives",
        "APT::Sandbox::User": "root",
    }
    apt_get = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt_get, "update"])
    for folder, command in (
        ("packages", ["download", *BUILD_PACKAGES, *NODE_PACKAGES]),
        ("source", ["source", "--download-only", SOURCE]),
    ):
        (_work() / folder).mkdir()
        _run([*apt_get, *command], cwd=_work() / folder)


def _lines(*files: Path) -> list[str]:
    return [line for file in files if file.exists() for line in file.read_text().splitlines()]


def _unpack() -> None:
    for package in sorted((_work() / "packages").glob("*.deb")):
        is_kept = package.name.partition("_")[0] in NODE_PACKAGES
        _run(["dpkg", "-x", str(package), str((cache() if is_kept else _work()) / "root")])
    code = _code()
    code.parent.mkdir(parents=True)
    [description] = (_work() / "source").glob("*.dsc")
    # Debian's patches are about kubectl alone.
    _run(["dpkg-source", "--no-check", "--skip-debianization", "-x", str(description), str(code)])
    # The vendored 1.0.1 reads maps as Go did before 1.18: with it the API server crashes.
    vendored = code / "vendor" / REFLECT
    shutil.rmtree(vendored)
    shutil.copytree(_work() / "root" / "usr" / "share" / "gocode" / "src" / REFLECT, vendored)


def _compile() -> None:
    _generate_openapi()
    version = {
        f"{VENDOR}/k8s.io/component-base/version.gitVersion": f"v{VERSION}",
        f"{VENDOR}/k8s.io/component-base/version.gitMajor": "1",
        f"{VENDOR}/k8s.io/component-base/version.gitMinor": "20",
        f"{VENDOR}/k8s.io/client-go/pkg/version.gitVersion": f"v{VERSION}",
    }
    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in version.items())])
    (cache() / "bin").mkdir()
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS]
    # "providerless" leaves out the clouds.
    _go("build", "-tags", "providerless", "-trimpath", "-ldflags", flags, "-o", f"{cache()}/bin/", *packages)


def _generate_openapi() -> None:
    """Generate the package that Debian's archive lacks, with the generator that it has."""
    generator, code = _work() / "openapi-gen", _code()
    _go("build", "-o", str(generator), "k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    command = [str(generator), "--logtostderr", "--input-dirs", ",".join(_packages_with_openapi())]
    command += ["--output-package", "k8s.io/kubernetes/pkg/generated/openapi"]
    command += ["--output-file-base", "zz_generated.openapi", "--output-base", str(code.parents[1])]
    command += ["--go-header-file", str(code / "hack" / "boilerplate" / "boilerplate.generatego.txt")]
    command += ["--report-filename", str(_work() / "violations")]
    _run(command, cwd=code, env=_go_environment())


def _packages_with_openapi() -> list[str]:
    code = _code()
    search = ["grep", "-rl", "--include=*.go", "+k8s:openapi-gen="]
    found = subprocess.run(
        [*search, "pkg", "cmd", "plugin", "staging"], cwd=code, stdout=subprocess.PIPE, text=True, check=True
    )
    directories = {str(Path(file).parent) for file in found.stdout.split() if not file.endswith("_test.go")}
    packages = {
        "k8s.io/kubernetes/" + re.sub("^staging/src/", "vendor/", directory)
        for directory in directories
        if not NOT_OURS.search(directory)
    }
    return sorted(packages)


def _go(*arguments: str) -> None:
    _run([str(_work() / "root" / GO / "bin" / "go"), *arguments], cwd=_code(), env=_go_environment())


def _go_environment() -> dict[str, str]:
    build = _work()
    (build / "tmp").mkdir(parents=True, exist_ok=True)
    settings = {
        "GOROOT": str(build / "root" / GO),
        "GOPATH": str(build / "gopath"),
        "GOCACHE": str(build / "gocache"),
        "GOTMPDIR": str(build / "tmp"),
        "HOME": str(build),
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    return dict(os.environ) | settings


def _work() -> Path:
    """Return the directory of what is needed only until the build has ended."""
    return cache() / "build"


def _code() -> Path:
    return _work() / "gopath" / "src" / "k8s.io" / "kubernetes"


def _write_stamp() -> None:
    packages = sorted(path.stem for path in (_work() / "packages").glob("*.deb"))
    sources = sorted(path.stem for path in (_work() / "source").glob("*.dsc"))
    programs = {name: {"size": Path(program(name)).stat().st_size, "sha256": _digest(name)} for name in PROGRAMS}
    stamp = {"recipe": RECIPE, "version": VERSION, "sources": sources, "packages": packages, "programs": programs}
    (cache() / "stamp.json").write_text(json.dumps(stamp, indent=1))


def _read_stamp() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((cache() / "stamp.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def _changed_programs() -> list[str]:
    return [name for name, facts in _read_stamp()["programs"].items() if _digest(name) != facts["sha256"]]


def _digest(name: str) -> str:
    with Path(program(name)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _remove(directory: Path) -> None:
    """Remove a directory, whose files Go has made read-only."""
    subprocess.run(["chmod", "-R", "u+w", str(directory)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(directory, ignore_errors=True)


def _run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run one step at low priority; show its output only if it fails."""
    done = subprocess.run(
        ["nice", "-n", "10", *command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        _say(done.stdout[-4000:])
        done.check_returncode()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
