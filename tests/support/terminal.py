"""A command at a terminal, by a pseudo terminal, as over SSH."""

import os
import pty
import subprocess
import termios
from collections.abc import Mapping

from tests.support.waiting import wait_until

SIZE = (40, 120)
"""Lines and columns."""


def wait_until_shown(
    command: list[str], text: str, *, holds_output: bool, environment: Mapping[str, str] | None = None
) -> None:
    """Run ``command`` until its terminal has shown ``text``, and end it. ``holds_output``: the terminal has its
    standard output too, and not its standard input and error alone. ``environment``: beside this process's."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, SIZE)
    stdout = follower if holds_output else None
    variables = os.environ | dict(environment or {})
    process = subprocess.Popen(command, stdin=follower, stdout=stdout, stderr=follower, env=variables)
    os.close(follower)
    seen = bytearray()

    def has_shown() -> bool:
        seen.extend(os.read(leader, 65536))
        return text in seen.decode(errors="replace")

    try:
        wait_until(has_shown)
    finally:
        process.terminate()
        process.wait()
        os.close(leader)
