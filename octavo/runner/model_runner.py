"""Carries plans out on a model: copies, rows, one forward pass, samples."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from octavo.core.step import NewRow, RunnerSeconds, StepPlan, StepResult, TokenLogprobs
from octavo.core.timing import Timed, untimed
from octavo.kernels.interface import KVLayer, Ops
from octavo.models.interface import Model
from octavo.runner.disk_tier import DiskStore
from octavo.runner.drafted_draws import FurtherTokens
from octavo.runner.elapsed import Elapsed
from octavo.runner.execution import make_execution
from octavo.runner.grammar_masks import GrammarMasks, GrammarSource, completed_rows, no_grammars
from octavo.runner.input_batch import InputBatch
from octavo.runner.page_ahead import PageAhead
from octavo.runner.pooling import pooled_sums
from octavo.runner.sampler import Sampler, Samples
from octavo.runner.step_inputs import DrawingRows, KnownToken, StepInputs
from octavo.runner.swapping import copy_between

BadWordEncoder = Callable[[Sequence[str]], tuple[tuple[int, ...], ...]]
"""The token sequences that spell given words."""


@dataclass(frozen=True, slots=True)
class KVMemory:
    """The pool's tensors. A block holds one ``KVLayer`` entry in each of ``slots``; layer i of the model uses slot
    ``places[i][1]`` of the blocks of group ``places[i][0]``. ``host_slots``: the same of the host pool, if there is
    one; ``disk``: what the disk tier keeps, if there is one."""

    slots: Sequence[KVLayer]
    host_slots: Sequence[KVLayer]
    places: Sequence[tuple[int, int]]
    num_groups: int
    disk: DiskStore | None = None

    @property
    def layers(self) -> list[tuple[KVLayer, int]]:
        """Of each layer of the model its memory and the number of its group."""
        return [(self.slots[slot], group) for group, slot in self.places]


@dataclass(frozen=True, slots=True)
class LandedStep:
    """Implements ``core.step.PendingStep``. ``outcome``: what the step brought, or raised."""

    outcome: StepResult | Exception

    def result(self) -> StepResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class ModelRunner:
    """A runner in the caller's own thread: a step has landed when ``submit`` returns. ``timed``: told of the parts
    "inputs", "native" and "sample"."""

    def __init__(
        self,
        model: Model,
        ops: Ops,
        kv: KVMemory,
        batch: InputBatch,
        sampler: Sampler,
        bad_words: BadWordEncoder,
        grammars: GrammarSource = no_grammars,
        timed: Timed = untimed,
    ) -> None:
        self._execution = make_execution(model, ops, kv.layers, sampler.num_valid_tokens, timed)
        self._write_tables = timed("inputs", batch.write_tables)
        self._inputs = timed("inputs", batch.inputs)
        self._sampling, self._swapping_out, self._swapping_in = Elapsed(), Elapsed(), Elapsed()
        self._sample = timed("sample", self._sampling.of(_sample))
        self._sample_drafted = timed("sample", self._sampling.of(FurtherTokens.draw))
        self._swap_out = self._swapping_out.of(copy_between)
        self._swap_in = self._swapping_in.of(copy_between)
        self._model = model
        self._ops = ops
        self._kv = kv
        self._batch = batch
        self._sampler = sampler
        self._encode_bad_words = bad_words
        self._masks = GrammarMasks(grammars)
        self._pages = PageAhead(kv.slots)

    def submit(self, plan: StepPlan) -> LandedStep:
        """Carry ``plan`` out; what it raises comes out of ``result``."""
        self._pages.step_begins(plan.table_writes)
        try:
            return LandedStep(self._execute(plan))
        except Exception as error:  # noqa: BLE001 - the engine decides
            return LandedStep(error)
        finally:
            self._pages.step_ended()

    def reset(self) -> None:
        """Forget every row; KV contents stay."""
        self._batch.clear()

    def close(self) -> None:
        """Let others open the file of the disk tier."""
        self._masks.close()
        if self._kv.disk is not None:
            self._kv.disk.close()

    @torch.inference_mode()
    def _execute(self, plan: StepPlan) -> StepResult:
        self._move_blocks(plan)
        for new in plan.new_rows:
            self._add_row(new)
        self._write_tables(plan.table_writes)
        result = self._compute(plan) if plan.row_ids else StepResult(plan.step_id, (), seconds=self._take_seconds())
        self._batch.release(plan.released_rows)
        return result

    def _move_blocks(self, plan: StepPlan) -> None:
        """In this order: whatever reads a block does so before it is overwritten."""
        disk = self._kv.disk if plan.disk else None
        if disk is not None:
            disk.write(plan.disk)
        if plan.swap_outs:
            self._swap_out(self._kv.slots, self._kv.host_slots, plan.swap_outs)
        if plan.poisons:
            for layer in self._kv.slots:
                layer.poison(list(plan.poisons))
        if plan.swap_ins:
            self._swap_in(self._kv.host_slots, self._kv.slots, plan.swap_ins)
        if disk is not None:
            disk.read(plan.disk)
        if plan.copies:
            self._ops.copy_blocks(self._kv.slots, plan.copies)

    def _compute(self, plan: StepPlan) -> StepResult:
        inputs = self._inputs(plan)
        self._masks.begin(inputs)
        num_hidden = sum(row.num_places for row in inputs.pooled)
        outputs = self._execution.run(inputs.token_ids, inputs.layouts, inputs.head_rows, num_hidden)
        result = self._read_heads(plan.step_id, inputs, outputs)
        if not num_hidden:
            return result
        hidden = self._model.final_norm(self._execution.hidden(num_hidden))
        return replace(result, pooled=pooled_sums(inputs.pooled, hidden))

    def _add_row(self, new: NewRow) -> None:
        bad_words = self._encode_bad_words(new.params.bad_words) if new.params.bad_words else ()
        self._batch.add(new, self._sampler.new_row(new, bad_words, self._masks.new_row(new)))

    def _read_heads(
        self, step_id: int, inputs: StepInputs, outputs: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> StepResult:
        """Draw tokens and take logprobs, from the logits of a few rows at a time: a long prompt's logprobs over a large
        vocabulary would take gigabytes at once."""
        drawn, further = Samples([], {}, {}), FurtherTokens()
        prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        start, num_drawing, num_known = 0, len(inputs.drawing), len(inputs.known)
        for logits, best_ids in outputs:
            self._masks.wait()
            end = start + logits.shape[0]
            drawing = inputs.drawing.part(start, end)
            if drawing:
                samples = self._sample(self._sampler, drawing, logits[: len(drawing)], best_ids[: len(drawing)])
                drawn.token_ids.extend(samples.token_ids)
                drawn.logprobs.update(samples.logprobs)
                drawn.faults.update(samples.faults)
            known = inputs.known[max(0, start - num_drawing) : max(0, end - num_drawing)]
            for row_id, entries in self._prompt_logprobs(known, logits[len(drawing) :]):
                prompt_logprobs[row_id] = prompt_logprobs.get(row_id, ()) + entries
            first = len(drawing) + len(known)
            drafted = inputs.drafted[max(0, start - num_drawing - num_known) : max(0, end - num_drawing - num_known)]
            if drafted:
                self._sample_drafted(further, self._sampler, drafted, logits[first:], best_ids[first:])
            start = end
        return StepResult(
            step_id,
            tuple(drawn.token_ids),
            drawn.logprobs,
            prompt_logprobs,
            drawn.faults,
            further.token_ids,
            further.logprobs,
            completed_rows(inputs),
            seconds=self._take_seconds(),
        )

    def _take_seconds(self) -> RunnerSeconds:
        return RunnerSeconds(self._sampling.take(), self._swapping_out.take(), self._swapping_in.take())

    def _prompt_logprobs(
        self, known: Sequence[KnownToken], logits: torch.Tensor
    ) -> Iterator[tuple[int, tuple[TokenLogprobs, ...]]]:
        """Row id and entries, in order; row i of ``logits`` predicts ``known[i]``."""
        start = 0
        for (row_id, num_top), group in groupby(known, key=lambda token: (token.row_id, token.num_top)):
            token_ids = [token.token_id for token in group]
            end = start + len(token_ids)
            yield row_id, self._sampler.prompt_logprobs(logits[start:end], token_ids, num_top)
            start = end


def _sample(sampler: Sampler, rows: DrawingRows, logits: torch.Tensor, best_ids: torch.Tensor) -> Samples:
    samples = sampler.sample(logits, best_ids, rows.states, rows.positions)
    rows.append(samples.token_ids)
    return samples
