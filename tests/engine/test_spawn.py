"""The process of an engine that is to be: it waits for its work, and for nothing else."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from octavo.engine.spawn import SpawnedProcess
from tests.support.waiting import wait_until

_STARTS_AND_SLEEPS = """
import sys, time
from octavo.engine.spawn import SpawnedProcess

if __name__ == "__main__":
    spawned = SpawnedProcess(sys.argv[1:])
    print(spawned.process.pid, flush=True)
    time.sleep(60)
"""


def _exit_with(code: int, module: str) -> None:
    sys.exit(code if module in sys.modules else 1)


def test_it_imports_and_then_does_what_it_is_told() -> None:
    spawned = SpawnedProcess(["wave", "there_is.no_such_module"])
    spawned.begin(_exit_with, 7, "wave")
    spawned.process.join(30)
    assert spawned.process.exitcode == 7


def test_what_never_begins_ends_with_its_block() -> None:
    with SpawnedProcess() as spawned:
        assert spawned.process.is_alive()
    spawned.process.join(5)
    assert spawned.process.exitcode == -signal.SIGKILL


def test_what_has_begun_outlives_its_block() -> None:
    with SpawnedProcess() as spawned:
        spawned.begin(time.sleep, 0.2)
    spawned.process.join(30)
    assert spawned.process.exitcode == 0


def test_it_obeys_no_signal_but_its_parents() -> None:
    """Ctrl-C and a supervisor's SIGTERM reach the whole group; the parent decides."""
    with SpawnedProcess(["wave"]) as spawned:
        pid = spawned.process.pid
        assert pid is not None
        wait_until(lambda: {signal.SIGINT, signal.SIGTERM} <= _ignored(pid))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        spawned.begin(_exit_with, 7, "wave")
        spawned.process.join(30)
    assert spawned.process.exitcode == 7


def test_one_that_has_died_is_told_nothing() -> None:
    spawned = SpawnedProcess()
    spawned.process.kill()
    spawned.process.join()
    spawned.begin(_exit_with, 7, "wave")
    assert spawned.process.exitcode == -signal.SIGKILL


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_STARTS_AND_SLEEPS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: signal.SIGTERM in _ignored(child))
        parent.kill()
    wait_until(lambda: not _runs(child))


def test_a_parent_that_has_no_work_for_it_can_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_STARTS_AND_SLEEPS.replace("time.sleep(60)", "time.sleep(0.5)"))
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    wait_until(lambda: not _runs(int(done.stdout)))


def _ignored(pid: int) -> set[int]:
    """Signals that a process ignores."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def _runs(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False
