"""One file per command: HELP, add_arguments(parser), run(options) -> exit code.

Heavy imports stand inside `run`, so that `exempla --help` is quick.
"""
