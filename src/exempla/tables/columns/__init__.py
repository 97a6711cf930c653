"""What each column is: number, category, date, text, id, label; and why.

Imports: errors, tables.table.
"""
