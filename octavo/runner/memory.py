"""How much memory there is to give to the KV pool."""

from pathlib import Path

_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Versions 2 and 1: folder, files of the limit and the usage, and the part of the usage that is given up when
needed (cache of files), as memory.stat names it."""


def free_memory_bytes() -> int:
    """Bytes that this process could still take: what the machine has available, within the cgroup's limit."""
    free = _machine_available()
    for folder, limit_file, usage_file, reclaimable in _CGROUPS:
        limit, usage = _read_number(Path(folder, limit_file)), _read_number(Path(folder, usage_file))
        if limit is not None and usage is not None:
            free = min(free, max(limit - usage + _statistic(Path(folder, "memory.stat"), reclaimable), 0))
    return free


def _machine_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say how much memory is available")


def _statistic(path: Path, name: str) -> int:
    """The number behind ``name`` in a file of names and numbers; 0 if it is not there."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _read_number(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is no such file, or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
