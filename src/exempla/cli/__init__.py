"""The command line: main (what `exempla` runs), commands/ (one file each), fitted (the
user's file and its model), query (`--ask`), labels (results of fix-labels), output (the results
folder), options and console.

It imports all other packages; none imports it.
"""
