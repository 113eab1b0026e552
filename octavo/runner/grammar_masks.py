"""What grammars allow next, found on a thread of its own while the model computes."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from octavo.core.errors import InvalidRequestError
from octavo.core.step import NewRow
from octavo.core.structured import Constraint
from octavo.runner.row_grammar import RowGrammar
from octavo.runner.step_inputs import StepInputs
from octavo.runner.thinking_grammar import Grammar, ThinkingGrammar
from octavo.structured.compiler import CompiledGrammar

GrammarSource = Callable[[Constraint], CompiledGrammar]
"""Gives the grammar of a constraint, at once: it was compiled before its request was let in."""


def no_grammars(_constraint: Constraint) -> CompiledGrammar:
    """Implements ``GrammarSource``."""
    raise InvalidRequestError("structured_outputs is not supported here", "structured_outputs")


class GrammarMasks:
    """``begin`` when a step's model begins to compute, ``wait`` before its tokens are drawn. A step without grammars
    costs nothing."""

    def __init__(self, source: GrammarSource = no_grammars) -> None:
        self._source = source
        self._thread: ThreadPoolExecutor | None = None
        self._filling: Future[None] | None = None

    def new_row(self, row: NewRow) -> Grammar | None:
        """The state of a row that has a constraint."""
        constraint = row.params.constraint
        if constraint is None:
            return None
        compiled, output_ids = self._source(constraint), row.token_ids[row.num_prompt_tokens :]
        if row.params.thinking is None:
            return RowGrammar(compiled, row.stop_token_ids, output_ids)
        answer = RowGrammar(compiled, row.stop_token_ids)
        return ThinkingGrammar(answer, row.params.thinking, compiled.vocabulary, output_ids)

    def begin(self, inputs: StepInputs) -> None:
        self.wait()  # for that of a step that failed
        grammars = inputs.drawing.grammars
        if not grammars:
            return
        drafts: dict[int, list[int]] = {}
        for draw in inputs.drafted:  # in order of their numbers, so those of a row are too
            drafts.setdefault(draw.state.row_id, []).append(draw.token_id)
        work = [(grammar, drafts.get(row_id, ())) for row_id, grammar in grammars]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "octavo-masks")
        self._filling = self._thread.submit(_fill, work)

    def wait(self) -> None:
        if self._filling is not None:
            filling, self._filling = self._filling, None
            filling.result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _fill(work: Sequence[tuple[Grammar, Sequence[int]]]) -> None:
    for grammar, drafts in work:
        try:
            grammar.fill(drafts)
        except BaseException as error:  # noqa: BLE001 - whatever a grammar provokes, panics too, ends its own request alone
            grammar.fault = f"the grammar failed: {type(error).__name__}"


def completed_rows(inputs: StepInputs) -> frozenset[int]:
    """Ids of the rows whose text is complete."""
    return frozenset(row_id for row_id, grammar in inputs.drawing.grammars if grammar.is_complete)
