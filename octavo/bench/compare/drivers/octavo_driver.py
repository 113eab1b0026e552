"""Octavo as its users have it: ``LLM.generate``, with scheduler, sampler and detokeniser."""

from octavo import LLM, SamplingParams, __version__

KV_BYTES = 2 << 30
"""More than any cell needs; what is not written takes no memory."""


class Engine:
    """Weights computed with as they are stored. Without speculation: the peers have none, and answers to random prompts
    repeat themselves as no others do."""

    dtype = "auto"

    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        self._llm = LLM(
            model,
            dtype=self.dtype,
            threads=threads,
            kv_cache_memory_bytes=KV_BYTES,
            swap_space=0,
            kv_sanitizer=False,
            speculation="off",
        )
        return f"octavo {__version__}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        return [len(output.outputs[0].token_ids) for output in self._llm.generate(prompts, params)]


class Float32Engine(Engine):
    """Weights unpacked to fp32."""

    dtype = "float32"
