"""What can run at all, however long it waits: looked at before a request is put in line."""

from octavo.core.errors import InvalidRequestError, TooLongError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.scheduler_types import SchedulerConfig


class Door:
    """Limits of one request, by the settings, the pool and what pins hold of it now."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self._config = config
        self._kv = kv

    @property
    def max_tokens_per_sequence(self) -> int:
        """The longest prompt plus output that can ever run: the context's limit or what the pool holds beside pins."""
        return min(self._config.max_model_len, self._kv.config.num_tokens_in(self._kv.keeping.pins.num_unclaimed))

    def max_tokens_per_beam(self, beam_width: int) -> int:
        """The longest prompt plus output that so many beams can have at once, should they come to share nothing."""
        num_tokens = self._kv.config.num_tokens_in(self._kv.keeping.pins.num_unclaimed // beam_width)
        return min(self.max_tokens_per_sequence, num_tokens)

    def check(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Can such a request run at all?

        Raises:
            InvalidRequestError: never, however long it waits; names the limit it breaks (spec D25).
        """
        if num_prompt_tokens == 0:
            raise InvalidRequestError("the prompt is empty: at least one token is needed to start from", "prompt")
        limit = self.max_tokens_per_sequence
        if num_prompt_tokens + max_tokens > limit:
            of_pool = limit < self._config.max_model_len
            pool = f"the KV pool{self._beside_pins} holds {limit} tokens"
            # OpenAI's words, by which clients know such an error.
            context = f"this model's maximum context length is {limit} tokens (max_model_len)"
            raise TooLongError(
                f"{pool if of_pool else context}, but this request needs {num_prompt_tokens + max_tokens} "
                f"({num_prompt_tokens} in the prompt, {max_tokens} for the output); shorten either",
                "max_tokens" if num_prompt_tokens < limit else "prompt",
            )

    def check_beams(self, num_prompt_tokens: int, max_tokens: int, beam_width: int) -> None:
        """Can the beams of such a search run, all of them at once, even if they come to share nothing?

        Raises:
            InvalidRequestError: they cannot; names the limit they break.
        """
        self.check(num_prompt_tokens, max_tokens)
        if beam_width > self._config.max_num_seqs:
            raise InvalidRequestError(
                f"beam_width {beam_width} is more than the {self._config.max_num_seqs} sequences that run at once "
                "(max_num_seqs); take fewer beams",
                "beam_width",
            )
        num_blocks = beam_width * self._kv.num_blocks_for(num_prompt_tokens + max_tokens)
        num_there = self._kv.keeping.pins.num_unclaimed
        if num_blocks > num_there:
            raise InvalidRequestError(
                f"{beam_width} beams of {num_prompt_tokens + max_tokens} tokens need {num_blocks} blocks, but the KV "
                f"pool{self._beside_pins} has {num_there}; take fewer beams or shorten prompt or output",
                "beam_width",
            )

    @property
    def _beside_pins(self) -> str:
        num_claimed = self._kv.keeping.pins.num_claimed
        return f" (beside {num_claimed} blocks for pins)" if num_claimed else ""
