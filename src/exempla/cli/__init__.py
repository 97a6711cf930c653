"""The command line, on top of all other packages.

`main` parses and runs a command of `commands/`; `fitted` reads the user's file and fits a model;
`query` resolves `--ask`; `labels` judges labels and writes their results; `output` has the results
folder; `options` and `console` are shared by all commands.
"""
