"""The user's own file, images or texts: read, asked about, shown, and exchanged with other tools.

Imports: shared/, tables, tasks, report, review; never a command.
"""
