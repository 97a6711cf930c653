"""One module per command: add_arguments(parser), run(options) -> exit code, and its STAGES.

Heavy imports are inside `run`, so that `exempla --help` is fast.
"""
