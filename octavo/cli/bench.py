"""``octavo bench``: what was measured in docs/benchmarks.md, to measure again.

Each command stands with its measurement in ``octavo.bench``, prints a table and takes ``--json FILE``
(``octavo.bench.report``).
"""

import click

from octavo.cli.main import LazyCommand, LazyGroup

BENCHES = {
    "latency": LazyCommand("octavo.bench.latency:latency", "Time batches: first token, step, whole run."),
    "serve": LazyCommand("octavo.bench.serve.command:serve_command", "Load over HTTP: latencies, throughput, goodput."),
    "throughput": LazyCommand("octavo.bench.throughput:throughput", "Tokens a second on real lengths."),
    "front": LazyCommand("octavo.bench.front.command:front", "Streams through the server, without a model."),
    "interference": LazyCommand("octavo.bench.interference:interference", "A long prompt among streams."),
    "speculation": LazyCommand("octavo.bench.speculation:speculation", "One stream with drafts and without."),
    "structured": LazyCommand("octavo.bench.structured:structured", "Constrained answers: exactness, and their cost."),
    "beam": LazyCommand("octavo.bench.beam:beam", "Beam search in the core and in a loop outside."),
    "memory": LazyCommand("octavo.bench.memory:memory_command", "Share of the KV memory that holds tokens."),
    "scheduler": LazyCommand("octavo.bench.scheduler:scheduler_command", "Steps a second without a model."),
    "simulate": LazyCommand("octavo.bench.simulate:simulate_command", "Tokens a second that are simulated."),
    "admission": LazyCommand("octavo.bench.admission:admission_command", "Preemptions where admission looks ahead."),
    "skipping": LazyCommand("octavo.bench.skipping:skipping_command", "Small requests pass those that do not fit."),
    "fairness": LazyCommand("octavo.bench.fairness:fairness_command", "Two tenants, one ten times the load."),
    "eviction": LazyCommand("octavo.bench.eviction:eviction_command", "Hits of each order of eviction on a trace."),
    "compare": LazyCommand("octavo.bench.compare.command:compare", "Octavo and other engines, in turns."),
    "startup": LazyCommand("octavo.bench.startup:startup", "Time to import Octavo and until a server is ready."),
}


@click.group("bench", cls=LazyGroup, lazy=BENCHES)
def bench() -> None:
    """Measure latency, throughput and memory."""
