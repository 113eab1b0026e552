"""SmolLM2 writes what it is asked for: JSON of several schemas, by the real ``openai`` client with pydantic models, the
same with drafts and without, beside others and alone."""

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

import octavo.build
from octavo.core.sampling_params import SamplingParams
from tests.support.driving import Driver, Job, all_bits, at_steps, run_apart
from tests.support.fake_engine import MODEL
from tests.support.fake_server import ServerProcess, running_real_server

SETTINGS: dict[str, Any] = {"max_model_len": 512, "num_blocks": 200, "max_num_seqs": 8}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


class Pet(BaseModel):
    name: str = Field(max_length=20)
    kind: Kind
    age: int = Field(ge=0, le=30)


class Person(BaseModel):
    name: str = Field(max_length=30)
    email: str | None
    pets: list[Pet] = Field(max_length=2)
    mood: Literal["glad", "sad"]


class Step(BaseModel):
    explanation: str = Field(max_length=60)
    output: str = Field(max_length=20)


class Solution(BaseModel):
    steps: list[Step] = Field(min_length=1, max_length=2)
    final_answer: int = Field(ge=-1000, le=1000)


QUESTIONS: list[tuple[type[BaseModel], str]] = [
    (Person, "Describe a person with pets."),
    (Solution, "Solve 8x + 7 = 23 step by step."),
    (Pet, "Describe the cat Mia, three years old."),
]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServerProcess]:
    with running_real_server(smollm2_path, "--max-model-len", "1024", "--num-blocks", "400") as running:
        yield running.wait_ready()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.mark.parametrize(("model", "question"), QUESTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_openai_client_parses_into_pydantic_models(
    api: openai.OpenAI, model: type[BaseModel], question: str
) -> None:
    for temperature in (0.0, 1.0):
        answer = api.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            response_format=model,
            temperature=temperature,
            seed=3,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, model)


def test_streamed_as_whole(api: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Name three colours, as JSON."}],
        "response_format": {"type": "json_object"},
        "temperature": 0,
        "max_tokens": 60,
    }
    whole = api.chat.completions.create(**fields).choices[0]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in api.chat.completions.create(**fields, stream=True))
    assert text == whole.message.content
    if whole.finish_reason == "stop":
        json.loads(text)


@pytest.fixture(scope="module")
def jobs(smollm2_path: Path) -> list[Job]:
    tokenizer = octavo.build.load_tokenizer(smollm2_path, None)
    kinds: list[tuple[str, dict[str, Any] | None]] = [
        ("Describe a person with pets, as JSON.", {"json": Person.model_json_schema()}),
        ("Write the list of the numbers 1 to 20.", {"regex": r"(\d+, )*\d+"}),
        ("Is Paris in France?", {"choice": ["yes", "no", "I do not know"]}),
        ("Add two numbers.", {"grammar": 'root ::= num "+" num "=" num\nnum ::= [0-9]+'}),
        ("Tell me a story.", None),
    ]
    draws: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 4, "n": 2}]
    return [
        Job(
            tokenizer.apply_chat_template([{"role": "user", "content": question}]),
            SamplingParams(max_tokens=70, logprobs=1, structured_outputs=asked, **draw),
        )
        for question, asked in kinds
        for draw in draws
    ]


@pytest.fixture(scope="module")
def plain(smollm2_path: Path, jobs: list[Job]) -> list[list[Any]]:
    answers = run_apart(Driver(smollm2_path, checks=False, **SETTINGS), jobs)
    for job, choices in zip(jobs, answers, strict=True):
        asked = job.params.constraint
        for choice in choices:
            if asked is not None and asked.kind == "json_schema" and choice.finish_reason == "stop":
                Person.model_validate_json(choice.text)
            if asked is not None and asked.kind == "choice":
                assert choice.text in json.loads(asked.text)
    return all_bits(answers)


def test_a_sentencepiece_vocabulary_with_a_quarter_of_a_million_tokens(gemma3_path: Path) -> None:
    driver = Driver(gemma3_path, checks=False, **SETTINGS)
    prompt = driver.tokenizer.encode('{"name": "Tom", "kind": "dog", "age": 4}\n' * 3)
    kinds: list[dict[str, Any]] = [
        {"json": Pet.model_json_schema()},
        {"choice": ["München", "東京", " a  b"]},
        {"regex": "[äöü ]{3,9}"},
    ]
    jobs = [
        Job(prompt, SamplingParams(max_tokens=80, temperature=0.5, seed=seed, structured_outputs=asked))
        for asked in kinds
        for seed in (1, 2)
    ]
    answers = [answer for (answer,) in driver.run(jobs)]
    assert [answer.finish_reason for answer in answers] == ["stop"] * len(jobs)
    texts = [answer.text for answer in answers]
    assert all(Pet.model_validate_json(text) for text in texts[:2])
    assert set(texts[2:4]) <= {"München", "東京", " a  b"}
    assert all(3 <= len(text) <= 9 and set(text) <= set("äöü ") for text in texts[4:])


@pytest.mark.parametrize(
    "settings",
    [{}, {"speculation": "ngram"}, {"max_steps_in_flight": 2}, {"num_blocks": 33, "swap_space": 0}],
    ids=str,
)
def test_the_same_bits_in_a_batch(
    smollm2_path: Path, jobs: list[Job], plain: list[list[Any]], settings: dict[str, Any]
) -> None:
    driver = Driver(smollm2_path, checks=False, **SETTINGS | settings)
    assert all_bits(driver.run(at_steps(jobs, [3 * place for place in range(len(jobs))]))) == plain
    if "speculation" in settings:
        assert driver.stats.num_accepted_tokens > 0
