"""The peer of ``octavo bench throughput``: static batches through transformers. An optional library."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from octavo.core.errors import ConfigurationError
from octavo.loading.resolve import resolve_model

if TYPE_CHECKING:
    from octavo.bench.throughput import Workload


class StaticBatching:
    """fp32, batches of ``batch_size`` in order of arrival, left padding with an attention mask; greedy, EOS ignored.

    Torch's number of threads is the caller's business.

    Raises:
        ConfigurationError: a library that this needs is not installed.
    """

    def __init__(self, model: str, batch_size: int) -> None:
        self._model = _load(resolve_model(model))
        self._batch_size = batch_size

    def run(self, workload: "Workload") -> float:
        """Seconds for all batches, one after the other."""
        size = self._batch_size
        start = time.perf_counter()
        for first in range(0, len(workload.prompts), size):
            batch = slice(first, first + size)
            self._run_batch(workload.prompts[batch], max(workload.output_lens[batch]))
        return time.perf_counter() - start

    def _run_batch(self, prompts: list[list[int]], num_tokens: int) -> None:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        drawn = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
        assert drawn.shape == (len(prompts), width + num_tokens), "every batch runs to its longest output"


def _load(path: Path) -> Any:
    for library in ("transformers", "accelerate"):
        if find_spec(library) is None:
            raise ConfigurationError(f"--against transformers needs the library {library}: pip install {library}")
    from transformers import AutoModelForCausalLM

    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
