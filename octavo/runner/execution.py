"""How a runner runs its model: as its back end has recorded it, or one operation at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels.interface import BatchLayout, KVLayer, Ops
from octavo.models.interface import Model, ModelInputs

MAX_LOGITS = 1 << 25
"""Logits held at a time (128 MiB in fp32): 128 rows of the largest vocabularies."""


class Execution(Protocol):
    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor, num_hidden: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See ``RecordedStep.run``."""
        ...

    def hidden(self, count: int) -> Tensor:
        """See ``RecordedStep.hidden``."""
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


@dataclass(slots=True)
class EagerExecution:
    """One operation at a time: ``forward`` and ``head`` of a ``Step``. ``kv``: of each layer its memory and the
    number of its group."""

    forward: Callable[[Tensor, Sequence[tuple[KVLayer, BatchLayout]], Tensor], Tensor]
    head: Callable[[Tensor], tuple[Tensor, Tensor]]
    kv: Sequence[tuple[KVLayer, int]]
    max_logit_rows: int
    _hidden: Tensor | None = None

    def run(
        self, token_ids: Tensor, layouts: Sequence[BatchLayout], head_rows: Tensor, num_hidden: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        hidden = self.forward(token_ids, [(held, layouts[group]) for held, group in self.kv], head_rows)
        self._hidden = hidden if num_hidden else None
        num_logit_rows = len(head_rows) - num_hidden
        for start in range(0, num_logit_rows, self.max_logit_rows):
            yield self.head(hidden[start : min(start + self.max_logit_rows, num_logit_rows)])

    def hidden(self, count: int) -> Tensor:
        assert self._hidden is not None, "the step that ran last was asked for hidden states"
        return self._hidden[-count:]


def make_execution(
    model: Model, ops: Ops, kv: Sequence[tuple[KVLayer, int]], num_tokens: int, timed: Timed = untimed
) -> Execution:
    """``num_tokens``: ids that may be drawn, of the first logits; ``kv``: see ``EagerExecution``; ``timed``: told of
    the part "native", all that is not Python's own."""
    step = ModelStep(model, ops, num_tokens)
    max_logit_rows = max(1, MAX_LOGITS // model.config.vocab_size)
    recorded = ops.record(step, kv, max_logit_rows, timed)
    if recorded is not None:
        return recorded
    return EagerExecution(timed("native", step.forward), timed("native", step.head), kv, max_logit_rows)
