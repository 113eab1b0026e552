"""Which back end, instruction set and number of threads run, and what is said when they cannot."""

import ctypes
import logging
import shutil
from pathlib import Path
from typing import cast

import pytest

from octavo.core.errors import ConfigurationError
from octavo.kernels import native, registry
from octavo.kernels.cpu import CpuOps
from octavo.kernels.reference import ReferenceOps
from octavo.kernels.registry import select_ops
from tests.kernels.cases import BACKENDS


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_BACKEND", "OCTAVO_ISA", "OCTAVO_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "LIBRARY_PATH", tmp_path / "missing.so")
    monkeypatch.setattr(registry, "_warned", set())


def test_the_native_kernels_are_built_and_chosen_where_there_is_a_compiler() -> None:
    built = native.LIBRARY_PATH.exists()
    assert built or not (shutil.which("c++") or shutil.which("g++"))
    assert isinstance(select_ops(), CpuOps if built else ReferenceOps)


def test_a_back_end_is_chosen_by_name_or_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    assert isinstance(select_ops(), ReferenceOps)
    monkeypatch.setenv("OCTAVO_BACKEND", "gpu")
    with pytest.raises(ConfigurationError, match="'gpu'; choose one of: cpu, reference"):
        select_ops()
    assert isinstance(select_ops("reference"), ReferenceOps)


def test_without_the_library_the_reference_runs_and_says_so_once(
    no_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(select_ops(), ReferenceOps)
        assert isinstance(select_ops(), ReferenceOps)
    [record] = caplog.records
    assert "install a C++17 compiler" in record.message
    assert "reference kernels" in record.message


def test_without_the_library_asking_for_it_is_an_error(no_library: None) -> None:
    with pytest.raises(ConfigurationError, match="were not built"):
        select_ops("cpu")


def test_a_library_that_cannot_be_loaded_counts_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "LIBRARY_PATH", broken)
    with pytest.raises(native.NativeLibraryMissingError, match="cannot be loaded"):
        select_ops("cpu")


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "_native.so"
    shutil.copy(native.LIBRARY_PATH, library)
    monkeypatch.setattr(native, "LIBRARY_PATH", library)
    changed = tmp_path / "octavo_kernels.h"
    changed.write_bytes(native.HEADER_PATH.read_bytes() + b"// one more call\n")
    monkeypatch.setattr(native, "HEADER_PATH", changed)
    with pytest.raises(ConfigurationError, match=r"earlier or later version of these sources.*make install"):
        select_ops()


def test_a_library_without_its_sources_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "_native.so"
    shutil.copy(native.LIBRARY_PATH, library)
    monkeypatch.setattr(native, "LIBRARY_PATH", library)
    monkeypatch.setattr(native, "HEADER_PATH", tmp_path / "octavo_kernels.h")
    assert isinstance(select_ops(), CpuOps)


def test_a_library_that_says_nothing_of_its_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        pass

    with pytest.raises(ConfigurationError, match="make install"):
        native._check_interface(cast("ctypes.CDLL", Library()))


def test_an_instruction_set_is_forced_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_ISA", "portable")
    assert CpuOps().isa == "portable"
    monkeypatch.setenv("OCTAVO_ISA", "sse9")
    with pytest.raises(ConfigurationError, match="choose one of: avx512, avx2, portable"):
        CpuOps()
    monkeypatch.delenv("OCTAVO_ISA")
    assert CpuOps().isa == BACKENDS[1].removeprefix("cpu-")


class MachineOfLess:
    """A library whose machine has no instruction set that is asked for by name."""

    @staticmethod
    def octavo_set_isa(name: bytes | None) -> int:
        return native.OK if name is None else native.UNSUPPORTED


def test_an_instruction_set_that_the_machine_does_not_have_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        native.set_isa(cast("ctypes.CDLL", MachineOfLess()), "avx512")
    assert str(refusal.value) == "OCTAVO_ISA=avx512: this machine does not have that instruction set; unset it."


def test_the_instruction_set_in_use_is_the_best_that_the_processor_names() -> None:
    processor = Path("/proc/cpuinfo").read_text()
    flags = set(next((line for line in processor.splitlines() if line.startswith("flags")), "").split())
    needed = {"avx2": {"avx2", "fma", "f16c"}, "portable": set[str]()}
    needed["avx512"] = needed["avx2"] | {f"avx512{part}" for part in ("f", "bw", "dq", "vl", "_vnni")}
    assert CpuOps().isa == next(isa for isa in native.ISAS if needed[isa] <= flags)


def test_threads_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_THREADS", "3")
    assert CpuOps().num_threads == 3
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("OCTAVO_THREADS", wrong)
        with pytest.raises(ConfigurationError, match=f"OCTAVO_THREADS={wrong}"):
            CpuOps()
    monkeypatch.delenv("OCTAVO_THREADS")
    assert CpuOps().num_threads == native.default_num_threads() >= 1


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_tightest_cgroup_quota_counts(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "0::/pod/container\n")
    assert native.cgroup_cpu_quota(root, membership) is None
    write(root / "pod" / "cpu.max", "150000 100000\n")
    write(root / "pod" / "container" / "cpu.max", "max 100000\n")
    assert native.cgroup_cpu_quota(root, membership) == 1.5
    assert native.cgroup_cpu_quota(root, tmp_path / "absent") is None


def test_the_older_cgroup_version_is_read_too(tmp_path: Path) -> None:
    membership = tmp_path / "self"
    write(membership, "4:cpu,cpuacct:/\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1\n")
    assert native.cgroup_cpu_quota(tmp_path, membership) is None
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "200000\n")
    assert native.cgroup_cpu_quota(tmp_path, membership) == 2.0
