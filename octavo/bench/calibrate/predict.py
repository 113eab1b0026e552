"""What a simulation says of requests that are also sent to a server."""

from collections.abc import Sequence
from hashlib import blake2b

from octavo.bench.serve.workload import Planned
from octavo.core.kv_types import CacheConfig
from octavo.core_configs import scheduler_config
from octavo.engine.interface import EngineLimits
from octavo.engine_args import EngineArgs
from octavo.sim.costs import CostModel
from octavo.sim.figures import figures
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest

NAME_BYTES = 8


def settings_like(args: EngineArgs, limits: EngineLimits) -> ServerSettings:
    """Those of a server with one layer group and these settings, whose engine has these limits."""
    return ServerSettings(
        scheduler_config(args, limits.max_model_len),
        CacheConfig(
            limits.kv_cache_tokens // limits.block_size,
            limits.block_size,
            enable_prefix_caching=args.enable_prefix_caching,
        ),
    )


def predict(plan: Sequence[Planned], costs: CostModel, settings: ServerSettings) -> dict[str, object]:
    """Figures of ``octavo simulate``; prompts are token ids."""
    requests = [traced(planned, settings.cache.block_size) for planned in plan]
    return figures(Simulation(requests, settings, costs).run())


def traced(planned: Planned, block_size: int) -> TracedRequest:
    """The same request as a trace has it, with names for the whole blocks of its prompt."""
    assert not isinstance(planned.prompt, str), "what a text's tokens are is the server's to say"
    digest, names = blake2b(digest_size=NAME_BYTES), list[int]()
    for start in range(0, len(planned.prompt) - block_size + 1, block_size):
        digest.update(repr(planned.prompt[start : start + block_size]).encode())
        names.append(int.from_bytes(digest.digest(), "big"))
    return TracedRequest(
        planned.seconds, len(planned.prompt), planned.max_tokens, blocks=tuple(names), block_size=block_size
    )
