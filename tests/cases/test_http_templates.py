"""B44 and B58 from outside: `octavo serve` against transformers, and with templates that mean harm."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.loading.test_chat_template import CALL, CASES, RESULT, TEMPLATES, TOOL
from tests.loading.tokenizer_builders import byte_level, write_folder
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model

ROWS = 1024
ASK = {"role": "user", "content": "Weather?"}


def model(folder: Path, template: str | None) -> Path:
    named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "add_bos_token": True}
    rand_model(folder, vocab_size=ROWS)
    return write_folder(folder, byte_level("llama-bpe"), **named, **({"chat_template": template} if template else {}))


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[ServerProcess]:
    with running_real_server(folder, "--num-blocks", "400", *flags) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("qwen3"), (TEMPLATES / "qwen3.jinja").read_text())


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with serving(folder) as server, server.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def chat(client: httpx.Client, messages: Any, **fields: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 1, "return_token_ids": True} | fields
    return client.post("/v1/chat/completions", json=body)


def test_b44_prompt_ids_are_those_of_transformers(client: httpx.Client, reference: PreTrainedTokenizerBase) -> None:
    compared = 0
    for messages, options in CASES.values():
        if not messages or options.get("continue_final_message") or messages[-1].get("content") is None:
            continue
        asked = {"add_generation_prompt": True} | options
        answer = chat(client, messages, **asked)
        expected = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["prompt_token_ids"] == expected
        assert answer.json()["usage"]["prompt_tokens"] == len(expected)
        shown = client.post("/tokenize", json={"messages": messages} | asked).json()
        assert shown["tokens"] == expected
        compared += 1
    assert compared >= 15


def test_b44_arguments_come_as_text(client: httpx.Client, reference: PreTrainedTokenizerBase) -> None:
    """As clients have them; the template gets an object."""
    as_text = json.loads(json.dumps(CALL))
    as_text["function"]["arguments"] = json.dumps(CALL["function"]["arguments"], indent=3)
    asked = [ASK, {"role": "assistant", "content": None, "tool_calls": [as_text], "refusal": None}, RESULT]
    answer = chat(client, asked, tools=[TOOL], tool_choice="auto", chat_template_kwargs={"enable_thinking": False})
    expected = reference.apply_chat_template(
        [ASK, {"role": "assistant", "tool_calls": [CALL]}, RESULT],
        tools=[TOOL],
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )
    assert answer.json()["prompt_token_ids"] == expected


def test_b58_what_a_request_may_not_set(client: httpx.Client) -> None:
    """DECISION D21; and Jinja in what is sent is text."""
    refused = [{"chat_template": "{{ 1 }}"}]
    refused += [{"chat_template_kwargs": {name: "x"}} for name in ("tokenize", "messages", "chat_template", "tools")]
    for fields in refused:
        answer = chat(client, [ASK], **fields)
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["param"] in fields
    code = "{{ 7 * 7 }}{% for i in range(9) %}x{% endfor %}"
    tool = {"type": "function", "function": {"name": code, "description": code}}
    answer = chat(client, [{"role": "user", "content": code}], tools=[tool], chat_template_kwargs={"other": code})
    assert answer.status_code == 200, answer.text
    ids = answer.json()["prompt_token_ids"]
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"].count(code) == 3


def test_b44_no_template(tmp_path: Path) -> None:
    """Chat is refused, completions work. With --chat-template FILE it chats; that template's words reach the client."""
    folder = model(tmp_path / "model", None)
    with serving(folder) as server, server.client() as client:
        answer = chat(client, [ASK])
        assert answer.status_code == 400
        assert "--chat-template" in answer.json()["error"]["message"]
        done = client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
        assert done.status_code == 200
    file = tmp_path / "given.jinja"
    file.write_text("{% if messages|length > 1 %}{{ raise_exception('One at a time, please!') }}{% endif %}Q: ...")
    with serving(folder, "--chat-template", str(file)) as server, server.client() as client:
        ids = chat(client, [ASK]).json()["prompt_token_ids"]
        assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "Q: ..."
        answer = chat(client, [ASK, ASK])
        assert answer.status_code == 400
        assert "One at a time, please!" in answer.json()["error"]["message"]


HARMFUL = {
    "insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "file": "{{ open('MARKER', 'w') }}",
    "loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{{ 'x' * 10000000000 }}",
    "include": "{% include '/etc/passwd' %}",
    "changes": "{{ messages.append(1) }}",
}


def test_b58_harmful_templates(tmp_path: Path) -> None:
    """Each request is refused in time, nothing is written, memory is bounded, and others are served meanwhile."""
    marker = tmp_path / "marker"
    cases = "".join(
        f"{{% if messages[0].content == '{name}' %}}{text.replace('MARKER', str(marker))}{{% endif %}}"
        for name, text in HARMFUL.items()
    )
    folder = model(tmp_path / "model", "Hello {{ messages[0].content }}" + cases)
    with serving(folder) as server, server.client() as client, most_memory(server) as most:
        for name in HARMFUL:
            other = threading.Thread(target=lambda: _check_others(server))
            other.start()
            began = time.monotonic()
            answer = chat(client, [{"role": "user", "content": name}])
            assert answer.status_code == 400, name
            assert time.monotonic() - began < 15  # 3 s where nothing else runs; 5 are allowed
            other.join()
        assert chat(client, [{"role": "user", "content": "friend"}]).status_code == 200
    assert 0 < most[0] < 5 * 2**28
    assert not marker.exists()


def _check_others(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
        assert answer.status_code == 200


@contextmanager
def most_memory(server: ServerProcess) -> Iterator[list[int]]:
    """A list of one number: the most bytes that a process which renders templates has held."""
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for child in psutil.Process(server.process.pid).children():
                with suppress(psutil.Error):  # it has just ended
                    if "template_worker" in " ".join(child.cmdline()):
                        most[0] = max(most[0], child.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()
