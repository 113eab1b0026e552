"""``python -m octavo.bench.front.server OPTIONS_AS_JSON``: the process that is measured, on a core of its own.

With ``limit`` it is a bare server instead, which shows what the HTTP layer beneath costs: an application of a few lines
that writes one and the same event again and again.
"""

import functools
import json
import logging
import os
import sys
from typing import Any

from octavo.bench.front.engine import MARK, FrontEngineOptions, front_engine

LISTENING = "listening at"
READY = "serves front at"


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {options["core"]})
    if "limit" in options:
        _run_limit()
    else:
        _run_server(options)


def _run_server(options: dict[str, Any]) -> None:
    from octavo.bench.front.text import byte_tokenizer
    from octavo.server.life import Model
    from octavo.server.run import run_server
    from octavo.server.settings import ServerSettings

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    engine = options["engine"] | {"opening": tuple(options["engine"]["opening"])}
    factory = functools.partial(front_engine, FrontEngineOptions(**engine))
    settings = ServerSettings(served_model_name="front", port=0, **options["settings"])
    run_server(settings, lambda: Model(factory, byte_tokenizer))


def _run_limit() -> None:
    import asyncio
    import socket

    import uvicorn

    text = json.dumps({"id": "cmpl-" + 32 * "0", "choices": [{"index": 0, "text": MARK}], "filler": 90 * "x"})
    event = f"data: {text}\n\n".encode()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(body["max_tokens"]):
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="httptools", loop="uvloop", lifespan="off", log_config=None, access_log=False)
    port = listener.getsockname()[1]
    sys.stderr.write(f"{LISTENING} http://127.0.0.1:{port};\n{READY}\n")
    sys.stderr.flush()
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
