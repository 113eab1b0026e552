"""The door: what may enter the engine, and how a request becomes one sequence for each choice."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from octavo.core.beam_group import BeamGroup
from octavo.core.beam_search import BeamSearch, BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.pins import PinClaim
from octavo.core.request import Request
from octavo.core.sampling_params import DEFAULT_LIMITS, SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.token_ids import check_token_ids
from octavo.engine.choice import sequence_id
from octavo.engine.messages import EngineRequest

PRIORITY_LIMIT = 2**63

MAX_TENANT_NAME = 64
TENANT_NAME = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_TENANT_NAME}}}\Z")
"""Short and plain, since it is shown in figures."""


class Intake:
    """Checks requests against vocabulary, context and pool, and splits them into choices.

    ``draw_seed`` gives a fresh seed in [0, 2**63) for a request without one.
    """

    def __init__(
        self, scheduler: Scheduler, vocab_size: int, eos_token_ids: frozenset[int], draw_seed: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._draw_seed = draw_seed

    def admit(self, request: EngineRequest) -> list[Request]:
        """One sequence a choice, not yet in line.

        Raises:
            InvalidRequestError: the request can never be served as it is.
        """
        check_token_ids("prompt", request.prompt_token_ids, self._vocab_size)
        request.params.check_vocabulary(self._vocab_size)
        check_salt(request.cache_salt, request.params.limits.cache_salt_characters)
        check_open_tokens(request)
        self._check_priority(request.priority)
        check_tenant(request.tenant)
        claim = self._claim_pins(request)
        try:
            sequences = self._sequences(request)
        except InvalidRequestError:
            if claim is None:
                raise
            self._scheduler.kv.keeping.pins.withdraw(claim)
            if any(wish.is_required for wish in request.pins):
                raise
            return self.admit(replace(request, pins=()))  # it may be the room for the pins that was lacking
        sequences[0].pin_claim = claim
        for sequence in sequences:
            sequence.retention = request.retention
            sequence.priority = request.priority
            sequence.tenant = request.tenant
            sequence.pooling = request.pooling
        return sequences

    def _check_priority(self, priority: int) -> None:
        """Under other policies a priority would be dropped in silence. The words are vLLM's, which gateways know."""
        given: Any = priority
        if type(given) is not int or not -PRIORITY_LIMIT <= given < PRIORITY_LIMIT:
            raise InvalidRequestError(f"priority must be a whole number of 64 bits, got {given!r:.80}", "priority")
        if priority and self._scheduler.config.policy.name != "priority":
            raise InvalidRequestError(
                f"Got priority {priority} but Priority scheduling is not enabled; leave it out, or start Octavo with "
                "--scheduling-policy priority",
                "priority",
            )

    def _claim_pins(self, request: EngineRequest) -> PinClaim | None:
        if not request.pins:
            return None
        num_tokens = len(request.prompt_token_ids)
        longest = max(wish.num_tokens for wish in request.pins)
        if longest > num_tokens:
            raise InvalidRequestError(
                f"{longest} tokens are to be pinned, but the prompt has {num_tokens}; pin at most these", "pin_prefix"
            )
        return self._scheduler.claim_pins(
            request.prompt_token_ids, request.pins, request.cache_salt, request.num_open_tokens
        )

    def _sequences(self, request: EngineRequest) -> list[Request]:
        if request.beam_search is not None:
            return self._beams(request, request.beam_search)
        max_tokens = self._max_tokens(request, request.params.max_tokens, self._scheduler.door.max_tokens_per_sequence)
        self._scheduler.door.check(len(request.prompt_token_ids), max_tokens)
        params = request.params
        seed = self._draw_seed() if params.seed is None else params.seed
        return [
            Request(
                sequence_id(request.request_id, index),
                request.prompt_token_ids,
                params if index == 0 else _without_prompt_logprobs(params),
                max_tokens=max_tokens,
                seed=seed,
                choice_index=index,
                eos_token_ids=self._eos_token_ids,
            )
            for index in range(params.n)
        ]

    def _beams(self, request: EngineRequest, beams: BeamSearchParams) -> list[Request]:
        """One sequence a beam. They draw nothing: the search takes the best tokens of each row."""
        if beams.beam_width > self._vocab_size:
            raise InvalidRequestError(
                f"beam_width {beams.beam_width} is more than the {self._vocab_size} tokens there are; take fewer",
                "beam_width",
            )
        max_tokens = self._max_tokens(
            request, beams.max_tokens, self._scheduler.door.max_tokens_per_beam(beams.beam_width)
        )
        self._scheduler.door.check_beams(len(request.prompt_token_ids), max_tokens, beams.beam_width)
        search = BeamSearch(beams, self._eos_token_ids, max_tokens)
        limits = replace(DEFAULT_LIMITS, logprobs=search.num_candidates)
        params = SamplingParams(
            temperature=0.0,
            logprobs=search.num_candidates,
            limits=limits,
            max_tokens=max_tokens,
            skip_special_tokens=request.params.skip_special_tokens,
            shown_token_ids=request.params.shown_token_ids,
        )
        members = [
            Request(
                sequence_id(request.request_id, index),
                request.prompt_token_ids,
                params,
                max_tokens=max_tokens,
                choice_index=index,
            )
            for index in range(beams.beam_width)
        ]
        return BeamGroup(members, search).members

    def _max_tokens(self, request: EngineRequest, wanted: int | None, max_total: int) -> int:
        """The client's number, ``wanted``, as it is; a default is shortened to the room left of the ``max_total``
        tokens that a sequence may have (spec D2, D28)."""
        room = max(1, max_total - len(request.prompt_token_ids))
        if wanted is None:
            return room
        return min(wanted, room) if request.clamp_max_tokens else wanted


