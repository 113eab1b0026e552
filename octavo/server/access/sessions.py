"""Who has logged in with the admin key from a browser: a random token in a cookie stands for it."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping

from starlette.requests import cookie_parser

SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 64
COOKIE = "octavo_session"


class Sessions:
    """``clock``: seconds that only grow. Of too many the oldest end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: OrderedDict[str, float] = OrderedDict()

    def open(self) -> str:
        token = secrets.token_urlsafe(32)
        self._ends[token] = self._clock() + SESSION_SECONDS
        while len(self._ends) > MAX_SESSIONS:
            self._ends.popitem(last=False)
        return token

    def end(self, token: str) -> None:
        self._ends.pop(token, None)

    def holds(self, token: str) -> bool:
        return self._ends.get(token, 0.0) > self._clock()


def session_token(headers: Mapping[bytes, bytes]) -> str:
    """What the cookie of a request holds; empty where it has none, or where a page of another origin sent it: a
    browser sends the cookie along with those from other ports of this machine too."""
    cookie = headers.get(b"cookie")
    if cookie is None or not _is_of_own_page(headers):
        return ""
    # As browsers write them: those of others on this host may hold what no standard allows.
    return cookie_parser(cookie.decode("latin-1")).get(COOKIE, "")


def _is_of_own_page(headers: Mapping[bytes, bytes]) -> bool:
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in (b"same-origin", b"none"):
        return False
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host")
