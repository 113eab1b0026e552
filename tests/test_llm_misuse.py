"""``LLM`` used wrongly, or interrupted: one clear sentence, nothing left behind."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo import LLM, InvalidRequestError, SamplingParams
from octavo.core.errors import ConfigurationError, OctavoError
from octavo.engine.interrupts import interrupts_wait
from octavo.engine.messages import OutputDelta
from octavo.outputs import raise_for
from tests.support.models import rand_model

GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(rand_model(tmp_path_factory.mktemp("rand")))


@pytest.fixture(scope="module")
def llm(folder: str) -> LLM:
    return LLM(folder, num_blocks=64, block_size=4)


def is_empty(llm: LLM) -> bool:
    metrics = llm.get_metrics()
    return (metrics.num_running, metrics.num_waiting, metrics.num_active_blocks) == (0, 0, 0)


BAD_PROMPTS: dict[str, Any] = {
    "None": None,
    "number": 5,
    "empty": [[]],
    "fractions": [1.5],
    "NaN": [float("nan")],
    "nested fractions": [[1.5]],
    "nested texts": [["1"]],
    "too deep": [[[1]]],
    "None among texts": ["a", None],
    "None among ids": [[1, None]],
    "text among ids": [1, "a"],
    "truths": [True, False],
    "bytes": b"abc",
    "object": {"prompt": "a"},
    "objects": [{"prompt_token_ids": [1]}],
    "half a surrogate pair": ["fine", "\ud800"],
    "huge id": [10**30],
    "more digits than Python prints": [10**5000],
    "negative id": [-1],
}


@pytest.mark.parametrize("prompts", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(prompts, GREEDY)
    assert is_empty(llm)


@pytest.mark.parametrize(
    "prompts",
    [np.array([1, 2, 3]), [np.int64(1), np.int64(2), np.int64(3)], torch.tensor([1, 2, 3]), range(1, 4), (1, 2, 3)],
    ids=["array", "numpy ints", "tensor", "range", "tuple"],
)
def test_whole_numbers_of_any_kind_are_ids(llm: LLM, prompts: Any) -> None:
    (output,) = llm.generate(prompts, GREEDY)
    assert [type(token_id) for token_id in output.prompt_token_ids] == [int, int, int]
    assert output.outputs[0].token_ids == llm.generate([1, 2, 3], GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize("params", ["x", {"temperature": 0}, 3, SamplingParams, [GREEDY, None], [GREEDY], []])
def test_what_are_no_params_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequestError, match="params"):
        llm.generate(["a", "b"], params)
    assert is_empty(llm)


@pytest.mark.parametrize(
    "messages",
    [None, "hi", {"role": "user", "content": "x"}, [1], [[]], [{"role": 1, "content": "x"}], [[{"role": "user"}], 5]],
    ids=repr,
)
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages?"):
        llm.chat(messages, GREEDY)
    assert is_empty(llm)


def test_half_a_surrogate_pair_in_a_message_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        llm.chat([{"role": "user", "content": "\ud800"}], GREEDY)


@pytest.mark.parametrize("name", ["ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} must be true or false"):
        SamplingParams(**{name: value})


def test_a_model_whose_weights_are_no_numbers(folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One sentence, and nothing that looks like a fault in Octavo."""
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (weights,) = damaged.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, weights)
    with pytest.raises(OctavoError) as caught:
        LLM(str(damaged), num_blocks=64).generate([1, 2, 3], GREEDY)
    assert str(caught.value) == (
        "the model could not compute this request: it gave no usable logits (the largest is nan); "
        "its weights may be damaged"
    )
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


