"""Schemas with texts that fit them and texts that do not: are they followed, and at what cost?"""

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.loading.interface import Tokenizer
from octavo.runner.row_grammar import RowGrammar
from octavo.structured.compiler import CompiledGrammar
from octavo.structured.vocabulary import Vocabulary


def read_schemas(path: Path) -> Iterator[dict[str, Any]]:
    """
    Raises:
        ConfigurationError: the file cannot be read as JSON lines.
    """
    try:
        data = path.read_bytes()
        for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines():
            yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigurationError(f"{path} does not hold JSON lines: {error}"[:300]) from error


@dataclass
class Following:
    """``right``, ``num_tests``: by whether the text fits. ``refused``: reasons."""

    num_schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    num_tests: Counter[bool] = field(default_factory=Counter)
    right: Counter[bool] = field(default_factory=Counter)
    wrong_ids: list[str] = field(default_factory=list)
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)

    @property
    def row(self) -> dict[str, object]:
        compiled, masks = sorted(self.compile_seconds), sorted(self.mask_seconds)
        return {
            "schemas": self.num_schemas,
            "refused": self.refused.total(),
            "valid": self.num_tests[True],
            "valid_percent": _percent(self.right[True], self.num_tests[True]),
            "invalid": self.num_tests[False],
            "invalid_percent": _percent(self.right[False], self.num_tests[False]),
            "compile_milliseconds": 1e3 * sum(compiled) / max(1, len(compiled)),
            "most_compile_milliseconds": 1e3 * max(compiled, default=0.0),
            "mask_microseconds": 1e6 * sum(masks) / max(1, len(masks)),
            "late_mask_microseconds": 1e6 * masks[99 * len(masks) // 100] if masks else None,
            "most_mask_microseconds": 1e6 * max(masks, default=0.0),
            "reasons": dict(self.refused.most_common()),
            "wrong": self.wrong_ids,
        }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def follow_schemas(entries: Iterable[dict[str, Any]], tokenizer: Tokenizer) -> Following:
    """Each text goes through its grammar token by token, as an answer would, as far as it may. Times are of this
    thread's CPU."""
    following = Following()
    vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    for entry in entries:
        following.num_schemas += 1
        start = time.thread_time()
        try:
            params = SamplingParams(structured_outputs={"json": entry["schema"]})
            assert params.constraint is not None
            grammar = CompiledGrammar(params.constraint, vocabulary)
        except InvalidRequestError as error:
            following.refused[error.message[:60]] += 1
            continue
        following.compile_seconds.append(time.thread_time() - start)
        for test in entry["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            fits = _fits(grammar, tokenizer.encode(text, False), tokenizer.eos_token_ids, following.mask_seconds)
            following.num_tests[test["valid"]] += 1
            following.right[test["valid"]] += fits == test["valid"]
            if fits != test["valid"]:
                following.wrong_ids.append(entry["id"])
    return following


def _fits(grammar: CompiledGrammar, token_ids: list[int], end_ids: frozenset[int], seconds: list[float]) -> bool:
    """May all these tokens come, and then the end?"""
    row = RowGrammar(grammar, end_ids)
    for token_id in token_ids:
        if not _may_come(row, token_id, seconds):
            return False
        row.consume(token_id)
    return row.is_complete or any(_may_come(row, end_id, seconds) for end_id in end_ids)


def _may_come(row: RowGrammar, token_id: int, seconds: list[float]) -> bool:
    start = time.thread_time()
    row.fill()
    seconds.append(time.thread_time() - start)
    bits = row.bits
    return bits is not None and bool(bits[token_id >> 5] >> (token_id & 31) & 1)
