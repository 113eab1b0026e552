"""What a server, or whatever else asks the app, begins and ends with: the engine, the tokenizer, threads, processes."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from octavo.engine.process import EngineFactory
from octavo.loading.interface import Tokenizer
from octavo.server.state import Phase, ServerState

T = TypeVar("T")


class Model(NamedTuple):
    """How to build the engine (in its own process, so this must pickle) and the tokenizer (here)."""

    engine_factory: EngineFactory
    load_tokenizer: Callable[[], Tokenizer]


async def bring_up(state: ServerState, find_model: Callable[[], Model]) -> Model:
    """Start the engine and load the tokenizer; ``state`` is ready then, unless it has come to be something else
    meanwhile. ``find_model`` runs in a thread; it may fetch files.

    Raises:
        ConfigurationError: the model cannot be found or loaded.
    """
    model = await in_daemon_thread(find_model)
    _, (tokenizer, longest) = await asyncio.gather(
        state.engine.start(model.engine_factory),
        in_daemon_thread(lambda: _load_tokenizer(model.load_tokenizer)),
    )
    if state.phase is Phase.LOADING:
        state.become_ready(tokenizer, longest)
        gc.collect()
        gc.freeze()  # modules, the tokenizer and the app stay: no request waits for them to be looked through
    return model


async def take_down(state: ServerState, hurried: asyncio.Event | None = None) -> None:
    """End what ``state`` holds; the engine may take its prefix cache to disk until ``hurried`` is set."""
    await state.engine.child.end(hurried)
    state.text_threads.shutdown(wait=False, cancel_futures=True)
    state.constraints.close()


def _load_tokenizer(load: Callable[[], Tokenizer]) -> tuple[Tokenizer, int]:
    """The tokenizer and the bytes of its longest token, which bounds how short a text can become."""
    tokenizer = load()
    return tokenizer, max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))


def in_daemon_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Like asyncio.to_thread, in a thread that does not keep the process from ending in the middle of a download."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001  (raised by who waits)
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, daemon=True, name="loading").start()
    return future
