"""Pages of the KV pool that are there before they are written."""

import gc
import time
import weakref
from pathlib import Path

import pytest
import torch

from octavo.core.step import TableWrite
from octavo.kernels.interface import KVLayer, allocate_kv
from octavo.runner import page_ahead
from octavo.runner.page_ahead import PageAhead
from tests.support.waiting import wait_until

NUM_BLOCKS, BLOCK_BYTES = 4096, 2 * 3 * 64 * 16 * 4


@pytest.fixture
def layers() -> list[KVLayer]:
    """Two of 96 MB each, mapped and not written."""
    return [allocate_kv(NUM_BLOCKS, 16, 3, 64, torch.float32) for _ in range(2)]


def writes(*block_ids: int) -> list[TableWrite]:
    return [TableWrite(0, 0, number, block_id) for number, block_id in enumerate(block_ids)]


def step(ahead: PageAhead, *block_ids: int) -> None:
    ahead.step_begins(writes(*block_ids))
    ahead.step_ended()


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def wait_until_ready(ahead: PageAhead, num_blocks: int) -> None:
    wait_until(lambda: ahead.num_ready >= num_blocks, f"{ahead.num_ready} blocks were ready, not {num_blocks}")


def test_blocks_are_ready_ahead_of_those_in_use_and_no_further(layers: list[KVLayer]) -> None:
    ahead = PageAhead(layers, ahead_bytes=500 * 2 * BLOCK_BYTES)
    before = resident_bytes()
    step(ahead, 0, 99)
    wait_until_ready(ahead, 600)
    assert ahead.num_ready == 600
    taken = resident_bytes() - before
    assert 0.8 * 600 * 2 * BLOCK_BYTES < taken < 600 * 2 * BLOCK_BYTES + 32 * (2 << 20), (
        "a huge page may begin anywhere"
    )
    assert all(not tensor.any() for layer in layers for tensor in layer.tensors), "contents stay"
    step(ahead, 100)
    assert ahead._thread is None, "enough is ready"
    step(ahead, 400)
    wait_until_ready(ahead, 901)


def test_a_pool_ends_where_it_ends(layers: list[KVLayer]) -> None:
    ahead = PageAhead(layers, ahead_bytes=10 * 2 * BLOCK_BYTES)
    layers[0].keys[NUM_BLOCKS - 1] = 7.0
    step(ahead, NUM_BLOCKS - 3)
    wait_until_ready(ahead, NUM_BLOCKS)
    assert ahead.num_ready == NUM_BLOCKS
    assert layers[0].keys[NUM_BLOCKS - 1].eq(7.0).all()
    step(ahead, NUM_BLOCKS - 1)
    assert ahead._thread is None or not ahead.work()


def test_nothing_is_done_during_a_step_or_just_after(layers: list[KVLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = PageAhead(layers)
    monkeypatch.setattr(page_ahead, "_work", lambda _: None)
    ahead.step_begins(writes(5))
    assert ahead.work()
    assert ahead.num_ready == 0
    ahead.step_ended()
    assert ahead.work()
    assert ahead.num_ready == 0
    time.sleep(2 * page_ahead.QUIET_SECONDS)
    assert ahead.work()
    assert ahead.num_ready > 0


def test_where_the_system_cannot_it_is_left_alone(layers: list[KVLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_ahead, "_populate", lambda *_: False)
    ahead = PageAhead(layers)
    step(ahead, 0)
    wait_until_ready(ahead, NUM_BLOCKS)
    step(ahead, 50)
    assert ahead._thread is None or not ahead._thread.is_alive()


def test_memory_that_nobody_holds_is_let_go(layers: list[KVLayer]) -> None:
    ahead = PageAhead(layers, ahead_bytes=2 * BLOCK_BYTES)
    memory = weakref.ref(layers[1].values)
    step(ahead, 0)
    thread = ahead._thread
    ahead._is_stepping = True  # it never comes to an end by itself
    del ahead
    layers.clear()
    if thread is not None:
        thread.join(10)
        assert not thread.is_alive()
    gc.collect()
    assert memory() is None


def test_a_runner_without_memory_has_nothing_to_do() -> None:
    ahead = PageAhead([])
    step(ahead)
    assert ahead._thread is None
