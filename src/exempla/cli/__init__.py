"""The command line: main (what `exempla` runs), commands/ (one file each), shared/ (common parts).

Imports everything below it; nothing imports it.
"""
