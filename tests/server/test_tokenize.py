"""/tokenize and /detokenize in vLLM's shapes; D17."""

from typing import Any

import httpx
import pytest

from tests.support.byte_tokenizer import BOS, EOS
from tests.support.fake_server import running_server


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"prompt": "hé"}, [BOS, *"hé".encode()]),
        ({"prompt": "hi", "add_special_tokens": False}, list(b"hi")),
        ({"prompt": "<s>hi"}, [BOS, *b"hi"]),  # D17: no second BOS
        ({"prompt": ""}, [BOS]),
        ({"messages": [{"role": "user", "content": "a"}]}, [BOS, *b"user: a\nassistant: "]),
        ({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False}, [BOS, *b"user: a\n"]),
    ],
    ids=str,
)
def test_tokenize(client: httpx.Client, fields: dict[str, Any], ids: list[int]) -> None:
    body = client.post("/tokenize", json=fields).json()
    assert body == {"tokens": ids, "count": len(ids), "max_model_len": 512, "token_strs": None}


def test_token_strings(client: httpx.Client) -> None:
    body = client.post("/tokenize", json={"prompt": "hi", "return_token_strs": True}).json()
    assert body["token_strs"] == ["<s>", "h", "i"]


def test_detokenize(client: httpx.Client) -> None:
    answer = client.post("/detokenize", json={"tokens": [BOS, *"hé".encode(), EOS]})
    assert answer.json() == {"prompt": "<s>hé</s>"}
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [264]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
    ids=str,
)
def test_bad_input(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    answer = client.post(path, json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_what_the_tokenizer_is_is_told_where_asked(client: httpx.Client) -> None:
    """lm-eval takes the route for an invitation, and then measures something else."""
    refused = client.get("/tokenizer_info")
    assert refused.status_code == 404
    assert "--enable-tokenizer-info-endpoint" in refused.json()["error"]["message"]
    with running_server({}, enable_tokenizer_info_endpoint=True) as server:
        body = httpx.get(f"{server.wait_ready().url}/tokenizer_info").json()
    assert (body["bos_token"], body["eos_token"], body["special_tokens"]) == ("<s>", "</s>", ["<s>", "</s>"])
    assert (body["vocab_size"], body["model_max_length"]) == (258, 512)
    assert "chat_template" in body
