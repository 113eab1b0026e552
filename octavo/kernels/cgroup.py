"""The control groups that bound this process, for what must respect their limits: threads and memory."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def own_cgroups(root: Path, membership: Path) -> list[Path]:
    """The cgroup (version 2) of this process and all above it, up to the mount."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return [root]
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folder = root / own
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
