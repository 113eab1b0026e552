"""Other projects' clients run in a Python environment of their own, kept in the cache folder from run to run: what they
bring along (100 packages) has no place beside Octavo, and must not decide what versions Octavo is tested with.

What both need, torch above all, is not installed twice: packages of this environment are found after the client's own.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from octavo.loading.pull import cache_dir

ROOT = Path(__file__).parents[2]
PINS = ROOT / "tests" / "clients" / "constraints.txt"
SCRIPTS = ROOT / "tests" / "clients" / "scripts"

_MARK = ".installed"
_BELOW = "OCTAVO_TEST_SITE_PACKAGES"
# Checkouts that are tested in turn share an environment, so it learns by a variable whose packages lie below it.
_SITE_CUSTOMIZE = f"import os, sys\n\nsys.path.extend(os.environ.get({_BELOW!r}, '').split())\n"


def client_python() -> Path:
    """The interpreter of the environment, which is made first where it is not there; a failure of pip raises."""
    pins = PINS.read_bytes() + (ROOT / "constraints.txt").read_bytes() + sys.version.encode()
    folder = cache_dir() / "clients" / hashlib.sha256(pins + _SITE_CUSTOMIZE.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / _MARK).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder, python)
            (folder / _MARK).touch()
    return python


def _install(folder: Path, python: Path) -> None:
    venv.create(folder)
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site_packages / "sitecustomize.py").write_text(_SITE_CUSTOMIZE, encoding="utf-8")
    # The pins name each package, so nothing has to be resolved; most of what is installed is never imported.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-compile"]
    flags = ["--quiet", "--disable-pip-version-check", "--no-input", "--root-user-action", "ignore"]
    done = subprocess.run([*pip, *flags, "--requirement", str(PINS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the clients cannot be installed:\n{done.stderr}"


def run_script(name: str, arguments: Iterable[object], seconds: float = 240.0, **variables: str) -> str:
    """What a script of tests/clients/scripts writes to stdout; it has to end well."""
    command = [str(client_python()), str(SCRIPTS / name), *map(str, arguments)]
    variables |= {_BELOW: sysconfig.get_path("purelib"), "PYTHONNOUSERSITE": "1"}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds, env=inherited | variables
    )
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout
