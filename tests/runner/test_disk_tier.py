"""The disk tier in whole engines: a restart begins warm with the same bits, and a damaged file costs time only."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM
from octavo.core.errors import ConfigurationError
from octavo.core.step import DiskMoves, DiskRead, DiskWrite
from octavo.kernels.interface import KVLayer, allocate_kv
from octavo.llm import RequestOutput
from octavo.runner.disk_tier import DamagedSlotError, DiskStore
from octavo.runner.slot_file import FILE_NAME, PAGE_BYTES, Contents, SlotFile, open_slot_file
from tests.support.driving import greedy_params
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PROMPT = random_ids(50, RAND_VOCAB, seed=1)
OTHERS = [random_ids(60, RAND_VOCAB, seed=seed) for seed in range(2, 6)]
NAME = b"n" * 16


# --- blocks ----------------------------------------------------------------------------------------------------------


def _layers(dtype: torch.dtype, seed: int) -> list[KVLayer]:
    """Three layer slots of four blocks, every byte of them random."""
    layers = [allocate_kv(4, 16, 2, 8, dtype) for _ in range(3)]
    generator = torch.Generator().manual_seed(seed)
    for layer in layers:
        for tensor in layer.tensors:
            every = tensor.view(-1).view(torch.uint8)
            every.copy_(torch.randint(256, every.shape, generator=generator, dtype=torch.uint8))
    return layers


def _block(layers: list[KVLayer], block_id: int) -> list[bytes]:
    return [tensor[block_id].view(-1).view(torch.uint8).numpy().tobytes() for each in layers for tensor in each.tensors]


def _slot_file(folder: Path, layers: list[KVLayer]) -> SlotFile:
    contents = Contents(sum(map(len, _block(layers, 0))), b"f" * 16)
    file = open_slot_file(folder, PAGE_BYTES + 2 * contents.slot_bytes, contents)
    assert file is not None
    return file


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_blocks_go_and_come_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    device, host = _layers(dtype, 1), _layers(dtype, 2)
    expected = [_block(host, 3), _block(device, 1)]
    untouched = [_block(device, block_id) for block_id in (1, 3)]
    store = DiskStore(_slot_file(tmp_path, device), device, host)
    store.write(DiskMoves(writes=(DiskWrite(3, True, 0, NAME, 0), DiskWrite(1, False, 1, NAME + b"\x01", 1))))
    store.read(DiskMoves(reads=(DiskRead(0, NAME, 0), DiskRead(1, NAME + b"\x01", 2))))
    assert [_block(device, block_id) for block_id in (0, 2)] == expected
    assert [_block(device, block_id) for block_id in (1, 3)] == untouched
    store.write(DiskMoves(drops=(0,)))
    with pytest.raises(DamagedSlotError, match="slot 0"):
        store.read(DiskMoves(reads=(DiskRead(0, NAME, 0),)))
    store.close()
    assert [block.slot for block in _slot_file(tmp_path, device).stored()] == [1]


# --- engines ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


def _llm(model: Path, folder: Path | None, **settings: Any) -> LLM:
    sizes = {"num_blocks": 12, "block_size": 8, "max_model_len": 80, "max_num_seqs": 2, "swap_space": 0}
    on_disk = {} if folder is None else {"prefix_cache_dir": str(folder), "prefix_cache_disk_space": 0.01}
    return LLM(str(model), **sizes | on_disk | settings)


def _ask(llm: LLM, prompt: list[int] = PROMPT) -> RequestOutput:
    return llm.generate(prompt, greedy_params(12, logprobs=3))[0]


def _bits(output: RequestOutput) -> tuple[Any, ...]:
    return output.outputs[0].token_ids, output.outputs[0].logprobs


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_dtype": "int8"},
        {"backend": "reference"},
        {"swap_space": 0.001, "prefix_cache_on_host": True},
    ],
    ids=["fp32", "int8", "reference", "host tier"],
)
def test_a_restart_begins_warm_with_the_same_bits(rand: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    with _llm(rand, None, **settings | {"enable_prefix_caching": False, "prefix_cache_on_host": False}) as alone:
        expected = _bits(_ask(alone))
    with _llm(rand, tmp_path, **settings) as first:
        assert _ask(first).num_cached_tokens == 0
    with _llm(rand, tmp_path, **settings) as second:
        answer = _ask(second)
        assert answer.num_cached_tokens == 48
        assert _bits(answer) == expected


def test_a_restart_begins_warm_with_layer_groups(tmp_path: Path) -> None:
    model = rand_model(tmp_path / "model", "gemma3")
    prompt = PROMPT[:40]
    with _llm(model, None, enable_prefix_caching=False, num_blocks=72) as alone:
        expected = _bits(_ask(alone, prompt))
    for num_cached in (0, 32):
        with _llm(model, tmp_path, num_blocks=72) as llm:
            answer = _ask(llm, prompt)
            assert (answer.num_cached_tokens, _bits(answer)) == (num_cached, expected)


def test_what_the_pool_evicts_comes_back(rand: Path, tmp_path: Path) -> None:
    with _llm(rand, tmp_path) as llm:
        expected = _bits(_ask(llm))
        for other in OTHERS:
            _ask(llm, other)
        answer = _ask(llm)
        assert (answer.num_cached_tokens, _bits(answer)) == (48, expected)
        stats = llm.get_metrics()
        assert (stats.prefix_hits, stats.disk_read_blocks) == (48, 6)
        assert 6 < stats.disk_written_blocks == stats.num_disk_cached_blocks < stats.num_disk_blocks


def test_a_process_that_was_not_closed_leaves_what_it_evicted(rand: Path, tmp_path: Path) -> None:
    llm = _llm(rand, tmp_path)
    expected = _bits(_ask(llm))
    for other in OTHERS:
        _ask(llm, other)
    del llm  # as little is done at its end as if it had been killed
    with _llm(rand, tmp_path) as second:
        answer = _ask(second)
        assert (answer.num_cached_tokens, _bits(answer)) == (48, expected)


def test_a_damaged_file_costs_time_only(rand: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _llm(rand, tmp_path) as first:
        expected = _bits(_ask(first))
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    for page in range(PAGE_BYTES, len(data), PAGE_BYTES):  # somewhere in every block, and not in its header
        data[page + 200] ^= 0x55
    path.write_bytes(data)
    with _llm(rand, tmp_path) as second:
        answer = _ask(second)
        assert (answer.num_cached_tokens, _bits(answer)) == (0, expected)
        assert second.get_metrics().prefix_hits == 0
    assert [record.levelname for record in caplog.records if "is damaged" in record.getMessage()] == ["WARNING"]
    caplog.clear()
    with _llm(rand, tmp_path) as third:
        answer = _ask(third)
        assert (answer.num_cached_tokens, _bits(answer)) == (48, expected)
    assert "is damaged" not in caplog.text


def test_other_settings_begin_cold(rand: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _llm(rand, tmp_path) as first:
        _ask(first)
    with _llm(rand, tmp_path, kv_cache_dtype="int8") as second:
        assert _ask(second).num_cached_tokens == 0
    assert "is of another model, of other settings or of another back end" in caplog.text


def test_a_salt_is_a_salt_after_a_restart(rand: Path, tmp_path: Path) -> None:
    with _llm(rand, tmp_path) as first:
        _ask(first)
    with _llm(rand, tmp_path) as second:
        (output,) = second.generate(PROMPT, greedy_params(2), cache_salt="mine")
        assert output.num_cached_tokens == 0


def test_a_reset_empties_the_file(rand: Path, tmp_path: Path) -> None:
    with _llm(rand, tmp_path) as first:
        _ask(first)
    with _llm(rand, tmp_path) as second:
        second.reset_prefix_cache()
    with _llm(rand, tmp_path) as third:
        assert _ask(third).num_cached_tokens == 0


@pytest.mark.parametrize("is_running", [False, True])
def test_a_reset_empties_the_file_at_once(rand: Path, tmp_path: Path, is_running: bool) -> None:
    """What a process that is killed right after it leaves on disk, copied."""
    with _llm(rand, tmp_path) as first:
        expected = _bits(_ask(first))
    with _llm(rand, tmp_path) as second:
        stream = second.stream(PROMPT, greedy_params(12))
        if is_running:
            next(stream)
        second.reset_prefix_cache()
        killed = tmp_path / "killed"
        killed.mkdir()
        shutil.copy(tmp_path / FILE_NAME, killed)
        with _llm(rand, killed) as third:
            answer = _ask(third)
            assert (answer.num_cached_tokens, _bits(answer)) == (0, expected)
        assert sum(len(delta.token_ids) for delta in stream) == 12 - is_running
        answer = _ask(second)
        assert _bits(answer) == expected


def test_the_file_keeps_its_bound(rand: Path, tmp_path: Path) -> None:
    space = 0.0001
    with _llm(rand, tmp_path, prefix_cache_disk_space=space) as llm:
        num_slots = llm._engine._scheduler.kv.config.num_disk_slots
        for other in OTHERS:
            _ask(llm, other)
        assert llm._engine._scheduler.kv.host.disk.pool.num_named == num_slots > 0
    assert (tmp_path / FILE_NAME).stat().st_size <= space * 2**30


def test_closing_ends_what_runs_and_may_be_repeated(rand: Path, tmp_path: Path) -> None:
    llm = _llm(rand, tmp_path)
    stream = llm.stream(PROMPT, greedy_params(12))
    next(stream)
    llm.close()
    llm.close()
    with _llm(rand, tmp_path) as second:
        assert _ask(second).num_cached_tokens == 48


def test_two_at_a_time_are_refused(rand: Path, tmp_path: Path) -> None:
    with _llm(rand, tmp_path), pytest.raises(ConfigurationError, match="in use by another Octavo"):
        _llm(rand, tmp_path)


def test_a_full_disk_is_told_once_and_served_without(
    rand: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), _llm(rand, tmp_path, prefix_cache_disk_space=2**19) as llm:
        _ask(llm)
        assert _ask(llm).num_cached_tokens >= 48
    (record,) = [record for record in caplog.records if "disk" in record.getMessage()]
    assert record.getMessage().startswith("The prefix cache is not kept on disk")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix_cache_disk_space": 1.0}, "prefix_cache_disk_space of 1.0 GiB needs a folder, prefix_cache_dir"),
        ({"prefix_cache_dir": "x", "enable_prefix_caching": False}, "keeps nothing while enable_prefix_caching is off"),
        ({"prefix_cache_dir": "x", "prefix_cache_disk_space": 0}, "must be a number of GiB above 0, got 0"),
        ({"prefix_cache_dir": " "}, "prefix_cache_dir is empty"),
        ({"prefix_cache_dir": "x", "prefix_cache_disk_space": "4"}, "must be a number, got '4'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LLM(**settings)
