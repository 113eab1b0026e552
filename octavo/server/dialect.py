"""How the served model writes tool calls and marks its thinking: as the operator says, or as its template shows."""

import logging
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from octavo.core.errors import ConfigurationError
from octavo.loading.interface import Tokenizer
from octavo.server.reasoning import REASONING_PARSERS, ReasoningMarks
from octavo.server.tools import hermes, llama3, mistral, pythonic, qwen3_coder
from octavo.server.tools.json_calls import json_rules, read_json_calls
from octavo.server.tools.parser import Syntax
from octavo.server.tools.qwen3_coder_rules import qwen3_coder_rules
from octavo.server.tools.rules import Rules

logger = logging.getLogger(__name__)

NO_PARSER = "none"
"""In place of a reasoning parser's name: thinking stays in the text."""


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _short_call_id() -> str:
    """Nine letters and digits, which is what Mistral's templates take."""
    return uuid.uuid4().hex[:9]


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """``rules``: what calls are, where an answer has to be calls or of a form; ``openings``: what those begin with.
    ``markers``: what calls are written with; control tokens in some vocabularies. ``make_id``: the id of a call."""

    syntax: Syntax
    rules: Rules
    openings: tuple[str, ...]
    markers: tuple[str, ...] = ()
    make_id: Callable[[], str] = new_call_id


_PYTHONIC = ToolDialect(
    pythonic.read_pythonic, pythonic.pythonic_rules, ("[", pythonic.START), (pythonic.START, pythonic.END)
)
_QWEN3_CODER = ToolDialect(qwen3_coder.read_qwen3_coder, qwen3_coder_rules, (hermes.OPEN,), (hermes.OPEN, hermes.CLOSE))

TOOL_PARSERS: Mapping[str, ToolDialect] = {
    "hermes": ToolDialect(hermes.read_hermes, hermes.hermes_rules, (hermes.OPEN,), (hermes.OPEN, hermes.CLOSE)),
    "json": ToolDialect(read_json_calls, json_rules, ("{", "[")),
    "llama3_json": ToolDialect(llama3.read_llama3, llama3.llama3_rules, ("{", llama3.TAG), (llama3.TAG,)),
    "mistral": ToolDialect(
        mistral.read_mistral,
        mistral.mistral_rules,
        (mistral.MARKER,),
        (mistral.MARKER, mistral.CALL_ID, mistral.ARGS),
        make_id=_short_call_id,
    ),
    "pythonic": _PYTHONIC,
    "llama4_pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN3_CODER,
    "qwen3_xml": _QWEN3_CODER,
}
"""By vLLM's names; ``json`` is Octavo's own."""

_NAME_AND_ARGUMENTS = re.compile(r"""\\?["']name\\?["'].*\\?["']arguments\\?["']""", re.DOTALL)
_PYTHON_CALL = re.compile(r"\[func_name1\(params_name1=")
"""The example that templates of Llama 3.2 and 4 show the model."""
_NAME_AND_PARAMETERS = re.compile(r"""\\?["']name\\?["'].*\\?["']parameters\\?["']""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Dialect:
    """``tools`` None: not known, so the model is not asked to decide on calls. ``*_token_ids``: marks that are control
    tokens in this vocabulary, and have to stay in the text for it to be understood."""

    tools: ToolDialect | None = None
    reasoning: ReasoningMarks | None = None
    tool_token_ids: tuple[int, ...] = ()
    reasoning_token_ids: tuple[int, ...] = ()


def check_parsers(tool_call_parser: str | None, reasoning_parser: str | None) -> None:
    """
    Raises:
        ConfigurationError: no such parser.
    """
    for kind, name, known in (
        ("tool-call", tool_call_parser, TOOL_PARSERS),
        ("reasoning", reasoning_parser, {**REASONING_PARSERS, NO_PARSER: None}),
    ):
        if name is not None and name not in known:
            raise ConfigurationError(f"there is no {kind} parser {name!r:.40}; there are {', '.join(sorted(known))}")


def find_dialect(tokenizer: Tokenizer, tool_call_parser: str | None, reasoning_parser: str | None) -> Dialect:
    """Names as ``check_parsers`` takes them; None: what the chat template shows, if it is plain."""
    tools_name = tool_call_parser or tool_parser_of(tokenizer.template_source(for_tools=True) or "")
    reasoning_name = reasoning_parser or reasoning_parser_of(tokenizer.template_source(for_tools=False) or "")
    logger.info("Tool calls are read by: %s; thinking by: %s.", tools_name or "nothing", reasoning_name or "nothing")
    tools = TOOL_PARSERS[tools_name] if tools_name else None
    reasoning = REASONING_PARSERS.get(reasoning_name or NO_PARSER)
    return Dialect(
        tools,
        reasoning,
        _control_tokens(tokenizer, tools.markers if tools else ()),
        _control_tokens(tokenizer, (reasoning.open, reasoning.close) if reasoning else ()),
    )


def _control_tokens(tokenizer: Tokenizer, texts: Collection[str]) -> tuple[int, ...]:
    """Those that are spelled as one of ``texts``."""
    wanted = {text.encode() for text in texts}
    return tuple(sorted(each for each in tokenizer.special_token_ids if tokenizer.token_bytes(each) in wanted))


def tool_parser_of(template: str) -> str | None:
    """The parser for calls as this chat template writes those of earlier turns, or tells the model to write them."""
    if mistral.MARKER in template:
        return "mistral"
    if qwen3_coder.FUNCTION in template and qwen3_coder.PARAMETER in template:
        return "qwen3_coder"
    if hermes.OPEN in template:
        return "hermes" if _NAME_AND_ARGUMENTS.search(template) and qwen3_coder.FUNCTION not in template else None
    if _PYTHON_CALL.search(template):
        return "pythonic"
    if "<|start_header_id|>" in template and _NAME_AND_PARAMETERS.search(template):
        return "llama3_json"
    return None


def reasoning_parser_of(template: str) -> str | None:
    """The parser for thinking as this chat template handles that of earlier turns."""
    if "</think>" in template:
        return "qwen3" if "<think>" in template else "deepseek_r1"
    return "mistral" if "[/THINK]" in template else None
