"""POST /v1/embeddings: the real openai client over the fake engine; and a real model against transformers, bit for bit
the same alone, beside others, in chunks and after preemption."""

import base64
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from octavo import LLM, InvalidRequestError
from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model

PROMPTS = [[(7 * i + 3 * n) % RAND_VOCAB for i in range(n)] for n in (1, 2, 15, 16, 17, 40, 90)]


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def fake_vector(text: str) -> list[float]:
    """What the fake engine gives, scaled: BOS and the bytes, summed and counted."""
    ids = [256, *text.encode()]
    return scaled([sum(ids), len(ids), 3.0, 4.0])


def scaled(vector: Sequence[float]) -> list[float]:
    length = sum(each**2 for each in vector) ** 0.5
    return [each / length for each in vector]


def test_texts_ids_and_lists_of_either(api: openai.OpenAI) -> None:
    texts = ["one", "two words", "漢字"]
    for given in (texts, [[256, *text.encode()] for text in texts]):
        answer = api.embeddings.create(model=MODEL, input=given)  # the client asks for base64 by itself
        assert [each.index for each in answer.data] == [0, 1, 2]
        for shown, text in zip(answer.data, texts, strict=True):
            assert shown.embedding == pytest.approx(fake_vector(text), abs=1e-6)
        num_tokens = sum(1 + len(text.encode()) for text in texts)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)
    for alone in ("one", [256, *b"one"]):
        (shown,) = api.embeddings.create(model=MODEL, input=alone).data
        assert shown.embedding == pytest.approx(fake_vector("one"), abs=1e-6)


def test_formats_and_dimensions(client: httpx.Client) -> None:
    def ask(**fields: Any) -> Any:
        (found,) = client.post("/v1/embeddings", json={"input": "one"} | fields).json()["data"]
        return found["embedding"]

    numbers = ask(encoding_format="float")
    assert numbers == ask() == pytest.approx(fake_vector("one"))
    packed = struct.unpack("<4f", base64.b64decode(ask(encoding_format="base64")))
    assert packed == pytest.approx(numbers)
    assert ask(dimensions=2) == pytest.approx(scaled(numbers[:2]))
    assert ask(dimensions=4) == numbers


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [264]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": ["x"] * 257}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_bad_values(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = client.post("/v1/embeddings", json={"input": "x"} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


# A real model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@contextmanager
def served(path: Path, *flags: str) -> Iterator[httpx.Client]:
    common = ("--dtype", "float32", "--max-model-len", "128", "--threads", "1", "--swap-space", "0")
    with running_real_server(path, *common, *flags) as running, running.wait_ready().client() as client:
        yield client


def vectors(client: httpx.Client, prompts: Sequence[list[int]]) -> list[list[float]]:
    answer = client.post("/v1/embeddings", json={"input": prompts})
    assert answer.status_code == 200, answer.text
    return [each["embedding"] for each in answer.json()["data"]]


def expected(path: Path, pooling: str) -> list[torch.Tensor]:
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0].double() for prompt in PROMPTS]
    pooled = [state.mean(0) if pooling == "mean" else state[-1] for state in states]
    return [each / each.norm() for each in pooled]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_against_transformers_and_the_same_bits_in_any_company(path: Path, pooling: str) -> None:
    with served(path, "--num-blocks", "64", "--pooling", pooling) as client:
        alone = [vectors(client, [prompt])[0] for prompt in PROMPTS]
        assert vectors(client, PROMPTS) == alone
        assert vectors(client, PROMPTS[::-1]) == alone[::-1]  # the cache has all of them now
        longer = [[*PROMPTS[-1], 5, 6]]
        after_a_hit = vectors(client, longer)
    with LLM(str(path), dtype="float32", num_blocks=64, swap_space=0, threads=1) as llm:
        found = llm.embed(PROMPTS, pooling=pooling)  # type: ignore[arg-type]
        assert [each.outputs.embedding for each in found] == alone
        assert [each.prompt_token_ids for each in found] == PROMPTS
        with pytest.raises(InvalidRequestError, match="pooling must be one of"):
            llm.embed(PROMPTS, pooling="max")  # type: ignore[arg-type]
    for found, wanted in zip(alone, expected(path, pooling), strict=True):
        assert torch.allclose(torch.tensor(found, dtype=torch.float64), wanted, atol=2e-5)
    flags = ("--max-num-batched-tokens", "8", "--max-num-seqs", "8", "--pooling", pooling)
    with served(path, "--num-blocks", "9", *flags) as client:  # chunks, and too few blocks for two of the longest
        assert vectors(client, PROMPTS * 3) == alone * 3
        assert vectors(client, longer) == after_a_hit
