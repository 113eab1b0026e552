"""lm-eval's local-completions at the server, and its hf back end (transformers) on the same weights: URL MODEL_FOLDER.

The questions are those of MMLU that lm-eval ships, as examples of its flan_cot_fewshot tasks: the 50 shortest, each
answered by the most likely of its four choices. Writes {"octavo" | "hf": {"acc", "acc_norm", "answers"}}, where answers
has of each question and choice the summed logprob and whether it is what greedy decoding gives.
"""

import importlib.resources
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import datasets
import lm_eval
from lm_eval.api.task import ConfigurableTask

URL, MODEL = sys.argv[1:]
NUM_QUESTIONS = 50
QUESTION = re.compile(
    r"(.*?)\n\(A\) (.*?) \(B\) (.*?) \(C\) (.*?) \(D\) (.*?)\nA: .*The answer is \(([A-D])\)", re.DOTALL
)


def questions(**_: Any) -> datasets.DatasetDict:
    shipped = importlib.resources.files("lm_eval") / "tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
    found = []
    for text in json.loads(shipped.read_text(encoding="utf-8")).values():
        parts = (QUESTION.match(part) for part in re.split(r"\n\s*Q: ", text)[1:])
        found += [part.groups() for part in parts if part is not None]
    found.sort(key=lambda groups: (len("".join(groups)), groups))
    rows = [
        {"question": question, "choices": choices, "answer": "ABCD".index(answer)}
        for question, *choices, answer in found[:NUM_QUESTIONS]
    ]
    return datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})


def task() -> ConfigurableTask:
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    return ConfigurableTask(
        config={
            "task": "mmlu_shipped",
            "custom_dataset": questions,
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "Question: {{question}}\nAnswer:",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "metric_list": metrics,
            "num_fewshot": 0,
        }
    )


def evaluate(backend: str, /, **settings: Any) -> Mapping[str, Any]:
    found = lm_eval.simple_evaluate(
        model=backend, model_args=settings, tasks=[task()], batch_size=8, bootstrap_iters=0, log_samples=True
    )
    samples = sorted(found["samples"]["mmlu_shipped"], key=lambda sample: sample["doc_id"])
    return {
        "acc": found["results"]["mmlu_shipped"]["acc,none"],
        "acc_norm": found["results"]["mmlu_shipped"]["acc_norm,none"],
        "answers": [[(float(each[0][0]), str(each[0][1]) == "True") for each in sample["resps"]] for sample in samples],
    }


octavo = evaluate(
    "local-completions",
    model="fake",
    base_url=f"{URL}/v1/completions",
    tokenizer=MODEL,
    num_concurrent=2,
    max_retries=1,
)
hf = evaluate("hf", pretrained=MODEL, dtype="float32", device="cpu", add_bos_token=False)
print(json.dumps({"octavo": octavo, "hf": hf}))
