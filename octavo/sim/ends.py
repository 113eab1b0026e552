"""Where answers end that might have gone on: the simulated model says stop."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from octavo.core.request import Request


class Ends:
    """Of requests that may have more tokens than they get. A request draws one token a step at most, so it need not be
    looked at before as many steps have gone as it lacks tokens: a step costs work for those alone that may end with it.
    """

    def __init__(self) -> None:
        self._lengths: dict[Request, int] = {}
        self._due: defaultdict[int, list[Request]] = defaultdict(list)
        self._noted: set[Request] = set()
        self._step = 0
        self._checked = 0

    def add(self, request: Request, num_output_tokens: int) -> None:
        """It gets so many tokens, less than it may have."""
        self._lengths[request] = num_output_tokens

    def drop(self, request: Request) -> None:
        """It was refused."""
        self._lengths.pop(request, None)

    def begin_landing(self) -> None:
        """A step is about to land."""
        self._step += 1

    def check(self, requests: Sequence[Request], _token_ids: Sequence[int]) -> Mapping[Request, str]:
        """See ``StopCheck``: called once a step for all members of the decode batch, and for each other row alone."""
        if len(requests) == 1:
            return self._check_one(requests[0])
        ended: dict[Request, str] = {}
        for step in range(self._checked + 1, self._step + 1):
            for request in self._due.pop(step, ()):
                self._noted.discard(request)
                ended.update(self._check_one(request))
        self._checked = self._step
        return ended

    def _check_one(self, request: Request) -> Mapping[Request, str]:
        length = self._lengths.get(request)
        if length is None:
            return {}
        num_lacking = length - request.num_output_tokens
        if num_lacking <= 0:
            del self._lengths[request]
            return {request: ""}
        if request not in self._noted:
            self._noted.add(request)
            # It may draw another in the step that is landing: members of the batch are looked at before other rows.
            self._due[self._step + max(1, num_lacking - 1)].append(request)
        return {}
