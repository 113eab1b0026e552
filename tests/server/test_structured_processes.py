"""The processes in which constraints are tried end with their server, however it ends."""

import signal

import psutil
import pytest

from tests.server.test_validation import COMPLETION
from tests.support.fake_server import running_server
from tests.support.waiting import wait_until


@pytest.mark.parametrize("signal_sent", [signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_their_server(signal_sent: signal.Signals) -> None:
    with running_server() as running:
        running.wait_ready()
        with running.client() as client:
            assert client.post("/v1/completions", json=COMPLETION | {"guided_regex": "a+"}).status_code == 200
        children = psutil.Process(running.process.pid).children()
        (checking,) = [child for child in children if "octavo.structured.check_worker" in child.cmdline()]
        running.process.send_signal(signal_sent)
        running.wait_exit()
        wait_until(lambda: not checking.is_running() or checking.status() == psutil.STATUS_ZOMBIE)
