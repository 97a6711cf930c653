"""Kills, full disks, failing disks and short reads at every file call of a job.

shim.c does the harm, runner.py repeats a scenario with it, scenarios.py says what is done and what
must hold afterwards. A short sample runs with the tests; `make fuzz` tries every call.
"""
