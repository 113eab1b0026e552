"""The client of ``vllm bench serve``: URL TOKENIZER_FOLDER OUT_FOLDER NUM_REQUESTS PROMPT_TOKENS OUTPUT_TOKENS.

Its command would look for the package under the name of its build for GPUs, so what the command calls is called.
"""

import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

URL, TOKENIZER, OUT, NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = sys.argv[1:]


def bench(name: str, *flags: str) -> None:
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    shared = [
        f"--base-url={URL}",
        f"--tokenizer={TOKENIZER}",
        "--dataset-name=random",
        f"--random-input-len={PROMPT_TOKENS}",
        f"--random-output-len={OUTPUT_TOKENS}",
        f"--num-prompts={NUM_REQUESTS}",
        "--ready-check-timeout-sec=30",
        "--save-result",
        "--save-detailed",
        f"--result-dir={OUT}",
        f"--result-filename={name}.json",
        "--disable-tqdm",
    ]
    main(parser.parse_args([*shared, *flags]))


bench("completions", "--backend=openai", "--ignore-eos", "--logprobs=1", "--temperature=0.5", "--top-k=10")
bench("chat", "--backend=openai-chat", "--endpoint=/v1/chat/completions", "--ignore-eos", "--max-concurrency=4")
bench("responses", "--backend=openai-responses", "--endpoint=/v1/responses", "--request-rate=40")
bench("embeddings", "--backend=openai-embeddings", "--endpoint=/v1/embeddings")
