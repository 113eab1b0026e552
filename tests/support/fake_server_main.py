"""``python -m tests.support.fake_server_main OPTIONS_AS_JSON``: the process that ``fake_server.running_server`` starts.

The engine process imports this module again, so what only the server needs is imported in ``main``.
"""

import functools
import json
import logging
import sys
from pathlib import Path

from octavo.core.errors import OctavoError
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import MODEL, FakeEngineOptions, fake_engine


def main() -> None:
    from octavo.engine.log_format import set_up_logging
    from octavo.server.life import Model
    from octavo.server.run import run_server
    from octavo.server.settings import ServerSettings

    options = json.loads(sys.argv[1])
    set_up_logging(logging.INFO, options["settings"].get("log_format", "text"))
    factory = functools.partial(fake_engine, FakeEngineOptions(**options["engine"]))
    given = {
        name: Path(value) if name.endswith("file") or name == "record" else value
        for name, value in options["settings"].items()
    }
    settings = ServerSettings(served_model_name=MODEL, **given)
    try:
        run_server(settings, lambda: Model(factory, ByteTokenizer))
    except OctavoError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
