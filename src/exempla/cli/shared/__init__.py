"""What several commands need: the user's file, the question, the console, what is written.

Imports: tables, tasks, report, review; never a command.
"""
