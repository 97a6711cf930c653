"""What every command needs: options, the console, the folder for results, ways to end.

Imports: tables, tasks, report; never a command nor the user's file.
"""
