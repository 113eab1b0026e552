"""What ``octavo serve`` runs: the server over the engine that the settings describe.

What computes is imported in the engine process only; this process needs no torch.
"""

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from octavo.engine.interface import EngineLoop
from octavo.engine.process import LOG_FORMAT
from octavo.loading.interface import Tokenizer
from octavo.server.run import Model
from octavo.server.run import run_server as run
from octavo.server.settings import ServerSettings

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs


def run_server(engine_args: "EngineArgs", settings: ServerSettings) -> None:
    """Serve until told to stop.

    Raises:
        ConfigurationError, EngineDeadError, SystemExit: see octavo.server.run.run_server.
    """
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    run(settings, functools.partial(_find_model, engine_args))


def _find_model(engine_args: "EngineArgs") -> Model:
    """Fetch or find the files once, so that both processes read the same ones."""
    from octavo.loading.resolve import resolve_model

    path = resolve_model(engine_args.model)
    found = dataclasses.replace(engine_args, model=str(path))

    def load() -> Tokenizer:
        from octavo.loading.tokenizer import load_tokenizer

        return load_tokenizer(path, engine_args.chat_template)

    return Model(functools.partial(_build, found), load)


def _build(engine_args: "EngineArgs") -> EngineLoop:
    from octavo.build import build_engine

    return build_engine(engine_args)
