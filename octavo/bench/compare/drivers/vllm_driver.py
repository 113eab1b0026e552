"""vLLM on the CPU in fp32, with its prefix cache."""

import os

# Read when vLLM is imported. The engine in this process: no second one polls for work while others are measured.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"  # GiB


class Engine:
    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model, dtype="float32", skip_tokenizer_init=True, max_model_len=max_tokens + 16, max_num_seqs=max_sequences
        )
        return f"vllm-cpu {vllm.__version__}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=output_len, min_tokens=output_len, ignore_eos=True, detokenize=False
        )
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]
