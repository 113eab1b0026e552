"""OpenVINO GenAI's continuous batching on a GGUF file."""

from typing import Any

import numpy as np
import openvino
import openvino_genai


class Engine:
    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_seqs = max_sequences
        scheduler.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        return f"openvino-genai {openvino_genai.__version__}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output_len, True, False
        inputs: list[Any] = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [config] * len(inputs))
        return [len(result.m_generation_ids[0]) for result in results]
