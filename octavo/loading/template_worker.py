"""The process in which chat templates run. A script of its own: it imports nothing of Octavo and starts quickly.

A template is code from whoever made the model. Jinja's sandbox keeps it from Python's insides, but not from looping or
from building huge strings inside one C call, which nothing in the same process can interrupt. Here the kernel stops it:
an alarm ends the process when a rendering takes too long, and an address space limit bounds its memory.

Protocol: one JSON value a line. In: first the settings (template, seconds, num_chars, num_bytes), then the variables of
one rendering a line. Out, for each rendering: {"text": ...} or {"error": ...}. No answer and an ended process mean that
a limit struck.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """{% generation %} marks what an assistant said, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - so Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: unlike Jinja's own filter it does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def environment() -> ImmutableSandboxedEnvironment:
    """The names and white space rules that published templates are written for (those of transformers)."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def _answer(template: Callable[[], Template], variables: dict[str, Any], num_chars: int) -> dict[str, str]:
    try:
        pieces: list[str] = []
        length = 0
        for piece in template().generate(**variables):
            length += len(piece)
            if length > num_chars:
                return {"error": f"it wrote more than {num_chars} characters"}
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except TemplateError as error:
        return {"error": error.message or type(error).__name__}
    except MemoryError:
        return {"error": "it needed too much memory"}
    except Exception as error:  # noqa: BLE001 - whatever a template can provoke is an answer
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    settings = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (settings["num_bytes"], settings["num_bytes"]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, even inside a C call
    env = environment()
    compiled: Template | None = None

    def template() -> Template:
        # Compiled under the limits too: Jinja computes constant expressions while it compiles.
        nonlocal compiled
        if compiled is None:
            compiled = env.from_string(settings["template"])
        return compiled

    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, settings["seconds"])
        answer = _answer(template, json.loads(line), settings["num_chars"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
