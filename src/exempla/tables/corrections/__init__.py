"""Decisions about rows: checked, applied to the file, written as a patch.

Imports: errors, atomic, tables.formats, tables.read.
"""
