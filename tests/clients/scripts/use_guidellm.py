"""guidellm, as its command runs: URL TOKENIZER_FOLDER OUT_FOLDER NUM_REQUESTS PROMPT_TOKENS OUTPUT_TOKENS.

Writes a report for completions and one for chat.
"""

import sys

from guidellm.__main__ import cli


def run(url: str, tokenizer: str, out: str, num_requests: str, prompt_tokens: str, output_tokens: str) -> None:
    for name in ("completions", "chat/completions"):
        cli(
            [
                "run",
                f"--backend=kind=openai_http,target={url},request_format=/v1/{name}",
                "--profile=kind=concurrent,streams=4",
                f"--constraint=kind=max_requests,count={num_requests}",
                f"--tokenizer=kind=hf_auto,model={tokenizer}",
                f"--data=kind=synthetic_text,prompt_tokens={prompt_tokens},output_tokens={output_tokens}",
                f"--output=kind=json,path={out}/{name.partition('/')[0]}.json",
                "--disable-console",
            ],
            standalone_mode=False,
        )


if __name__ == "__main__":  # its workers import this file
    run(*sys.argv[1:])
