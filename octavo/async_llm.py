"""The engine in a process of its own, for asyncio: ``async for output in AsyncLLM(model).generate(prompt)``."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from os import PathLike
from typing import Any, Literal, Self, TypeVar

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.intake import check_has_salt
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats
from octavo.engine_args import EngineArgs
from octavo.loading.interface import Tokenizer
from octavo.loading.system_prefix import num_system_tokens
from octavo.outputs import RequestOutput, raise_for
from octavo.prompt import Prompt, as_token_ids
from octavo.remote_engine import remote_engine
from octavo.settings import read_settings

T = TypeVar("T")


class AsyncLLM:
    """A model whose engine runs in another process, the one that ``octavo serve`` runs. Keyword arguments are those of
    ``EngineArgs``. Belongs to one event loop; any number of requests may run at once.

    The process is started by ``async with``, by ``start``, or with the first request. Since it is spawned, a script
    needs its ``if __name__ == "__main__":``.

    Raises:
        ConfigurationError: settings that cannot work; others are only found in the engine's process, by ``start``.
    """

    def __init__(self, model: str | PathLike[str] = EngineArgs.model, **engine_args: Any) -> None:
        self._args = read_settings({"model": model} | engine_args)
        self._starting = asyncio.Lock()
        self._client: AsyncEngineClient | None = None
        self._tokenizer: Tokenizer | None = None
        self._open: dict[str, RequestOutput] = {}

    async def start(self) -> None:
        """Load the model, if it is not there yet.

        Raises:
            ConfigurationError: the model or the settings cannot work.
        """
        async with self._starting:
            if self._client is not None:
                return
            remote = await asyncio.to_thread(remote_engine, self._args)
            client = AsyncEngineClient(self._observe, log_stats=False)
            try:
                _, self._tokenizer = await asyncio.gather(
                    client.start(remote.factory), asyncio.to_thread(remote.load_tokenizer)
                )
            except BaseException:
                client.child.shutdown()
                raise
            self._client = client

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt, a text or token ids. Each output holds all that there is so far; the last one is
        ``finished``. Closing the iterator (``contextlib.aclosing``), or cancelling its task, aborts the request.

        ``params`` None: ``SamplingParams()`` with ``max_tokens`` shortened to the room there is. ``request_id``: the
        name that outputs carry; need not be unique.

        Raises:
            InvalidRequestError: it can never be served.
            EngineDeadError: the engine process is gone.
        """
        await self.start()
        text = prompt if isinstance(prompt, str) else None
        token_ids = as_token_ids(prompt) if text is None else await self._in_thread(lambda it: it.encode(text))
        request = _request(token_ids, params, cache_salt, cache_open_tokens)
        async with aclosing(self._outputs(request, text, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int | Literal["system"] = 0,
        **template_options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation through the model's chat template; otherwise like ``generate``.

        ``template_options``: see ``Tokenizer.apply_chat_template``. ``cache_open_tokens`` "system": those of the
        leading system message.
        """
        await self.start()
        check_has_salt(cache_open_tokens, cache_salt)
        token_ids = await self._in_thread(lambda it: it.apply_chat_template(messages, **template_options))
        num_open: int | str = cache_open_tokens
        if isinstance(num_open, str):  # "system"
            num_open = await self._in_thread(lambda it: num_system_tokens(it, messages, token_ids))
        request = _request(token_ids, params, cache_salt, num_open)
        async with aclosing(self._outputs(request, None, request_id)) as outputs:
            async for output in outputs:
                yield output

    def get_tokenizer(self) -> Tokenizer:
        """There is one from ``start`` on."""
        assert self._tokenizer is not None, "start() has been awaited"
        return self._tokenizer

    async def get_metrics(self) -> EngineStats:
        """The last snapshot of queues, pool and counters that has come."""
        return await self._running.stats()

    async def reset_prefix_cache(self) -> None:
        """Forget every cached block."""
        self._running.reset_prefix_cache()

    async def close(self) -> None:
        """End the process: what still runs gets an ``EngineDeadError``, the prefix cache goes to disk
        (``prefix_cache_dir``). At the end of ``async with`` this is done by itself. May be repeated."""
        if self._client is not None:
            await self._client.child.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _running(self) -> AsyncEngineClient:
        assert self._client is not None, "start() has been awaited"
        return self._client

    async def _in_thread(self, work: Callable[[Tokenizer], T]) -> T:
        """Text takes long: the loop goes on meanwhile."""
        return await asyncio.to_thread(work, self.get_tokenizer())

    async def _outputs(
        self, request: EngineRequest, text: str | None, name: str | None
    ) -> AsyncGenerator[RequestOutput, None]:
        output = self._open[request.request_id] = RequestOutput.begin(request, text)
        output.request_id = request.request_id if name is None else name
        try:
            async with aclosing(self._running.generate(request)) as deltas:
                async for delta in deltas:
                    raise_for(delta)
                    output.add(delta)
                    yield output.snapshot()
        finally:
            del self._open[request.request_id]

    def _observe(self, news: EngineOutputs, _iterations: list[int]) -> None:
        """Times of ended choices come beside their last deltas, and before these are read."""
        for times in news.finished:
            if times.request_id in self._open:
                self._open[times.request_id].metrics.append(times)


def _request(
    token_ids: list[int], params: SamplingParams | None, cache_salt: str | None, num_open_tokens: int
) -> EngineRequest:
    given: Any = params
    if given is not None and not isinstance(given, SamplingParams):
        raise InvalidRequestError(f"params must be SamplingParams, got {given!r:.80}", "params")
    return EngineRequest(
        uuid.uuid4().hex,
        token_ids,
        params or SamplingParams(),
        time.time(),
        clamp_max_tokens=params is None,
        cache_salt=cache_salt,
        num_open_tokens=num_open_tokens,
    )
