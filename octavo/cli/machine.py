"""What a figure was measured on: it means little without this."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from octavo import __version__

_PACKAGES = ("torch", "transformers", "numpy")
"""Installed versions that change figures."""


def describe_machine() -> dict[str, object]:
    """Processor, cores that this process may use, system, Python, packages, and the time now (UTC)."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine_line() -> str:
    """The same in one line for people."""
    machine = describe_machine()
    hardware = f"{machine['cpu']}, {machine['cores']} cores"
    return f"Octavo {__version__}, Python {machine['python']}, {hardware}, {machine['date']}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
