"""Commands that run a model in the process, over a stand-in for ``LLM`` that answers from a script."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

import octavo.llm
from octavo.cli.chat import interrupt_noted
from octavo.cli.main import octavo as command
from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import OutputDelta

Run = Callable[..., Result]


class FakeTokenizer:
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


class FakeLLM:
    """Answers with the pieces of ``script``; keeps what it was asked."""

    script: Sequence[str | Exception] = ("Pa", "", "ris")
    tokenizer = FakeTokenizer()

    def __init__(self, **engine_args: Any) -> None:
        self.engine_args = engine_args
        self.asked: list[tuple[str, SamplingParams]] = []
        self.clamped: list[bool] = []
        self.closed_early = 0
        self.is_closed = False
        FakeLLM.last = self

    last: "FakeLLM"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def get_tokenizer(self) -> FakeTokenizer:
        return self.tokenizer

    def stream(
        self, prompt_token_ids: list[int], params: SamplingParams, clamp_max_tokens: bool
    ) -> Iterator[OutputDelta]:
        self.clamped.append(clamp_max_tokens)
        self.asked.append((bytes(prompt_token_ids).decode(), params))
        try:
            for piece in self.script:
                if isinstance(piece, Exception):
                    raise piece
                yield OutputDelta("r", 0, piece)
            yield OutputDelta("r", 0, finish_reason="stop")
        except GeneratorExit:
            self.closed_early += 1
            raise


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def invoke(*arguments: str, stdin: str = "", script: Sequence[str | Exception] | None = None) -> Result:
        if script is not None:
            monkeypatch.setattr(FakeLLM, "script", script)
        return CliRunner().invoke(command, arguments, input=stdin)

    monkeypatch.setattr(octavo.llm, "LLM", FakeLLM)
    return invoke


def prompts() -> list[str]:
    return [text for text, _ in FakeLLM.last.asked]


# --- generate --------------------------------------------------------------------------------------------------------


def test_generate_prints_the_text_and_a_newline(run: Run) -> None:
    result = run("generate", "The capital of France is", "--max-tokens", "4", "-m", "a.gguf", "--seed", "3")
    assert (result.exit_code, result.output) == (0, "Paris\n")
    ((prompt, params),) = FakeLLM.last.asked
    assert (prompt, params.max_tokens, params.seed) == ("The capital of France is", 4, 3)
    assert FakeLLM.last.clamped == [False], "a client's own number is never shortened"
    assert FakeLLM.last.engine_args["model"] == "a.gguf"
    assert FakeLLM.last.is_closed, "what it has cached may be wanted on disk"


@pytest.mark.parametrize(("flags", "is_clamped"), [([], True), (["--max-tokens", "128"], False)])
def test_generate_shortens_its_default_and_no_number_of_the_users(run: Run, flags: list[str], is_clamped: bool) -> None:
    run("generate", "x", *flags)
    ((_, params),) = FakeLLM.last.asked
    assert (params.max_tokens, FakeLLM.last.clamped) == (128, [is_clamped])


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_generate_reads_standard_input(run: Run, arguments: list[str]) -> None:
    assert run("generate", *arguments, stdin="two\nlines").output == "Paris\n"
    assert prompts() == ["two\nlines"]


def test_generate_says_why_a_request_failed(run: Run) -> None:
    result = run("generate", "x", script=["Pa", InvalidRequestError("the prompt has 9000 tokens, the room is 2048")])
    assert result.exit_code == 1
    assert result.stderr == "Error: the prompt has 9000 tokens, the room is 2048\n"


def test_a_model_that_cannot_load_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_engine_args: Any) -> FakeLLM:
        raise ConfigurationError("/nowhere/model.gguf does not exist")

    monkeypatch.setattr(octavo.llm, "LLM", refuse)
    for name, flags in (("generate", ["x"]), ("chat", [])):
        result = CliRunner().invoke(command, [name, *flags])
        assert (result.exit_code, result.output) == (1, "Error: /nowhere/model.gguf does not exist\n")


# --- chat ------------------------------------------------------------------------------------------------------------


def test_chat_remembers_what_was_said(run: Run) -> None:
    result = run("chat", "--system", "Be brief.", stdin="Hello\n\nAnd Spain?\n")
    assert result.exit_code == 0
    assert result.output.count("Paris") == 2
    assert prompts() == [
        "<system>Be brief.<user>Hello",
        "<system>Be brief.<user>Hello<assistant>Paris<user>And Spain?",
    ]
    assert FakeLLM.last.asked[0][1].max_tokens is None


def test_chat_reset_keeps_the_system_message_only(run: Run) -> None:
    run("chat", "--system", "Be brief.", stdin="Hello\n/reset\nAgain\n")
    assert prompts()[-1] == "<system>Be brief.<user>Again"


def test_chat_quit_ends_and_unknown_commands_explain(run: Run) -> None:
    result = run("chat", stdin="/what\n/quit\nnever read\n")
    assert result.exit_code == 0
    assert result.output.count("Ctrl-D or /quit ends") == 2
    assert prompts() == []


def test_chat_goes_on_after_a_refused_message(run: Run) -> None:
    result = run("chat", stdin="long\nshort\n", script=[InvalidRequestError("too long by 5 tokens")])
    assert result.exit_code == 0
    assert result.stderr.count("too long by 5 tokens (/reset starts anew)") == 2
    assert prompts() == ["<user>long", "<user>short"]


class Interrupting(str):
    """A piece of text that presses Ctrl-C when it is printed."""

    __slots__ = ()

    def __bool__(self) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True


def test_ctrl_c_stops_an_answer_and_keeps_its_beginning(run: Run) -> None:
    result = run("chat", stdin="Hello\nGo on\n", script=["Pa", Interrupting("r"), "is"])
    assert result.exit_code == 0
    assert prompts() == ["<user>Hello", "<user>Hello<assistant>Par<user>Go on"]
    assert FakeLLM.last.closed_early == 2


def test_ctrl_c_is_noted_not_raised_and_comes_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupt_noted() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped()
    assert signal.getsignal(signal.SIGINT) is before


def test_chat_refuses_a_model_without_a_template(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTokenizer, "has_chat_template", False)
    result = run("chat", "-m", "base.gguf")
    assert result.exit_code == 1
    assert result.output.startswith("Error: base.gguf has no chat template: use `octavo generate`")
