"""The engine in a process of its own, for asyncio: ``async for output in AsyncLLM(model).generate(prompt)``."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self, TypeVar

from octavo.asking import (
    PIN_PARAMS,
    Message,
    Term,
    beam_results,
    check_beam_params,
    ids_to_pin,
    make_request,
    pin_made,
    whole_prompt_wish,
)
from octavo.core.beam_search import BeamSearchParams
from octavo.core.pin_types import PinInfo
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.intake import check_has_salt
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats
from octavo.engine_args import EngineArgs
from octavo.loading.interface import Tokenizer
from octavo.loading.system_prefix import num_system_tokens
from octavo.outputs import BeamSearchOutput, RequestOutput, raise_for
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
        retention: Retention | None = None,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109  (ends it in the engine, not here)
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt, a text or token ids. Each output holds all that there is so far; the last one is
        ``finished``. Closing the iterator (``contextlib.aclosing``), or cancelling its task, aborts the request.

        ``params`` None: ``SamplingParams()`` with ``max_tokens`` shortened to the room there is. ``request_id``: the
        name that outputs carry; need not be unique. ``priority``: the lowest goes first, where the policy is that.
        ``timeout``: seconds after which the request is ended, from the call on, or from when the model is there.

        Raises:
            InvalidRequestError: it can never be served.
            TimedOutError: it was not finished after ``timeout`` seconds.
            EngineDeadError: the engine process is gone.
        """
        text = prompt if isinstance(prompt, str) else None
        term = await self._term(timeout)
        request = await self._request(prompt, params, cache_salt, cache_open_tokens, retention, term)
        request = replace(request, priority=priority)
        async with aclosing(self._outputs(request, text, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int | Literal["system"] = 0,
        retention: Retention | None = None,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109  (ends it in the engine, not here)
        **template_options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation through the model's chat template; otherwise like ``generate``.

        ``template_options``: see ``Tokenizer.apply_chat_template``. ``cache_open_tokens`` "system": those of the
        leading system message.
        """
        term = await self._term(timeout)
        check_has_salt(cache_open_tokens, cache_salt)
        token_ids = await self._in_thread(lambda it: it.apply_chat_template(messages, **template_options))
        num_open: int | str = cache_open_tokens
        if isinstance(num_open, str):  # "system"
            num_open = await self._in_thread(lambda it: num_system_tokens(it, messages, token_ids))
        request = await self._request(token_ids, params, cache_salt, num_open, retention, term)
        request = replace(request, priority=priority)
        async with aclosing(self._outputs(request, None, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def beam_search(
        self,
        prompt: Prompt,
        params: BeamSearchParams,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
        retention: Retention | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (ends it in the engine, not here)
    ) -> BeamSearchOutput:
        """The ``params.beam_width`` best completions of one prompt, best first. Cancelling its task aborts it.

        Raises:
            InvalidRequestError: it can never be served.
            EngineDeadError: the engine process is gone.
        """
        check_beam_params(params)
        term = await self._term(timeout)
        request = await self._request(prompt, SamplingParams(), cache_salt, cache_open_tokens, retention, term)
        output = await self._whole(replace(request, beam_search=params))
        return await self._in_thread(lambda it: beam_results(output, it))

    async def pin(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        ttl: float | None = None,
        priority: int | None = None,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
    ) -> PinInfo:
        """As ``LLM.pin``: keep the whole blocks of a prompt, or of the beginning of a conversation, in the prefix cache
        for ``ttl`` seconds (None: until ``unpin``).

        Raises:
            InvalidRequestError: the quota (``pin_quota``), or an open request, leaves no room for it.
            EngineDeadError: the engine process is gone.
        """
        term = await self._term(None)
        ids = await self._in_thread(lambda it: ids_to_pin(prompt, it))
        request = await self._request(ids, PIN_PARAMS, cache_salt, cache_open_tokens, None, term)
        return pin_made(await self._whole(replace(request, pins=whole_prompt_wish(ids, ttl, priority))))

    async def unpin(self, pin_id: str) -> bool:
        """End a pin before its time; false if there is none of this id."""
        return (await self._running.list_pins(pin_id)).was_found

    async def pins(self) -> list[PinInfo]:
        """The pins that have not ended, oldest first."""
        return (await self._running.list_pins()).pins

    def get_tokenizer(self) -> Tokenizer:
        """There is one from ``start`` on."""
        assert self._tokenizer is not None, "start() has been awaited"
        return self._tokenizer

    async def get_metrics(self) -> EngineStats:
        """The last snapshot of queues, pool and counters that has come."""
        return await self._running.stats()

    async def reset_prefix_cache(self) -> None:
        """Forget every cached block that is not pinned."""
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

    async def _term(self, timeout: float | None) -> Term:  # noqa: ASYNC109  (ends it in the engine, not here)
        """Of a call, once the model is there: to wait for that is not the call's."""
        await self.start()
        return Term.of(timeout)

    async def _request(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        cache_salt: str | None,
        num_open_tokens: int,
        retention: Retention | None,
        term: Term,
    ) -> EngineRequest:
        """Once the model is there."""
        if isinstance(prompt, str):
            token_ids = await self._in_thread(lambda it: it.encode(prompt))
        else:
            token_ids = as_token_ids(prompt)
        return make_request(
            uuid.uuid4().hex,
            token_ids,
            params,
            cache_salt=cache_salt,
            num_open_tokens=num_open_tokens,
            retention=retention,
            term=term,
        )

    async def _whole(self, request: EngineRequest) -> RequestOutput:
        """A request's output when it is finished."""
        async with aclosing(self._outputs(request, None, None)) as outputs:
            return [output async for output in outputs][-1]

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
