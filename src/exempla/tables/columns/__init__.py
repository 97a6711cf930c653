"""What each column is: number, category, date, text, id, label; and why.

The kinds are inferred here: type inference of libraries tells a column's storage, not that it is
an id, a leak of the label or a code with leading zeros, and gives no reason a user could check.
Imports: errors, tables.table.
"""
