"""The command line, on top of all other packages.

`main` parses the words and runs a command of `commands/`; `options` has the arguments of every
command and what prints; `output` has the results folder; `fitted` reads the user's file and fits
a model; `query` resolves `--ask`.
"""