BAD_SETTINGS: dict[str, Any] = {
    "num_blocks": 10**12,
    "block_size": 1.5,
    "threads": 10**6,
    "max_num_seqs": "many",
    "kv_cache_memory_bytes": 0,
    "memory_utilization": "0.5",
    "seed": -1,
}


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS.items(), ids=BAD_SETTINGS)
def test_settings_that_cannot_work_are_refused(folder: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        LLM(folder, **{name: value})


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-has-this-name/model", "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        LLM(name)


@pytest.fixture(autouse=True)
def interrupts_raise() -> Iterator[None]:
    """As in a terminal: a shell lets what it starts in the background ignore SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def run_until_interrupted(work: Callable[[], object], seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))

    def interrupted() -> NoReturn:
        timer.start()  # on a busy machine the interrupt may come in here already
        repeat(work, for_seconds=60.0)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    timer.join()


def repeat(work: Callable[[], object], for_seconds: float) -> NoReturn:
    end = time.monotonic() + for_seconds
    while time.monotonic() < end:
        work()
    pytest.fail(f"the interrupt was lost: {for_seconds:g} s later the work still goes on")


def test_an_interrupt_that_comes_where_what_it_raises_is_lost_comes_through(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback of the garbage collector cannot raise: interrupts are not handled there, but between steps."""
    is_armed = False

    def callback(_phase: str, _info: dict[str, Any]) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            os.kill(os.getpid(), signal.SIGINT)

    def collect_then(delta: OutputDelta) -> None:
        gc.collect()
        raise_for(delta)

    monkeypatch.setattr("octavo.llm.raise_for", collect_then)
    long = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    works: list[Callable[[], object]] = [
        lambda: llm.generate([[1, 2, 3]], long),
        lambda: list(llm.stream([1, 2, 3], long)),
    ]
    gc.callbacks.append(callback)
    try:
        for work in works:
            is_armed = True
            with pytest.raises(KeyboardInterrupt):
                repeat(work, for_seconds=20.0)
            assert not is_armed
            assert is_empty(llm)
    finally:
        gc.callbacks.remove(callback)


def test_an_interrupted_call_leaves_nothing_and_the_next_is_right(llm: LLM) -> None:
    prompts = [[index] * 20 for index in range(1, 7)]
    long = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    for attempt in range(10):
        run_until_interrupted(lambda: llm.generate(prompts, long), 0.005 + 0.01 * attempt)
        assert is_empty(llm)
        run_until_interrupted(lambda: list(llm.stream([1, 2, 3], long)), 0.005 + 0.01 * attempt)
        assert is_empty(llm)
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)] == expected


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    reached = []

    def interrupted_block() -> None:
        with interrupts_wait():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        interrupted_block()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_systems_ends_the_process(tmp_path: Path) -> None:
    """Where SIGINT is what it is in C, not Python's: held back until the step is over, and not lost."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from octavo.engine.interrupts import interrupts_wait\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "with interrupts_wait():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('the end of the block', flush=True)\n"
        "print('not reached', flush=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "the end of the block\n"
    assert done.returncode == -signal.SIGINT


def test_what_is_ignored_stays_so_and_each_interrupt_is_handed_on() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_wait() as deliver:
        os.kill(os.getpid(), signal.SIGINT)
        deliver()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    numbers: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: numbers.append(number))
    with interrupts_wait():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert not numbers
    assert numbers == [signal.SIGINT] * 3


def test_a_handler_that_puts_another_in_its_place_is_not_overruled() -> None:
    def handle(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    signal.signal(signal.SIGINT, handle)
    with interrupts_wait() as deliver:
        os.kill(os.getpid(), signal.SIGINT)
        deliver()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class _Holder:
    """In a cycle, so that the garbage collector alone ends the stream."""

    def __init__(self, stream: Iterator[OutputDelta]) -> None:
        self.stream = stream
        self.own = self
        next(stream)


def test_a_stream_that_the_garbage_collector_ends_in_the_middle_of_a_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is aborted after the step: others lose nothing, and nothing is left of it."""
    update = llm._engine._scheduler.update

    def collecting_update(*args: Any) -> Any:
        outcome = update(*args)
        gc.collect()
        return outcome

    monkeypatch.setattr(llm._engine._scheduler, "update", collecting_update)
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    expected = [delta.token_ids for delta in llm.stream([4, 5, 6], params)]
    for num_dropped in (1, 3):
        holders = [_Holder(llm.stream([7, 8, number], params)) for number in range(num_dropped)]
        other = llm.stream([4, 5, 6], params)
        found = [next(other).token_ids]
        del holders
        found += [delta.token_ids for delta in other]
        assert [token for ids in found for token in ids] == [token for ids in expected for token in ids]
        gc.collect()
        assert is_empty(llm)


def test_two_engines_in_one_process_do_not_disturb_each_other(llm: LLM, folder: str) -> None:
    other = LLM(folder, num_blocks=16, block_size=2)
    first, second = (each.generate([5, 6, 7], GREEDY)[0].outputs[0].token_ids for each in (llm, other))
    assert first == second
    assert is_empty(llm)
    assert is_empty(other)
