"""One file per format: how it is read, and how only the cells that were decided on are rewritten.

The byte-exact writers are our own: no library rewrites one cell and leaves every other byte alone.
Imports: errors, atomic, images, tables.table.
"""
