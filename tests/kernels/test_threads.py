"""The pool of native threads: many short loops, calls from several Python threads at once, changing sizes."""

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
    x, y = random_rows(40_000), random_rows(40_000, seed=1)
    expected = x + y
    for turn in range(300):
        pool.set_num_threads(1 + turn % 4)
        if turn % 50 == 0:
            time.sleep(0.002)  # longer than workers spin: they must be woken
        assert torch.equal(pool.add(x.clone(), y), expected)


def test_a_pool_has_at_least_the_calling_thread(pool: CpuOps) -> None:
    pool.set_num_threads(0)
    assert pool.num_threads == 1
