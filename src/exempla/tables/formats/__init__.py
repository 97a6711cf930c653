"""File formats: each module reads one and writes it back with single cells changed.

CSV and JSON lines are written by our own code, because no library changes one cell and keeps every
other byte. Size limits are in `encoding`.
"""
