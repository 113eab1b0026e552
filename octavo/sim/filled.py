"""How much of the KV memory holds something."""

from octavo.core.scheduler import Scheduler


def num_filled_slots(scheduler: Scheduler) -> int:
    """Slots that hold a token of a running request, or will when the step that was planned lands; a shared one counts
    once."""
    size = scheduler.kv.config.block_size
    full: set[int] = set()
    partial: dict[int, int] = {}
    for request in scheduler.running:
        assert request.tables is not None
        num_full, rest = divmod(request.num_computed_tokens, size)
        table = request.tables.groups[0]
        full.update(table[:num_full])
        if rest:
            partial[table[num_full]] = rest
    return len(full) * size + sum(partial.values())


def num_unfilled_slots(scheduler: Scheduler) -> int:
    """Slots of blocks that running requests hold, after their last tokens. Nobody shares these blocks, unless there are
    forks: then ``num_filled_slots`` is the way."""
    size = scheduler.kv.config.block_size
    num_slots = sum(request.tables.num_blocks for request in scheduler.running if request.tables is not None) * size
    return num_slots - sum(request.num_computed_tokens for request in scheduler.running)
