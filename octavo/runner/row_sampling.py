"""What the sampler keeps for one sequence: its parameters and what its tokens so far mean for the next one."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRow
from octavo.kernels.sampling import REQUEST
from octavo.runner.drawing import inverse_temperature
from octavo.runner.ranking import Row, TokenIds
from octavo.runner.thinking_grammar import Grammar

_NO_IDS: TokenIds = np.empty(0, dtype=np.int64)
_LARGEST = float(np.finfo(np.float32).max)


class SeenTokens:
    """The distinct tokens of a sequence with their counts in the output, for the penalties.

    Grows with each token; nothing is counted again at a step. A token of the prompt alone has count 0.
    """

    __slots__ = ("_counts", "_ids", "_places", "addresses")

    def __init__(self, prompt_ids: Iterable[int], output_ids: Sequence[int]) -> None:
        self._places: dict[int, int] = {}
        self._ids: TokenIds = np.empty(64, dtype=np.int64)
        self._counts: NDArray[np.int64] = np.empty(64, dtype=np.int64)
        self.addresses = self._ids.ctypes.data, self._counts.ctypes.data
        """Of the arrays of ids and of counts, ``len`` entries each; until the next token."""
        for token_id in dict.fromkeys(prompt_ids):
            self._place(token_id)
        for token_id in output_ids:
            self.add_output(token_id)

    def add_output(self, token_id: int) -> None:
        place = self._place(token_id)  # first: it may replace the arrays by larger ones
        self._counts[place] += 1

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._places)
            if place == len(self._ids):
                self._ids = np.resize(self._ids, 2 * place)
                self._counts = np.resize(self._counts, 2 * place)
                self.addresses = self._ids.ctypes.data, self._counts.ctypes.data
            self._ids[place] = token_id
            self._counts[place] = 0
        return place

    def __len__(self) -> int:
        return len(self._places)

    def penalize(self, logits: Row, params: SamplingParams) -> None:
        """Apply the three penalties to ``logits`` [vocab] in place.

        Repetition (prompt and output): positive logits are divided by it, negative ones multiplied (Keskar et al.,
        2019). Frequency, a count times, and presence, once: subtracted, for output tokens only (OpenAI's API).
        """
        ids, counts = self._ids[: len(self)], self._counts[: len(self)]
        values = logits[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # a penalty can lift a logit beyond any number (bounded), or sink it to -inf
            if params.repetition_penalty != 1.0:
                penalty = params.repetition_penalty
                values = np.where(values > 0, values / penalty, values * penalty)
            values -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
            logits[ids] = np.clip(values, None, _LARGEST)


class BadWords:
    """Token sequences that the output must not hold: the last token of each is masked where the rest stands."""

    __slots__ = ("_sequences", "_tail")

    def __init__(self, sequences: Sequence[tuple[int, ...]], output_ids: Sequence[int]) -> None:
        self._sequences = tuple((word[:-1], word[-1]) for word in sequences)
        longest = max(len(beginning) for beginning, _ in self._sequences)
        self._tail: deque[int] = deque(output_ids, maxlen=longest)

    def add_output(self, token_id: int) -> None:
        self._tail.append(token_id)

    def masked_ids(self) -> list[int]:
        tail = tuple(self._tail)
        return [last for beginning, last in self._sequences if tail[len(tail) - len(beginning) :] == beginning]


class RowSampling:
    """Sampling state of one sequence; made from its NewRow, kept up by ``append``, gone with the row. ``token_ids``:
    its tokens so far, prompt and output.

    A row that comes back after preemption is made anew from all its tokens and continues exactly as before.
    ``bad_word_ids`` are the token sequences of ``params.bad_words`` (each not empty, ids below ``vocab_size``).
    ``vocab_size`` is the number of model rows; stop ids beyond it (a foreign EOS in some config) need no mask.
    ``grammar``: what the text must be, at the same tokens.
    """

    __slots__ = (
        "_allowed",
        "_always_changes",
        "_bad_words",
        "_bias_ids",
        "_bias_values",
        "_is_plain",
        "_request",
        "_stop_ids",
        "choice_index",
        "grammar",
        "num_prompt_tokens",
        "params",
        "row_id",
        "seed",
        "seen",
        "token_ids",
    )

    def __init__(
        self,
        row: NewRow,
        vocab_size: int,
        bad_word_ids: Sequence[tuple[int, ...]] = (),
        grammar: Grammar | None = None,
    ) -> None:
        params = row.params
        self.grammar = grammar
        self.token_ids = list(row.token_ids)
        self.num_prompt_tokens = row.num_prompt_tokens
        output_ids = self.token_ids[row.num_prompt_tokens :]
        self.row_id = row.row_id
        self.params = params
        self.seed = row.seed
        self.choice_index = row.choice_index
        self._stop_ids = _id_array(token_id for token_id in row.stop_token_ids if token_id < vocab_size)
        self._allowed = None if params.allowed_token_ids is None else _id_array(params.allowed_token_ids)
        bias = params.logit_bias or {}
        self._bias_ids = _id_array(bias)
        self._bias_values: NDArray[np.float32] = np.array(list(bias.values()), dtype=np.float32)
        self._bad_words = BadWords(bad_word_ids, output_ids) if bad_word_ids else None
        self.seen = _seen_tokens(row, output_ids)
        self._always_changes = (
            self._allowed is not None
            or self._bad_words is not None
            or self.seen is not None
            or len(self._bias_ids) > 0
            or grammar is not None
        )
        self._request: bytes | None = None
        self._is_plain = params.greedy and params.logprobs is None and not self._always_changes

    def append(self, token_id: int) -> None:
        """A token of the output: the next draw counts it."""
        self.token_ids.append(token_id)
        self.note(token_id)

    @property
    def notes_tokens(self) -> bool:
        """Whether ``note`` would do anything."""
        return self._bad_words is not None or self.seen is not None or self.grammar is not None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def note(self, token_id: int) -> None:
        """``token_id`` has been appended to ``token_ids``."""
        if self._bad_words is not None:
            self._bad_words.add_output(token_id)
        if self.seen is not None:
            self.seen.add_output(token_id)
        if self.grammar is not None:
            self.grammar.consume(token_id)

    @property
    def changes_logits(self) -> bool:
        """Whether ``change`` would do anything now; where not, the logits need no copy."""
        return self._always_changes or self._masks_stops

    @property
    def takes_best(self) -> bool:
        """Whether the next draw is nothing but the best token of the raw logits."""
        return self._is_plain and self.num_output_tokens >= self.params.min_tokens

    @property
    def masks_tokens(self) -> bool:
        """Whether ``masked_ids`` may hold some, now or later."""
        return self._bad_words is not None or (self.params.min_tokens > 0 and len(self._stop_ids) > 0)

    @property
    def _masks_stops(self) -> bool:
        if self.num_output_tokens >= self.params.min_tokens or not len(self._stop_ids):
            return False
        return self.grammar is None or not self.grammar.must_end  # a finished grammar wins (spec D6)

    @property
    def masked_ids(self) -> TokenIds:
        """Those that must not be drawn next, whatever else is allowed."""
        stop_ids = self._stop_ids if self._masks_stops else _NO_IDS
        if self._bad_words is None:
            return stop_ids
        return np.concatenate((stop_ids, _id_array(self._bad_words.masked_ids())))

    def change(self, logits: Row) -> None:
        """Masks, bias and penalties, in this order, in place on ``logits`` [model rows]. A mask is -inf, so what
        follows cannot undo it."""
        if self._allowed is not None:
            allowed = logits[self._allowed]
            logits.fill(-np.inf)
            logits[self._allowed] = allowed
        bits = None if self.grammar is None else self.grammar.bits
        if bits is not None:
            may_come = np.unpackbits(bits.view(np.uint8), count=len(logits), bitorder="little")
            logits[may_come == 0] = -np.inf
        logits[self.masked_ids] = -np.inf
        logits[self._bias_ids] += self._bias_values
        if self.seen is not None:
            self.seen.penalize(logits, self.params)

    @property
    def request(self) -> bytes:
        """One record (``kernels.sampling.REQUEST``) of what stays as it is, valid while this object lives."""
        if self._request is None:
            self._request = self._make_request()
        return self._request

    def _make_request(self) -> bytes:
        record = np.zeros((), dtype=REQUEST)
        params = self.params
        record["scale"] = 0.0 if params.greedy else inverse_temperature(params.temperature)
        record["top_k"], record["top_p"], record["min_p"] = max(0, params.top_k), params.top_p, params.min_p
        record["wants_logprobs"] = params.logprobs is not None
        record["repetition"] = params.repetition_penalty
        record["frequency"], record["presence"] = params.frequency_penalty, params.presence_penalty
        if self._allowed is not None:
            record["allowed"], record["num_allowed"] = self._allowed.ctypes.data, len(self._allowed)
        record["bias_ids"], record["num_biases"] = self._bias_ids.ctypes.data, len(self._bias_ids)
        record["biases"] = self._bias_values.ctypes.data
        return record.tobytes()


def _id_array(token_ids: Iterable[int]) -> TokenIds:
    return np.array(list(token_ids), dtype=np.int64)


def _seen_tokens(row: NewRow, output_ids: Sequence[int]) -> SeenTokens | None:
    """Counts, if a penalty asks for them; the prompt counts for the repetition penalty alone."""
    params = row.params
    if params.repetition_penalty != 1.0:
        return SeenTokens(row.token_ids[: row.num_prompt_tokens], output_ids)
    if params.frequency_penalty or params.presence_penalty:
        return SeenTokens((), output_ids)
    return None
