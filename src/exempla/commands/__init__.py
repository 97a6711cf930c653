"""One file per command: HELP, add_arguments(parser), run(options) -> exit code."""
