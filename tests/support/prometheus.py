"""Prometheus and its promtool, of Debian's package, which is fetched and unpacked once where the machine has none: no
service is installed or started, and nobody has to be root once the package lists are there."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock


def tool(name: str) -> Path:
    """``prometheus`` or ``promtool``."""
    installed = shutil.which(name)
    if installed is not None:
        return Path(installed)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo" / "tools"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "prometheus"
    with FileLock(cache / "prometheus.lock"):
        if not folder.exists():
            _fetch(folder)
    return folder / "usr" / "bin" / name


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        download = ["apt-get", "download", "--quiet", "prometheus"]
        if subprocess.run(download, cwd=work, capture_output=True, check=False).returncode:
            subprocess.run(["apt-get", "update", "--quiet"], check=True, capture_output=True)
            subprocess.run(download, cwd=work, check=True, capture_output=True)
        (package,) = Path(work).glob("prometheus_*.deb")
        unpacked = Path(work) / "unpacked"
        subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True)
        unpacked.rename(folder)
