"""The one place where both halves meet: settings in, a whole engine out."""

import contextlib
import logging
import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch

from octavo.core.errors import ConfigurationError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SEED_LIMIT
from octavo.core.sanitizer import KVSanitizer
from octavo.core.scheduler import Scheduler
from octavo.core.speculation import Speculation
from octavo.core.step import Runner
from octavo.core.timing import Timed, untimed
from octavo.core_configs import cache_sizes, scheduler_config
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.steady_clock import steady_time
from octavo.engine_args import EngineArgs
from octavo.kernels.interface import Ops, allocate_kv
from octavo.kernels.numa import NODES, nodes_of
from octavo.kernels.registry import select_ops
from octavo.loading.interface import Tokenizer
from octavo.loading.resolve import resolve_model
from octavo.loading.tokenizer import load_tokenizer
from octavo.loading.weights import LoadedModel, load_model
from octavo.models.config import ModelConfig
from octavo.models.groups import LayerGroup, group_size, kv_bytes_per_token, layer_groups
from octavo.pool_size import check_is_free, pool_size
from octavo.runner.disk_tier import DiskStore
from octavo.runner.input_batch import InputBatch
from octavo.runner.memory import free_memory_bytes
from octavo.runner.model_runner import BadWordEncoder, KVMemory, ModelRunner
from octavo.runner.sampler import Sampler
from octavo.runner.slot_file import Contents, SlotFile, open_slot_file
from octavo.runner.swapping import seconds_per_block
from octavo.runner.threaded import ThreadedRunner
from octavo.start_log import log_start
from octavo.structured.compiler import GrammarCompiler
from octavo.structured.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

DEFAULT_SWAP_SPACE = 4 * 2**30
"""Bytes of the host pool, where nothing else is said."""
MAX_DEFAULT_HOST_BLOCKS = 4
"""Blocks of the host pool for each block of the pool, where nothing else is said: preempted sequences were in it."""
DEFAULT_DISK_SPACE = 4
"""GiB of the disk tier, where nothing else is said."""
_SWITCH_WORDS = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True) | dict.fromkeys(
    ("", "0", "false", "f", "no", "n", "off"), False
)
"""As a variable's value on the command line."""


def build_tokenizer(args: EngineArgs) -> Tokenizer:
    """The tokenizer alone, for a process that only needs text and ids."""
    return load_tokenizer(resolve_model(args.model), args.chat_template, args.weights_cache)