def check_tenant(tenant: str) -> None:
    """
    Raises:
        InvalidRequestError: no name of a tenant.
    """
    given: Any = tenant
    if not isinstance(given, str) or not TENANT_NAME.match(given):
        raise InvalidRequestError(
            f"a tenant's name has 1 to {MAX_TENANT_NAME} letters, digits and any of ._:@/-, got {tenant!r:.80}",
            "tenant",
        )


def check_salt(salt: str | None, max_characters: int) -> None:
    """A cache salt has 1 to ``max_characters`` characters, each of which can be encoded; None means none.

    Raises:
        InvalidRequestError: it has not.
    """
    given: Any = salt
    if given is not None and not isinstance(given, str):
        raise InvalidRequestError(f"cache_salt must be a text, got {given!r:.80}", "cache_salt")
    if salt is not None and not 1 <= len(salt) <= max_characters:
        raise InvalidRequestError(
            f"cache_salt must have 1 to {max_characters} characters, got {len(salt)}", "cache_salt"
        )
    try:
        (salt or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "cache_salt holds half of a surrogate pair, which is no character; send valid Unicode text", "cache_salt"
        ) from error


def check_open_tokens(request: EngineRequest) -> None:
    """Tokens that are open to all are a head of the prompt, and there is a salt for the rest.

    Raises:
        InvalidRequestError: they are not, or there is none.
    """
    given: Any = request.num_open_tokens
    if type(given) is not int:
        raise InvalidRequestError(f"cache_open_tokens must be a whole number, got {given!r:.80}", "cache_open_tokens")
    num_tokens = len(request.prompt_token_ids)
    if not 0 <= given <= num_tokens:
        raise InvalidRequestError(
            f"cache_open_tokens must be 0 to {num_tokens}, the number of the prompt's tokens, got {given}",
            "cache_open_tokens",
        )
    check_has_salt(given, request.cache_salt)


def check_has_salt(open_tokens: int | str | None, salt: str | None) -> None:
    """``open_tokens``: a number, or what it is to be found by.

    Raises:
        InvalidRequestError: some are to be open, and no salt keeps the others from being so too.
    """
    if open_tokens and salt is None:
        raise InvalidRequestError(
            "cache_open_tokens needs a cache_salt: without one all tokens are open; set it or leave both out",
            "cache_open_tokens",
        )


def _without_prompt_logprobs(params: SamplingParams) -> SamplingParams:
    """The prompt is the same for every choice: the first one reports it, the others may read the cache."""
    return params if params.prompt_logprobs is None else replace(params, prompt_logprobs=None)
