"""NUMA nodes, from a folder as the kernel shows them."""

import os
from pathlib import Path

import pytest

from octavo.build import advise_on_nodes
from octavo.kernels.numa import nodes_of


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    for number, cpus in enumerate(["0-3,8\n", "4-7,9-11\n"]):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(cpus)
    (tmp_path / "node2").mkdir()
    (tmp_path / "node2" / "cpulist").write_text("\n")  # memory without cores
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "expected"), [({0, 3}, [0]), ({8}, [0]), ({9}, [1]), ({3, 4}, [0, 1]), ({12}, []), (set(), [])]
)
def test_nodes_of_cpus(two_nodes: Path, cpus: set[int], expected: list[int]) -> None:
    assert nodes_of(cpus, two_nodes) == expected


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert nodes_of({0}, tmp_path / "nothing") == []


def test_this_machine() -> None:
    assert len(nodes_of(os.sched_getaffinity(0))) <= len(os.sched_getaffinity(0))


def test_cores_on_two_nodes_are_told_of(two_nodes: Path, caplog: pytest.LogCaptureFixture) -> None:
    advise_on_nodes({0, 4}, two_nodes)
    assert "2 NUMA nodes (0, 1)" in caplog.text
    assert "numactl --cpunodebind=0 --membind=0" in caplog.text
    caplog.clear()
    advise_on_nodes({0, 1}, two_nodes)
    assert not caplog.text
