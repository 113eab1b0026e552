"""The answer that README shows is the one that the built-in model gives."""

import json
import re
from pathlib import Path

from octavo import LLM, SamplingParams

README = Path(__file__).parents[2] / "README.md"


def test_the_answer_of_the_curl_example(smollm2_path: Path) -> None:
    readme = README.read_text(encoding="utf-8")
    question, answer = re.findall(r"-d '(.*?)'.*?answers.*?\n\n    (.*?)\n\n", readme, re.DOTALL)[0]
    body, shown = json.loads(question), json.loads(answer)
    params = SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"])
    output = LLM(str(smollm2_path), num_blocks=64).chat(body["messages"], params)[0]
    choice = shown["choices"][0]
    assert output.outputs[0].text == choice["message"]["content"]
    assert output.outputs[0].finish_reason == choice["finish_reason"]
    assert len(output.prompt_token_ids) == shown["usage"]["prompt_tokens"]
    assert len(output.outputs[0].token_ids) == shown["usage"]["completion_tokens"]
