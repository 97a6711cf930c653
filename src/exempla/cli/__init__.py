"""The command line: main (what `exempla` runs), commands/ (one file each), userdata/ (the user's
file), shared/ (common parts).

Imports everything below it; nothing imports it.
"""
