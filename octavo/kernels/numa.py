"""Which nodes of memory the cores of this process are near to. Weights and KV memory lie on one, or on none in
particular: a core that reads another node's waits longer."""

from collections.abc import Collection
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def nodes_of(cpus: Collection[int], nodes: Path = NODES) -> list[int]:
    """Numbers of the NUMA nodes that have one of these CPUs; none where the system does not tell."""
    found = []
    for path in nodes.glob("node[0-9]*/cpulist"):
        try:
            listed = _parse(path.read_text())
        except (OSError, ValueError):
            continue
        if not listed.isdisjoint(cpus):
            found.append(int(path.parent.name.removeprefix("node")))
    return sorted(found)


def _parse(cpulist: str) -> set[int]:
    """The CPUs of a list like ``0-3,8``."""
    cpus: set[int] = set()
    for part in filter(None, cpulist.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
