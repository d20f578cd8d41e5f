"""Measure what mixing costs: a training step, reading attention, loading data.

Each of the three prints a table and, with --out, writes it down with what it was measured on.
"""

# A command below this one is a module like any other command's.
COMMANDS = {
    "step": "attnmix.commands.bench_step",
    "attention": "attnmix.commands.bench_attention",
    "data": "attnmix.commands.bench_data",
}
EXAMPLES = """
examples:
  attnmix bench step --models deit_tiny_patch16_224 --out benchmarks/results
  attnmix bench data quickstart
"""
