"""``AsyncLLM``: the engine in its own process, streamed to asyncio, with the answers of ``LLM``."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import octavo
from octavo import (
    LLM,
    AsyncLLM,
    BeamSearchParams,
    ConfigurationError,
    EngineDeadError,
    InvalidRequestError,
    RequestOutput,
    Retention,
    SamplingParams,
    TimedOutError,
)
from tests.support.models import rand_model
from tests.support.slow_tokenizer import encode_slowly

PROMPTS = ([5, 6, 7], [8, 9, 10, 11])
PARAMS = SamplingParams(n=2, seed=3, max_tokens=6, ignore_eos=True, logprobs=1)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(folder: Path) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(str(folder), num_blocks=64) as opened:
        yield opened


async def outputs_of(
    llm: AsyncLLM, prompt: Any, params: SamplingParams | None = PARAMS, **more: Any
) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, **more)]


async def test_a_request_whose_time_is_over_raises_and_leaves_nothing(llm: AsyncLLM) -> None:
    long = SamplingParams(n=2, max_tokens=900, ignore_eos=True)
    ended, other = await asyncio.gather(
        outputs_of(llm, PROMPTS[0], long, timeout=0.05), outputs_of(llm, PROMPTS[1]), return_exceptions=True
    )
    assert isinstance(ended, TimedOutError)
    assert isinstance(other, list)
    assert other[-1].finished
    with pytest.raises(TimedOutError):
        await llm.beam_search(PROMPTS[0], BeamSearchParams(2, 500, ignore_eos=True), timeout=0.01)
    await outputs_of(llm, PROMPTS[1])  # its last news is of a later step
    metrics = await llm.get_metrics()
    assert (metrics.num_running, metrics.num_waiting, metrics.num_active_blocks) == (0, 0, 0)


async def test_the_time_for_tokenizing_counts(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_slowly(llm.get_tokenizer(), 0.3, monkeypatch)
    with pytest.raises(TimedOutError, match=r"may take 0\.2 s"):
        await outputs_of(llm, "a", timeout=0.2)


async def test_requests_side_by_side_have_the_answers_of_llm(llm: AsyncLLM, folder: Path) -> None:
    streams = await asyncio.gather(*(outputs_of(llm, prompt, request_id="mine") for prompt in PROMPTS))
    for expected, outputs in zip(LLM(str(folder), num_blocks=64).generate(list(PROMPTS), PARAMS), streams, strict=True):
        last = outputs[-1]
        assert last.outputs == expected.outputs
        assert last.request_id == "mine"
        assert last.prompt_token_ids == expected.prompt_token_ids
        assert [times.num_generation_tokens for times in last.metrics] == [6, 6]
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        for choice in range(2):
            lengths = [len(output.outputs[choice].token_ids) for output in outputs]
            assert lengths == sorted(lengths), "each output holds what the one before it held"


async def test_a_text_and_a_conversation(llm: AsyncLLM) -> None:
    tokenizer = llm.get_tokenizer()
    *_, last = await outputs_of(llm, "hello", SamplingParams(max_tokens=2))
    assert (last.prompt, last.prompt_token_ids) == ("hello", tokenizer.encode("hello"))
    messages = [{"role": "user", "content": "hello"}]
    expected = tokenizer.apply_chat_template(messages)
    outputs = [output async for output in llm.chat(messages, SamplingParams(max_tokens=2))]
    assert (outputs[-1].prompt, outputs[-1].prompt_token_ids) == (None, expected)


async def test_without_params_max_tokens_gives_way_to_the_room(llm: AsyncLLM) -> None:
    prompt = [5, 6, 7, 8] * (llm._running.limits.max_model_len // 4 - 1)
    *_, last = await outputs_of(llm, prompt, None)
    assert 1 <= len(last.outputs[0].token_ids) <= 4
    with pytest.raises(InvalidRequestError, match="for the output"):
        await outputs_of(llm, prompt, SamplingParams())


async def test_a_closed_stream_is_aborted(llm: AsyncLLM) -> None:
    async with aclosing(llm.generate(PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True))) as outputs:
        await anext(outputs)
    for _ in range(500):
        metrics = await llm.get_metrics()
        if metrics.aborted:
            break
        await asyncio.sleep(0.01)
    assert (metrics.aborted, metrics.num_running, metrics.num_active_blocks) == (1, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], PARAMS, "empty"),
        ([10**6], PARAMS, "outside the vocabulary|the vocabulary has ids"),
        (5, PARAMS, "must be a text or a list of token ids"),
        ([1], {"n": 1}, "must be SamplingParams"),
        ([1], SamplingParams(max_tokens=10**6), "this request needs"),
    ],
)
async def test_what_can_never_run_is_refused(llm: AsyncLLM, prompt: Any, params: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        await outputs_of(llm, prompt, params)


async def test_the_prefix_cache_is_shared_by_salt_and_can_be_reset(llm: AsyncLLM) -> None:
    prompt = list(range(1, 40))

    async def num_cached(salt: str) -> int:
        return (await outputs_of(llm, prompt, cache_salt=salt))[-1].num_cached_tokens

    assert [await num_cached(salt) for salt in ("a", "a", "b")] == [0, 38, 0]
    await llm.reset_prefix_cache()
    assert await num_cached("a") == 0


async def test_beam_search_finds_what_llm_finds(llm: AsyncLLM, folder: Path) -> None:
    params = BeamSearchParams(3, max_tokens=5)
    found = await asyncio.gather(*(llm.beam_search(prompt, params) for prompt in PROMPTS))
    assert found == LLM(str(folder), num_blocks=64).beam_search(list(PROMPTS), params)
    with pytest.raises(InvalidRequestError, match="must be BeamSearchParams"):
        await llm.beam_search(PROMPTS[0], PARAMS)  # type: ignore[arg-type]


async def test_what_a_search_asks_for_is_not_shortened(llm: AsyncLLM) -> None:
    prompt = [5, 6, 7, 8] * (llm._running.limits.max_model_len // 4 - 1)
    with pytest.raises(InvalidRequestError, match="for the output"):
        await llm.beam_search(prompt, BeamSearchParams(1, max_tokens=5))


async def test_pins(llm: AsyncLLM) -> None:
    head = list(range(50, 82))
    expected = (await outputs_of(llm, [*head, 1]))[-1].outputs
    pin = await llm.pin(head, ttl=3600, cache_salt="a")
    assert (pin.num_tokens, pin.cache_salt) == (32, "a")
    assert await llm.pins() == [pin]
    await llm.reset_prefix_cache()
    last = (await outputs_of(llm, [*head, 1], cache_salt="a"))[-1]
    assert (last.num_cached_tokens, last.outputs) == (32, expected)
    assert await llm.unpin(pin.pin_id)
    assert not await llm.unpin(pin.pin_id)
    assert await llm.pins() == []
    talk = await llm.pin([{"role": "system", "content": "Answer in as few words as you can."}])
    assert await llm.unpin(talk.pin_id)
    with pytest.raises(InvalidRequestError, match="pin_quota"):
        await llm.pin(list(range(300)))


async def test_retention(llm: AsyncLLM) -> None:
    """What is of a higher priority outlives what came later."""
    await llm.reset_prefix_cache()
    kept, lost = list(range(100, 140)), list(range(200, 240))
    await outputs_of(llm, kept, retention=Retention(80))
    await outputs_of(llm, lost)
    for start in range(8):
        await outputs_of(llm, [start + 1] * 150, SamplingParams(max_tokens=1))
    assert (await outputs_of(llm, lost))[-1].num_cached_tokens == 0
    assert (await outputs_of(llm, kept))[-1].num_cached_tokens >= 32
    with pytest.raises(InvalidRequestError, match="retention must be Retention, got 80"):
        await outputs_of(llm, kept, retention=80)


async def test_a_model_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        await AsyncLLM("/nowhere/model.gguf").start()


async def test_settings_found_wrong_in_the_engines_process(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot hold one sequence"):
        await AsyncLLM(str(folder), kv_cache_memory_bytes=100).start()


async def test_after_the_end(llm: AsyncLLM) -> None:
    """The last test of this file: it ends the engine."""
    running = asyncio.create_task(outputs_of(llm, PROMPTS[0], SamplingParams(max_tokens=200, ignore_eos=True)))
    await asyncio.sleep(0.05)
    await llm.close()
    await llm.close()
    with pytest.raises(EngineDeadError):
        await running
    with pytest.raises(EngineDeadError, match="not running"):
        await outputs_of(llm, PROMPTS[0])


UNGUARDED = """
import asyncio
from octavo import AsyncLLM, SamplingParams

async def main():
    async with AsyncLLM({model!r}, num_blocks=16, threads=1) as llm:
        async for output in llm.generate([1, 2, 3], SamplingParams(max_tokens=2)):
            pass
    print("the end")

"""


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
async def test_a_script_without_its_guard_is_told_of_it(folder: Path, tmp_path: Path, guard: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(model=str(folder)) + guard + "asyncio.run(main())\n")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(octavo.__file__).parents[1])},
    )
    if guard:
        assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("Traceback") == 1, done.stderr
    *_, told = done.stderr.splitlines()
    assert "ConfigurationError: The engine's process cannot be started from here" in told
    assert told.endswith('with what it does under `if __name__ == "__main__":`.')


async def test_a_script_that_is_no_file_is_told_too(folder: Path) -> None:
    """What comes from standard input cannot be read again."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-"],
        input=UNGUARDED.format(model=str(folder)) + "asyncio.run(main())\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(octavo.__file__).parents[1],
    )
    assert "before it said a word. Note that the new process reads the script" in done.stderr.splitlines()[-1]


async def test_asking_needs_no_tensor_library() -> None:
    code = "import sys; from octavo import AsyncLLM; AsyncLLM(); assert 'torch' not in sys.modules"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=True)