def build_engine(args: EngineArgs, tokenizer: Tokenizer | None = None, timed: Timed = untimed) -> Engine:
    """Load the model and put an engine together. Takes seconds; what it has is logged.

    ``timed``: see core/timing.py.

    Raises:
        ConfigurationError: settings or files that cannot work, in one sentence.
    """
    is_checked = _wants_sanitizer(args)
    _check_given_memory(args)
    ops = select_ops(args.backend)
    if args.threads is not None:
        _set_threads(ops, args.threads)
    advise_on_nodes(os.sched_getaffinity(0))
    path = resolve_model(args.model)
    with _memory_shortage_told(path):
        loaded = load_model(path, ops, args.max_model_len, args.dtype, args.quantization, args.weights_cache)
    logger.info("Weights: %.2f GiB in memory", loaded.weight_bytes / 2**30)
    tokenizer = tokenizer or load_tokenizer(path, args.chat_template, args.weights_cache)
    config = loaded.model.config
    groups = layer_groups(config)
    fingerprint = _fingerprint(args, loaded, ops)
    slot_file = _open_slot_file(args, _block_bytes(args, config, groups), fingerprint)
    cache = replace(
        _cache_config(args, config, groups, fingerprint), num_disk_slots=slot_file.num_slots if slot_file else 0
    )
    speculation = Speculation(args.num_speculative_tokens if args.speculation == "ngram" else 0)
    scheduler = Scheduler(scheduler_config(args, config.max_position), KVCacheManager(cache), speculation)
    memory = _allocate_memory(args, config, groups, cache)
    if slot_file is not None:
        scheduler.kv.host.disk.load(slot_file.stored())
        memory = replace(memory, disk=DiskStore(slot_file, memory.slots, memory.host_slots))
    if cache.num_host_blocks:
        scheduler.population.costs.seconds_per_block = seconds_per_block(memory.slots, memory.host_slots)
    eos_token_ids = loaded.eos_token_ids | tokenizer.eos_token_ids
    grammars = GrammarCompiler(partial(Vocabulary, tokenizer, config.vocab_size, eos_token_ids))
    runner = ModelRunner(
        model=loaded.model,
        ops=ops,
        kv=memory,
        batch=InputBatch(len(groups), cache.block_size, -(-config.max_position // cache.block_size)),
        sampler=Sampler(config.vocab_size, tokenizer.vocab_size, ops.sampling(timed)),
        bad_words=_bad_word_encoder(tokenizer),
        grammars=grammars.get,
        timed=timed,
    )
    log_start(scheduler, args, _block_bytes(args, config, groups), is_checked=is_checked)
    return Engine(
        EngineParts(
            scheduler=scheduler,
            runner=_wrapped(runner, args, scheduler, is_checked),
            pieces=tokenizer,
            eos_token_ids=eos_token_ids,
            vocab_size=config.vocab_size,
            clock=steady_time,
            draw_seed=_seed_source(args.seed),
            block_bytes=_block_bytes(args, config, groups),
            timed=timed,
            grammars=grammars,
        )
    )


def advise_on_nodes(cpus: Collection[int], nodes: Path = NODES) -> None:
    """Say so where the cores of this process are near to different memories."""
    found = nodes_of(cpus, nodes)
    if len(found) > 1:
        logger.warning(
            "The cores that this process may use lie on %d NUMA nodes (%s), and weights and KV memory of another node "
            "are read more slowly. Run one engine a node: numactl --cpunodebind=%d --membind=%d octavo serve ...",
            *(len(found), ", ".join(map(str, found)), found[0], found[0]),
        )


def _check_given_memory(args: EngineArgs) -> None:
    """What is more than is free before anything is loaded is so afterwards.

    Raises:
        ConfigurationError: a size that the settings give is.
    """
    free = free_memory_bytes()
    if args.kv_cache_memory_bytes is not None:
        check_is_free("kv_cache_memory_bytes", args.kv_cache_memory_bytes, free)
    if args.swap_space is not None:
        check_is_free("swap_space", _in_bytes(args.swap_space), free)


def _in_bytes(gib: float) -> int:
    return int(gib * 2**30)


def _wrapped(runner: Runner, args: EngineArgs, scheduler: Scheduler, is_checked: bool) -> Runner:
    """On a thread of its own, where steps are planned ahead; with the sanitizer in front, where that is wanted."""
    if args.max_steps_in_flight > 1:
        runner = ThreadedRunner(runner)
    return KVSanitizer(runner, scheduler) if is_checked else runner


def _wants_sanitizer(args: EngineArgs) -> bool:
    if args.kv_sanitizer is not None:
        return args.kv_sanitizer
    word = os.environ.get("OCTAVO_KV_SANITIZER", "").strip().lower()
    if word not in _SWITCH_WORDS:
        raise ConfigurationError(f"OCTAVO_KV_SANITIZER={word:.60}: give 1 or 0, or leave it out")
    return _SWITCH_WORDS[word]


def _set_threads(ops: Ops, threads: int) -> None:
    torch.set_num_threads(threads)
    set_num_threads = getattr(ops, "set_num_threads", None)
    if set_num_threads is not None:
        set_num_threads(threads)


def _block_bytes(args: EngineArgs, config: ModelConfig, groups: Sequence[LayerGroup]) -> int:
    """Bytes of one block: keys and values of ``block_size`` tokens in each of its layer slots."""
    return kv_bytes_per_token(config, args.kv_dtype_name) * args.block_size // len(groups)


def _cache_config(
    args: EngineArgs, config: ModelConfig, groups: Sequence[LayerGroup], fingerprint: bytes
) -> CacheConfig:
    sizes, block_bytes = cache_sizes(args, [group.window for group in groups]), _block_bytes(args, config, groups)
    size = pool_size(args, sizes, block_bytes, config.max_position, free_memory_bytes())
    logger.info("KV cache budget: %.2f GiB (%s)", size.num_bytes / 2**30, size.source)
    return replace(
        sizes,
        num_blocks=size.num_blocks,
        enable_prefix_caching=args.enable_prefix_caching,
        fingerprint=fingerprint,
        num_host_blocks=_host_blocks(args, block_bytes, size.num_blocks),
        keep_evicted=args.prefix_cache_on_host,
        eviction_policy=args.eviction_policy,
        pin_quota=args.pin_quota,
    )


def _host_blocks(args: EngineArgs, block_bytes: int, num_blocks: int) -> int:
    """Blocks of the host pool, beside a pool of ``num_blocks``. Its memory is taken when it is used, so that one that
    is never needed costs nothing."""
    if args.swap_space is None:
        wanted = int(min(DEFAULT_SWAP_SPACE, free_memory_bytes() / 4))
        return min(wanted // block_bytes, MAX_DEFAULT_HOST_BLOCKS * num_blocks)
    wanted = _in_bytes(args.swap_space)
    check_is_free("swap_space", wanted, free_memory_bytes())
    return wanted // block_bytes


def _open_slot_file(args: EngineArgs, block_bytes: int, fingerprint: bytes) -> SlotFile | None:
    """The file of the disk tier, if there is to be one and the disk has room for it."""
    if args.prefix_cache_dir is None:
        return None
    space = DEFAULT_DISK_SPACE if args.prefix_cache_disk_space is None else args.prefix_cache_disk_space
    contents = Contents(block_bytes, fingerprint)
    return open_slot_file(Path(args.prefix_cache_dir).expanduser(), _in_bytes(space), contents)


@contextlib.contextmanager
def _memory_shortage_told(path: Path) -> Iterator[None]:
    """What torch and numpy raise where memory ends becomes one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise ConfigurationError(
            f"{path} does not fit into the {free_memory_bytes():,} bytes of memory that are free; "
            "give a smaller model or a lower max_model_len"
        ) from error


def _allocate_memory(
    args: EngineArgs, config: ModelConfig, groups: Sequence[LayerGroup], cache: CacheConfig
) -> KVMemory:
    slots, host_slots = (
        [
            allocate_kv(num_blocks, cache.block_size, config.num_kv_heads, config.head_dim, args.kv_dtype)
            for _ in range(group_size(tuple(groups)) if num_blocks else 0)
        ]
        for num_blocks in (cache.num_blocks, cache.num_host_blocks)
    )
    places = {layer: (g, slot) for g, group in enumerate(groups) for slot, layer in enumerate(group.layers)}
    return KVMemory(slots, host_slots, [places[layer] for layer in range(config.num_layers)], len(groups))


def _fingerprint(args: EngineArgs, loaded: LoadedModel, ops: Ops) -> bytes:
    """Everything besides tokens that changes keys and values (design, Decided 3)."""
    backend = f"{ops.name} {getattr(ops, 'arithmetic', '')}"
    weights = f"weights {'as stored' if args.dtype == 'auto' else 'in fp32'}, plain ones in {args.quantization}"
    settings = f"{weights} {args.kv_dtype}"
    parts = (loaded.fingerprint, repr(loaded.model.config).encode(), backend.encode(), settings.encode())
    return blake2b(b"\x00".join(parts), digest_size=16).digest()


def _bad_word_encoder(tokenizer: Tokenizer) -> BadWordEncoder:
    def encode(words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and as it follows a blank, the two ways it can stand in an output."""
        spelled = {tuple(tokenizer.encode(form, False)) for word in words for form in (word, " " + word.lstrip(" "))}
        return tuple(sorted(ids for ids in spelled if ids))

    return encode


def _seed_source(seed: int | None) -> Callable[[], int]:
    """Seeds for requests that bring none: from the system, or, with ``--seed``, the same row of them at each start."""
    source = random.SystemRandom() if seed is None else random.Random(seed)
    return lambda: source.randrange(SEED_LIMIT)
