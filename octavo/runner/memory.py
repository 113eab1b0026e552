"""How much memory there is to give to the KV pool."""

from pathlib import Path

from octavo.kernels.cgroup import MEMBERSHIP, ROOT, own_cgroups

_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Of a cgroup, versions 2 and 1: its limit, its usage, and where it says how much of the usage is given up when needed
(cached files), under which name."""


def free_memory_bytes() -> int:
    """Bytes that this process could still take: what the machine has available, within the limits of its cgroups."""
    available, granted = _machine_available(), cgroup_free_bytes()
    return available if granted is None else min(available, granted)


def cgroup_free_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """What the tightest enclosing cgroup leaves; None: no limit."""
    left = []
    for folder in own_cgroups(root, membership):
        for limit_file, usage_file, statistics, reclaimable in _FILES:
            limit, usage = _read_number(folder / limit_file), _read_number(folder / usage_file)
            if limit is not None and usage is not None:
                left.append(max(limit - usage + _statistic(folder / statistics, reclaimable), 0))
    return min(left, default=None)


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
