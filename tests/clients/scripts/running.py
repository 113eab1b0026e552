"""What the scripts share: they run in the clients' environment, where nothing of Octavo is."""

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any


def typing(text: str, cut: str | int = "each") -> str:
    """The content of a last message to which the fake engine answers ``text`` (tests/support/fake_engine.py)."""
    return f"!types {cut} {text}"


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def run_checks(namespace: Mapping[str, Any]) -> None:
    """Calls each function ``check_*``, in order, and names it: the last name is that of the one that failed."""
    for name, check in namespace.items():
        if name.startswith("check_"):
            start = time.monotonic()
            print(name, flush=True)
            found = check()
            if inspect.isawaitable(found):
                asyncio.run(_wait(found))
            print(f"    {time.monotonic() - start:.1f} s", flush=True)


async def _wait(found: Any) -> None:
    await found


def refused(kind: type[Exception], call: Callable[..., Any], *given: Any, **fields: Any) -> Any:
    """What ``call`` raises, which is of this kind."""
    try:
        call(*given, **fields)
    except kind as error:
        return error
    raise AssertionError(f"it raised no {kind.__name__}")
