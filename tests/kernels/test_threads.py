"""The pool of native threads: many short loops, calls from several Python threads at once, changing sizes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import Ops
from tests.kernels.cases import random_rows


@pytest.fixture
def pool(cpu_ops: Ops) -> Iterator[CpuOps]:
    assert isinstance(cpu_ops, CpuOps)
    before = cpu_ops.num_threads
    yield cpu_ops
    cpu_ops.set_num_threads(before)


def test_calls_from_several_python_threads_take_turns(pool: CpuOps) -> None:
    pool.set_num_threads(3)
    linear = pool.make_linear(random_rows(400, 300))
    inputs = [random_rows(5, 300, seed=i) for i in range(8)]
    expected = [pool.linear(x, linear) for x in inputs]

    def repeat(index: int) -> bool:
        return all(torch.equal(pool.linear(inputs[index], linear), expected[index]) for _ in range(50))

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(repeat, range(8)))


def test_loops_short_and_after_sleep_and_with_changing_sizes_all_complete(pool: CpuOps) -> None:
    x, y = random_rows(40, 1000), random_rows(40, 1000, seed=1)
    expected = x + y
    for turn in range(300):
        pool.set_num_threads(1 + turn % 4)
        if turn % 50 == 0:
            time.sleep(0.002)  # longer than workers spin: they must be woken
        assert torch.equal(pool.add(x.clone(), y), expected)


def test_a_pool_has_at_least_the_calling_thread(pool: CpuOps) -> None:
    pool.set_num_threads(0)
    assert pool.num_threads == 1


FORKED_AND_STARVED = """
import os, resource, torch

torch.set_num_threads(1)  # the threads of OpenMP do not outlive a fork; ours are what is tested
from octavo.kernels.cpu import CpuOps

ops = CpuOps()
ops.set_num_threads(4)
x, y = torch.randn(400, 1000), torch.randn(400, 1000)
expected = ops.add(x.clone(), y)
child = os.fork()
if child == 0:
    right = torch.equal(ops.add(x.clone(), y), expected)
    os._exit(0 if right and len(os.listdir("/proc/self/task")) == 4 else 1)
assert os.waitpid(child, 0)[1] == 0, "the child has threads of its own"

copy = x.clone()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20),) * 2)
ops.set_num_threads(64)
assert torch.equal(ops.add(copy, y), expected)
assert ops.num_threads < 64, "no room for their stacks"
"""


def test_a_forked_child_and_a_machine_without_more_threads() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED_AND_STARVED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
