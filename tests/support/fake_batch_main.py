"""``python -m tests.support.fake_batch_main INPUT OUTPUT OPTIONS``: ``octavo run-batch`` over the fake engine."""

import functools
import json
import logging
import sys
from pathlib import Path

from octavo.core.errors import OctavoError
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import MODEL, FakeEngineOptions, fake_engine


def main() -> None:
    from octavo.cli.run_batch import answer
    from octavo.engine.log_format import set_up_logging
    from octavo.server.batches.batch import Batch
    from octavo.server.life import Model
    from octavo.server.settings import ServerSettings

    options = json.loads(sys.argv[3])
    set_up_logging(logging.INFO, "text")
    factory = functools.partial(fake_engine, FakeEngineOptions(**options["engine"]))
    settings = ServerSettings(served_model_name=MODEL, log_stats=False, **options["settings"])
    try:
        with Batch(Path(sys.argv[1]), Path(sys.argv[2]), MODEL, settings.limits.body_bytes) as batch:
            answer(batch, settings, options["max_open"], lambda: Model(factory, ByteTokenizer), [])
    except OctavoError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
