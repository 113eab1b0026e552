"""What fewer bits a key and value cost: logits with KV in fp16 or int8 against those with fp32, on real prompts.

    python -m bench.kv_dtype [--model NAME ...] [--kv-cache-dtype NAME ...] [--prompts N] [--new-tokens N] [--json FILE]

50 first questions of MT-bench (bench/data), each in the model's chat template if it has one, then the tokens that the
model with fp32 KV answers greedily. Both caches see the same tokens (teacher-forced), so that every position is
compared. An answer of the shorter cache equals that of fp32 as far as the likeliest tokens agree, whole if all of them
do: bits do not depend on whether tokens were computed one by one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from torch import Tensor

from octavo.bench.report import report
from octavo.cli.table import json_option
from octavo.kernels.registry import select_ops
from octavo.loading.interface import Tokenizer
from octavo.loading.resolve import resolve_model
from octavo.loading.tokenizer import load_tokenizer
from octavo.loading.weights import load_model
from octavo.models.interface import Model
from tests.support.forward import SequenceRun

PROMPTS_PATH = Path(__file__).parent / "data" / "mt_bench.jsonl"
"""Of MT-bench (Zheng et al., 2023, arXiv:2306.05685), by way of FastChat; Apache 2.0, bench/data/LICENSE.FastChat."""

CHUNK = 64
"""Prompt tokens at a time: the logits of more would take much memory where the vocabulary is large."""

COLUMNS = {
    "model": "model",
    "kv_dtype": "KV",
    "num_prompts": "prompts",
    "num_positions": "positions",
    "max_error": "max error",
    "mean_error": "mean error",
    "logit_deviation": "std of logits",
    "mean_divergence": "KL, nats",
    "agreement": "same best, %",
    "new_agreement": "of new, %",
    "num_same_answers": "same answers",
}


@dataclass
class Difference:
    """Sums over the positions of any number of prompts; logits are compared in fp32."""

    num_prompts: int = 0
    num_positions: int = 0
    num_agreeing: int = 0
    num_new: int = 0
    num_new_agreeing: int = 0
    num_same_answers: int = 0
    max_error: float = 0.0
    sum_of_mean_errors: float = 0.0
    sum_of_deviations: float = 0.0
    sum_of_divergences: float = 0.0

    def add_positions(self, exact: Tensor, rounded: Tensor) -> int:
        """Compare logits [n, vocab]; returns at how many of the n positions the likeliest token is the same."""
        error = (rounded - exact).abs()
        self.num_positions += len(exact)
        self.max_error = max(self.max_error, float(error.max()))
        self.sum_of_mean_errors += float(error.mean(dim=1).sum())
        self.sum_of_deviations += float(exact.std(dim=1).sum())
        exact_logprobs, rounded_logprobs = exact.log_softmax(-1), rounded.log_softmax(-1)
        self.sum_of_divergences += float((exact_logprobs.exp() * (exact_logprobs - rounded_logprobs)).sum())
        num_agreeing = int((exact.argmax(dim=1) == rounded.argmax(dim=1)).sum())
        self.num_agreeing += num_agreeing
        return num_agreeing

    def figures(self) -> dict[str, object]:
        return {
            "num_prompts": self.num_prompts,
            "num_positions": self.num_positions,
            "max_error": self.max_error,
            "mean_error": self.sum_of_mean_errors / self.num_positions,
            "logit_deviation": self.sum_of_deviations / self.num_positions,
            "mean_divergence": self.sum_of_divergences / self.num_positions,
            "agreement": 100 * self.num_agreeing / self.num_positions,
            "new_agreement": 100 * self.num_new_agreeing / self.num_new,
            "num_same_answers": self.num_same_answers,
        }


def read_prompts(count: int) -> list[str]:
    """The first ``count`` of the 50 questions."""
    return [json.loads(line)["prompt"] for line in PROMPTS_PATH.read_text(encoding="utf-8").splitlines()[:count]]


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The question as the model is asked it; one without a chat template is given the bare text."""
    if not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.apply_chat_template([{"role": "user", "content": text}])


@torch.inference_mode()
def compare(model: Model, kv_dtype: torch.dtype, prompts: Sequence[Sequence[int]], num_new: int) -> Difference:
    """KV in fp32 and in ``kv_dtype`` over each of ``prompts`` and ``num_new`` tokens after it. Each position of a
    prompt counts, and each that draws a new token."""
    difference = Difference()
    for prompt in prompts:
        exact, rounded = (
            SequenceRun(model, len(prompt) + num_new, block_size=16, kv_dtype=dtype)
            for dtype in (torch.float32, kv_dtype)
        )
        *pieces, rest = (list(prompt[start : start + CHUNK]) for start in range(0, len(prompt), CHUNK))
        last = rest.pop()
        for piece in filter(None, [*pieces, rest]):
            difference.add_positions(exact.feed(piece), rounded.feed(piece))
        drawing, logits = [last], []
        for _ in range(num_new):
            logits.append(exact.feed(drawing[-1:]))
            drawing.append(int(logits[-1].argmax()))
        num_agreeing = difference.add_positions(torch.cat(logits), rounded.feed(drawing[:-1]))
        difference.num_prompts += 1
        difference.num_new += num_new
        difference.num_new_agreeing += num_agreeing
        difference.num_same_answers += num_agreeing == num_new
    return difference


@click.command()
@click.option("--model", "models", multiple=True, default=["smollm2-135m", "gemma3-270m"], help="Any number of times.")
@click.option("--kv-cache-dtype", "kv_dtypes", multiple=True, default=["float16", "int8"], help="Likewise.")
@click.option("--prompts", "num_prompts", type=click.IntRange(1, 50), default=50, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1), default=32, show_default=True, help="Greedy, after each prompt.")
@json_option
def main(
    models: Sequence[str], kv_dtypes: Sequence[str], num_prompts: int, new_tokens: int, json_path: Path | None
) -> None:
    """Compare logits and greedy answers with KV in fewer bits to those with KV in fp32."""
    rows: list[dict[str, object]] = []
    for name in models:
        path = resolve_model(name)
        model, tokenizer = load_model(path, select_ops(), dtype="float32").model, load_tokenizer(path)
        prompts = [prompt_ids(tokenizer, text) for text in read_prompts(num_prompts)]
        for kv_dtype in kv_dtypes:
            figures = compare(model, getattr(torch, kv_dtype), prompts, new_tokens).figures()
            rows.append({"model": name, "kv_dtype": kv_dtype} | figures)
    report("kv_dtype", rows, COLUMNS, json_path)


if __name__ == "__main__":
    main()
