"""What ``octavo serve`` runs: the server over the engine that the settings describe."""

import functools
import logging
from typing import TYPE_CHECKING

from octavo.engine.log_format import set_up_logging
from octavo.engine.spawn import SpawnedProcess
from octavo.server.life import Model
from octavo.server.run import run_server as run
from octavo.server.settings import ServerSettings

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs


def run_server(engine_args: "EngineArgs", settings: ServerSettings, spawned: SpawnedProcess) -> None:
    """Serve until told to stop. ``spawned``: the engine's process to be.

    Raises:
        ConfigurationError, EngineDeadError, SystemExit: see octavo.server.run.run_server.
    """
    set_up_logging(logging.INFO, settings.log_format)
    run(settings, functools.partial(find_model, engine_args), spawned)


def find_model(engine_args: "EngineArgs") -> Model:
    """Where its files are, fetched if need be.

    Raises:
        ConfigurationError: there are none.
    """
    from octavo.remote_engine import remote_engine

    return Model(*remote_engine(engine_args))
