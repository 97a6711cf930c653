"""Whole jobs beside peers: what a user waits for, and the memory it takes.

contests   who does which job, and in which environment
alone      one contestant's job, in a process of its own
measure    all of them in one run, as figures
page       the figures as a picture and a page
"""
