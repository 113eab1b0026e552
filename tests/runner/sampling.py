"""Rows, drawn from both ways: one by one as the specification says, and by the native back end as a batch."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRow
from octavo.kernels.cpu import CpuOps
from octavo.kernels.reference import ReferenceOps
from octavo.kernels.sampling import Sampling
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler, Samples

INF = math.inf
PEAKED = [0.5, 2.0, -1.0, 1.5, 1.5, -INF, 0.0, 2.0]


def new_row(
    params: SamplingParams,
    token_ids: Sequence[int] = (0,),
    num_prompt_tokens: int | None = None,
    *,
    row_id: int = 0,
    seed: int = 7,
    choice_index: int = 0,
    stop_token_ids: Sequence[int] = (),
) -> NewRow:
    return NewRow(
        row_id=row_id,
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        block_ids=(),
        params=params,
        seed=seed,
        choice_index=choice_index,
        stop_token_ids=frozenset(stop_token_ids),
    )


@cache
def native_sampling() -> Sampling:
    return CpuOps().sampling()


def sample(sampler: Sampler, logits: Tensor, rows: Sequence[RowSampling], positions: Sequence[int]) -> Samples:
    """Row by row, as the specification says; the native back end gives the same for the whole batch, bit for bit."""
    best_ids = ReferenceOps().argmax(logits, sampler.num_valid_tokens)
    samples = sampler.sample(logits, best_ids, list(rows), positions)
    native = Sampler(sampler.vocab_size, sampler.num_valid_tokens, native_sampling())
    assert native.sample(logits, best_ids, list(rows), positions) == samples
    return samples


def sample_one(logits: Sequence[float], row: NewRow, num_valid: int | None = None, position: int = 5) -> int:
    sampler = Sampler(len(logits), len(logits) if num_valid is None else num_valid)
    return sample(sampler, torch.tensor([logits]), [sampler.new_row(row)], [position]).token_ids[0]


def generate(
    logits_after: Callable[[int], Sequence[float]],
    row: NewRow,
    num_tokens: int,
    neighbours: Sequence[NewRow] = (),
    bad_word_ids: Sequence[tuple[int, ...]] = (),
    resume_at: int | None = None,
) -> list[int]:
    """Draw ``num_tokens`` as a runner does; the row stands after its neighbours, and at ``resume_at`` output tokens it
    is preempted and comes back as a new row."""
    vocab = len(logits_after(0))
    sampler = Sampler(vocab, vocab)
    states = [sampler.new_row(neighbour) for neighbour in neighbours] + [sampler.new_row(row, bad_word_ids)]
    tokens = [list(neighbour.token_ids) for neighbour in neighbours] + [list(row.token_ids)]
    for index in range(num_tokens):
        if index == resume_at:
            params, prompt = row.params, row.num_prompt_tokens
            states[-1] = sampler.new_row(
                new_row(params, tokens[-1], prompt, stop_token_ids=tuple(row.stop_token_ids)), bad_word_ids
            )
        logits = torch.tensor([logits_after(ids[-1]) for ids in tokens], dtype=torch.float32)
        samples = sample(sampler, logits, states, [len(ids) for ids in tokens])
        for state, ids, token_id in zip(states, tokens, samples.token_ids, strict=True):
            state.append(token_id)
            ids.append(token_id)
    return tokens[-1][len(row.token_ids) :]
