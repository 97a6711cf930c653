"""One file per format: how it is read, and how only the cells that were decided on are rewritten.

The byte-exact writers (CSV, JSON lines) are our own: no library changes one cell and leaves every
other byte of a file alone. Limits on what one file may hold stand in limits.py.
Imports: errors, images, tables.table, tables.columns.arrow.
"""
