"""Programs that tests need and that no package of Python's brings: from Debian's, installed where they are missing."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

_LOCK = Path(tempfile.gettempdir()) / "octavo-tests-apt.lock"


def debian_program(name: str, package: str | None = None) -> str:
    """Where the program is. If it is not there yet, its package is installed, which takes root and half a minute; one
    of several processes does it.

    Raises:
        AssertionError: it cannot be had; the test that needs it fails, and is not skipped.
    """
    with FileLock(_LOCK):
        if shutil.which(name) is None:
            package = package or name
            _apt_get("install", "--yes", "--no-install-recommends", package)
    found = shutil.which(name)
    assert found is not None, f"there is no program {name}"
    return found


def _apt_get(*command: str) -> None:
    """Again with fresh lists of packages where it fails: those of a machine that stood for a while are too old."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for prepare in ((), ("apt-get", "update")):
        if prepare:
            subprocess.run(prepare, env=environment, capture_output=True, check=False)
        done = subprocess.run(("apt-get", *command), env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    raise AssertionError(f"apt-get {' '.join(command)}: {done.stderr[-500:]}")
