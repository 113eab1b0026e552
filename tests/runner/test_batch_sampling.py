"""Tokens drawn for a whole batch at once, natively: the bits of the specification, which draws row by row, whatever the
batch, the threads and the instruction set."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRow
from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import Ops
from octavo.kernels.reference import ReferenceOps
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler, Samples
from tests.kernels.cases import BACKENDS, make_ops

WIDTH, NUM_VALID = 5003, 4990

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=100.0),
    SamplingParams(temperature=1e-5),
    SamplingParams(temperature=0.8, top_k=1),
    SamplingParams(temperature=1.5, top_k=15),
    SamplingParams(temperature=1.0, top_k=400),
    SamplingParams(temperature=5.0, top_k=4989),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.0, top_p=5e-324),
    SamplingParams(temperature=50.0, top_p=0.999),
    SamplingParams(temperature=1.0, top_p=1.0 - 2.0**-53),
    SamplingParams(temperature=0.7, min_p=0.05),
    SamplingParams(temperature=2.0, min_p=1.0),
    SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=3.0, top_k=2000, top_p=0.5),
    SamplingParams(temperature=1.0, logprobs=0),
    SamplingParams(temperature=0.0, logprobs=20),
    SamplingParams(temperature=0.9, top_p=0.9, logprobs=5, repetition_penalty=1.3),
    SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=-1.0),
    SamplingParams(temperature=1.0, repetition_penalty=0.4, presence_penalty=-0.5, logprobs=3),
    SamplingParams(temperature=1.0, logit_bias={3: 7.5, 4989: -100.0, 17: 100.0}),
    SamplingParams(temperature=1.0, allowed_token_ids=[5, 4000, 17, 4989], min_tokens=3),
    SamplingParams(temperature=0.0, min_tokens=30, max_tokens=40, logit_bias={9: 100.0}),
]


class Case(NamedTuple):
    """Rows of logits, what each wants, and the positions of their next tokens."""

    logits: Tensor
    rows: list[RowSampling]
    positions: list[int]

    def take(self, places: Sequence[int]) -> "Case":
        return Case(self.logits[places], [self.rows[p] for p in places], [self.positions[p] for p in places])

    def sample(self, sampler: Sampler) -> Samples:
        return sampler.sample(self.logits, ReferenceOps().argmax(self.logits, NUM_VALID), self.rows, self.positions)


def all_logits(generator: np.random.Generator, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Rows of every shape that a model may give: peaked and flat, with ties, masks, extremes, and unusable ones."""
    spreads = np.array([0.01, 1.0, 4.0, 20.0, 3e37])[np.arange(count) % 5, None]
    logits = (generator.normal(size=(count, WIDTH)) * spreads).astype(np.float32)
    logits[3::7] = np.round(logits[3::7])  # ties
    logits[4::11, ::3] = -np.inf
    logits[5::13, :] = 0.5
    logits[6::17, 100] = 90.0
    logits[7::19, 200:300] = -0.0
    logits[8::23, 4999] = 1e6  # beyond the tokenizer's ids
    return logits


class BitsOnly:
    """Stands for a RowGrammar that allows some tokens; None: all, since the text is complete."""

    fault = None
    is_complete = False

    def __init__(self, bits: np.ndarray[tuple[int, ...], np.dtype[np.uint32]] | None, must_end: bool) -> None:
        self.bits = bits
        self.must_end = must_end

    def consume(self, token_id: int) -> None:
        """It stays as it is."""


def grammar_of(generator: np.random.Generator) -> Any:
    """Many tokens, few, one, none or all."""
    words = -(-(WIDTH + 1) // 32)
    bits = generator.integers(0, 2**32, words, dtype=np.uint32)
    kind = int(generator.integers(6))
    if kind == 0:
        return BitsOnly(None, False)
    if kind == 1:
        bits[1:] = 0
    elif kind == 2:
        bits[:] = 0
        bits[2 // 32] = 1 << 2
    elif kind == 3:
        bits[:] = 0
    elif kind == 4:
        bits[generator.random(words) < 0.5] = 0xFFFFFFFF
    return BitsOnly(bits, kind == 2)


def make_case(seed: int, count: int = 75, bad_word_ids: Sequence[tuple[int, ...]] = ((7,), (3, 8))) -> Case:
    generator = np.random.default_rng(seed)
    sampler = Sampler(WIDTH, NUM_VALID)
    rows, positions = [], []
    for index in range(count):
        tokens = [*generator.integers(0, NUM_VALID, int(generator.integers(1, 200))).tolist(), 3]
        new = NewRow(
            row_id=index,
            token_ids=tuple(tokens),
            num_prompt_tokens=int(generator.integers(0, len(tokens))),
            block_ids=(),
            params=PARAMS[(index + seed) % len(PARAMS)],
            seed=int(generator.integers(2**62)),
            choice_index=index % 3,
            stop_token_ids=frozenset({2, 5, 9, 70_000}),
        )
        grammar = grammar_of(generator) if index % 3 == 1 else None
        rows.append(sampler.new_row(new, bad_word_ids if index % 4 == 0 else (), grammar))
        positions.append(len(tokens))
    return Case(torch.from_numpy(all_logits(generator, count)), rows, positions)


@pytest.fixture(params=BACKENDS[1:])
def cpu_ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    yield make_ops(request.param)
    native.load()  # settings of the environment


@pytest.fixture
def sampler(cpu_ops: Ops) -> Sampler:
    return Sampler(WIDTH, NUM_VALID, cpu_ops.sampling())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_batch_gets_the_bits_of_the_specification(
    cpu_ops: Ops, sampler: Sampler, seed: int, num_threads: int
) -> None:
    assert isinstance(cpu_ops, CpuOps)
    cpu_ops.set_num_threads(num_threads)
    case = make_case(seed)
    assert case.sample(sampler) == case.sample(Sampler(WIDTH, NUM_VALID))


def test_a_row_does_not_depend_on_its_neighbours(sampler: Sampler) -> None:
    case = make_case(9)
    whole = case.sample(sampler)
    generator = np.random.default_rng(1)
    for size in range(1, 34):
        places = generator.permutation(len(case.rows))[:size].tolist()
        some = case.take(places).sample(sampler)
        assert some.token_ids == [whole.token_ids[place] for place in places]
        assert some.logprobs == {p: whole.logprobs[p] for p in places if p in whole.logprobs}


def test_tokens_drawn_since_count_in_the_same_batch(sampler: Sampler) -> None:
    """Rows stay the same objects from step to step: what their tokens change is told anew."""
    case, reference = make_case(4, 32), Sampler(WIDTH, NUM_VALID)
    for step in range(40):
        case = case._replace(positions=[position + 1 for position in case.positions])
        samples = case.sample(sampler)
        assert samples == case.sample(reference)
        for row, token_id in zip(case.rows, samples.token_ids, strict=True):
            row.append(3 if step % 3 == 0 else token_id)


def test_unusable_rows_are_faults_of_their_own(sampler: Sampler) -> None:
    case = make_case(2, len(PARAMS))
    case.logits[3, 70] = np.nan
    case.logits[8, 71] = np.inf
    case.logits[11, :] = -np.inf
    samples = case.sample(sampler)
    assert samples == case.sample(Sampler(WIDTH, NUM_VALID))
    assert samples.faults.keys() >= {3, 8, 11}
