"""How a runner runs its model: as its back end has recorded it, or one operation at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.kernels.interface import BatchLayout, KVLayer, Ops
from octavo.models.interface import Model, ModelInputs

MAX_LOGITS = 1 << 25
"""Logits held at a time (128 MiB in fp32): 128 rows of the largest vocabularies."""


class Execution(Protocol):
    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See ``RecordedStep.run``."""
        ...


@dataclass(frozen=True, slots=True)
class ModelStep:
    """Implements ``kernels.interface.Step``. ``num_tokens``: the best of the first so many logits is looked for."""

    model: Model
    ops: Ops
    num_tokens: int

    def forward(self, token_ids: Tensor, kv: Sequence[tuple[KVLayer, BatchLayout]], head_rows: Tensor) -> Tensor:
        return self.model.forward(ModelInputs(token_ids, kv, head_rows))

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.head(hidden)
        return logits, self.ops.argmax(logits, self.num_tokens)


@dataclass(frozen=True, slots=True)
class EagerExecution:
    """One operation at a time. ``kv``: of each layer its memory and the number of its group."""

    step: ModelStep
    kv: Sequence[tuple[KVLayer, int]]
    max_logit_rows: int

    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        hidden = self.step.forward(token_ids, [(held, layouts[group]) for held, group in self.kv], head_rows)
        for start in range(0, len(head_rows), self.max_logit_rows):
            yield self.step.head(hidden[start : start + self.max_logit_rows])


def make_execution(model: Model, ops: Ops, kv: Sequence[tuple[KVLayer, int]], num_tokens: int) -> Execution:
    """``num_tokens``: ids that may be drawn, of the first logits; see ``EagerExecution``."""
    step = ModelStep(model, ops, num_tokens)
    max_logit_rows = max(1, MAX_LOGITS // model.config.vocab_size)
    return ops.record(step, kv, max_logit_rows) or EagerExecution(step, kv, max_logit_rows)
