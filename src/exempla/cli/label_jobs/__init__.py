"""Wrong labels of a user's file that are no single class: numbers, several labels, tokens.

job         what every such job writes: table, report, review folder
several     rows with several labels
tokens      rows of tokens
"""

from exempla.cli.label_jobs.job import JobFile, finish
from exempla.cli.label_jobs.several import several_labels
from exempla.cli.label_jobs.tokens import token_labels

__all__ = ["JobFile", "finish", "several_labels", "token_labels"]
