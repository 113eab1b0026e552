"""Runs a model over token ids with KV memory of its own, blocks in shuffled places, with no engine around it."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.kernels.interface import BatchLayout, allocate_kv
from octavo.models.interface import Model, ModelInputs


class SequenceRun:
    """One sequence: its tokens so far, and its keys and values in blocks whose order is drawn from ``seed``."""

    def __init__(
        self,
        model: Model,
        max_tokens: int,
        block_size: int = 4,
        seed: int = 0,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        config = model.config
        num_blocks = -(-max_tokens // block_size) + 3
        self._model = model
        self._table = random.Random(seed).sample(range(num_blocks), num_blocks - 3)
        self._block_size = block_size
        self._length = 0
        self._kv = [
            allocate_kv(num_blocks, block_size, config.num_kv_heads, config.head_dim, kv_dtype)
            for _ in range(config.num_layers)
        ]

    def feed(self, token_ids: Sequence[int], num_logits: int | None = None) -> Tensor:
        """Logits fp32 [n, vocab] after each of ``token_ids``, which continue the sequence; or after the last
        ``num_logits`` of them."""
        positions = range(self._length, self._length + len(token_ids))
        self._length += len(token_ids)
        slots = [self._table[p // self._block_size] * self._block_size + p % self._block_size for p in positions]
        layout = BatchLayout(
            positions=torch.tensor(positions, dtype=torch.int32),
            slots=torch.tensor(slots, dtype=torch.int64),
            query_starts=torch.tensor([0, len(token_ids)], dtype=torch.int32),
            context_lens=torch.tensor([self._length], dtype=torch.int32),
            block_tables=torch.tensor([self._table], dtype=torch.int32),
        )
        inputs = ModelInputs(
            token_ids=torch.tensor(token_ids, dtype=torch.int64),
            kv=[(kv, layout) for kv in self._kv],
            head_rows=torch.arange(len(token_ids))[-(num_logits or len(token_ids)) :],
        )
        return self._model.head(self._model.forward(inputs))


def prompt_logits(model: Model, token_ids: Sequence[int], chunk: int | None = None) -> Tensor:
    """Logits [n, vocab] after each of ``token_ids``, computed ``chunk`` tokens at a time (None: all at once)."""
    run = SequenceRun(model, len(token_ids))
    step = chunk or len(token_ids)
    return torch.cat([run.feed(token_ids[start : start + step]) for start in range(0, len(token_ids), step)])


def greedy(model: Model, token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """The ``num_tokens`` best ids after ``token_ids``, one step each."""
    run = SequenceRun(model, len(token_ids) + num_tokens)
    logits, generated = run.feed(token_ids), list[int]()
    while True:
        generated.append(int(logits[-1].argmax()))
        if len(generated) == num_tokens:
            return generated
        logits = run.feed(generated[-1:])
