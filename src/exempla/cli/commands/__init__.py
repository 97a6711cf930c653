"""One module per command: run(options) -> exit code, and the STAGES of its progress bar.

`exempla.cli.main` imports only the module of the command that runs.
"""
