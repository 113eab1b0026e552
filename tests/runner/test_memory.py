"""The memory that the KV pool may be given a share of."""

from pathlib import Path

from octavo.runner.memory import cgroup_free_bytes, free_memory_bytes


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_no_limit(tmp_path: Path) -> None:
    write(tmp_path, memory__max="max\n", memory__current="5\n")
    assert cgroup_free_bytes(tmp_path, tmp_path / "absent") is None


def test_the_tightest_enclosing_cgroup_counts_and_cached_files_are_free(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    membership.write_text("0::/a/b\n")
    write(root / "a", memory__max="1000", memory__current="900", memory__stat="anon 1\ninactive_file 300\n")
    write(root / "a" / "b", memory__max="2000", memory__current="100")
    assert cgroup_free_bytes(root, membership) == 400


def test_a_full_cgroup_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes="10", memory__usage_in_bytes="50")
    assert cgroup_free_bytes(tmp_path, tmp_path / "absent") == 0


def test_this_machine_has_some() -> None:
    assert 0 < free_memory_bytes() < 1 << 50
