"""Carries plans out on a model: copies, rows, one forward pass, samples."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from octavo.core.step import NewRow, StepPlan, StepResult, TokenLogprobs
from octavo.kernels.interface import BatchLayout, KVLayer, Ops
from octavo.models.interface import Model, ModelInputs
from octavo.runner.input_batch import InputBatch
from octavo.runner.sampler import Sampler

BadWordEncoder = Callable[[Sequence[str]], tuple[tuple[int, ...], ...]]
"""The token sequences that spell given words."""


@dataclass(frozen=True, slots=True)
class KVMemory:
    """The pool's tensors. A block holds one ``KVLayer`` entry in each of ``slots``; layer i of the model uses slot
    ``places[i][1]`` of the blocks of group ``places[i][0]``."""

    slots: Sequence[KVLayer]
    places: Sequence[tuple[int, int]]
    num_groups: int

    def layers(self, layouts: Sequence[BatchLayout]) -> list[tuple[KVLayer, BatchLayout]]:
        """For each layer of the model, its memory and the layout of its group."""
        return [(self.slots[slot], layouts[group]) for group, slot in self.places]


class ModelRunner:
    """A runner in the caller's own thread: a step has landed when ``submit`` returns."""

    def __init__(
        self, model: Model, ops: Ops, kv: KVMemory, batch: InputBatch, sampler: Sampler, bad_words: BadWordEncoder
    ) -> None:
        self._model = model
        self._ops = ops
        self._kv = kv
        self._batch = batch
        self._sampler = sampler
        self._encode_bad_words = bad_words

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Carry ``plan`` out; what it raises comes out of ``result``."""
        step: Future[StepResult] = Future()
        try:
            step.set_result(self._execute(plan))
        except Exception as error:  # noqa: BLE001 - the engine decides
            step.set_exception(error)
        return step

    def reset(self) -> None:
        """Forget every row; KV contents stay."""
        self._batch.clear()

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> StepResult:
        if plan.copies:
            self._ops.copy_blocks(self._kv.slots, plan.copies)
        for new in plan.new_rows:
            self._add_row(new)
        self._batch.write_tables(plan.table_writes)
        heads = _HeadRows(plan, self._batch)
        inputs = ModelInputs(
            token_ids=self._batch.token_ids(plan),
            kv=self._kv.layers(self._batch.layouts(plan)),
            head_rows=torch.tensor(heads.rows, dtype=torch.int64),
        )
        logits = self._model.forward(inputs)
        result = self._sample(plan, heads, logits)
        self._batch.release(plan.released_rows)
        return result

    def _add_row(self, new: NewRow) -> None:
        bad_words = self._encode_bad_words(new.params.bad_words) if new.params.bad_words else ()
        self._batch.add(new, self._sampler.new_row(new, bad_words))

    def _sample(self, plan: StepPlan, heads: "_HeadRows", logits: torch.Tensor) -> StepResult:
        rows = [self._batch.rows[row_id] for row_id in heads.sampling]
        samples = self._sampler.sample(
            logits[: len(rows)], [row.sampling for row in rows], [len(row.tokens) for row in rows]
        )
        for row, token_id in zip(rows, samples.token_ids, strict=True):
            row.append(token_id)
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row_id, (first, token_ids, num_top) in heads.prompt_chunks.items():
            chunk = logits[first : first + len(token_ids)]
            prompt_logprobs[row_id] = self._sampler.prompt_logprobs(chunk, token_ids, num_top)
        return StepResult(plan.step_id, tuple(samples.token_ids), samples.logprobs, prompt_logprobs)


class _HeadRows:
    """Which rows of the step reach the head: first the sampling rows, in order, then those of prompt logprobs.

    ``prompt_chunks``: row id -> (first line among the logits, the prompt tokens predicted there, how many of the best).
    """

    def __init__(self, plan: StepPlan, batch: InputBatch) -> None:
        self.sampling = [row_id for row_id, samples in zip(plan.row_ids, plan.samples, strict=True) if samples]
        self.rows: list[int] = []
        self.prompt_chunks: dict[int, tuple[int, list[int], int]] = {}
        end = 0
        for count, samples in zip(plan.counts, plan.samples, strict=True):
            end += count
            if samples:
                self.rows.append(end - 1)
        first_row = 0
        for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
            row = batch.rows[row_id]
            wanted = row.sampling.params.prompt_logprobs
            if wanted is not None:
                token_ids = row.tokens[start + 1 : min(start + count + 1, row.num_prompt_tokens)]
                if token_ids:
                    self.prompt_chunks[row_id] = (len(self.rows), token_ids, wanted)
                    self.rows += range(first_row, first_row + len(token_ids))
            first_row += count
