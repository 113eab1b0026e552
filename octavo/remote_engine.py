"""An engine for a process of its own: how to build it there, and the tokenizer for the process that asks it.

What computes is imported over there only; here no torch is needed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

from octavo.engine.interface import EngineLoop
from octavo.engine.process import EngineFactory
from octavo.engine_args import EngineArgs
from octavo.loading.interface import Tokenizer


class RemoteEngine(NamedTuple):
    """``factory`` is pickled and called in the engine's process; ``load_tokenizer`` is called here."""

    factory: EngineFactory
    load_tokenizer: Callable[[], Tokenizer]


def remote_engine(engine_args: EngineArgs) -> RemoteEngine:
    """Fetch or find the files once, so that both processes read the same ones.

    Raises:
        ConfigurationError: there are none.
    """
    from octavo.loading.resolve import resolve_model

    path = resolve_model(engine_args.model)
    found = dataclasses.replace(engine_args, model=str(path))

    def load() -> Tokenizer:
        from octavo.loading.tokenizer import load_tokenizer

        return load_tokenizer(path, engine_args.chat_template, engine_args.weights_cache)

    return RemoteEngine(functools.partial(_build, found), load)


def _build(engine_args: EngineArgs) -> EngineLoop:
    from octavo.build import build_engine

    return build_engine(engine_args)
