"""litellm in front of the server: as openai/ and as hosted_vllm/, chat, text, tools, embeddings, other APIs, errors."""

from tests.support.client_environment import run_script
from tests.support.fake_server import ServerProcess


def test_litellm(typing_server: ServerProcess, model_server: ServerProcess) -> None:
    # Else it fetches a list of prices when it is imported.
    run_script("use_litellm.py", [typing_server.url, model_server.url], LITELLM_LOCAL_MODEL_COST_MAP="True")
