"""The ``generate`` of transformers in fp32, all prompts in one batch."""

import torch
import transformers


class Engine:
    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        torch.set_num_threads(threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        return f"transformers {transformers.__version__}, torch {torch.__version__}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        ids = torch.tensor(prompts)
        drawn = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            pad_token_id=0,
        )
        return [drawn.shape[1] - ids.shape[1]] * len(prompts)
