"""langchain-openai as its users have it: chat, completions, tools, structured output, embeddings."""

from tests.support.client_environment import run_script
from tests.support.fake_server import ServerProcess


def test_langchain(typing_server: ServerProcess, model_server: ServerProcess) -> None:
    run_script("use_langchain.py", [typing_server.url, model_server.url])
