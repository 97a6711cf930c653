"""Rows in several parts that answer as one, wherever the parts are.

`part` is what stands where the rows are, `exchange` how questions reach the parts, `rows` and
`race` what the greedy loop sees, `backend` who places the parts. Rows never travel but for the few
that are hopeful; what travels is counted (`Traffic`).

Imports: selection's candidates, inputs and selector; store.
"""

from exempla.selection.shards.backend import BACKENDS, Backend, Local, resolve
from exempla.selection.shards.exchange import Call, Exchange, LocalExchange, Traffic
from exempla.selection.shards.part import Part, Parts
from exempla.selection.shards.rows import ShardedRows

__all__ = [
    "BACKENDS",
    "Backend",
    "Call",
    "Exchange",
    "Local",
    "LocalExchange",
    "Part",
    "Parts",
    "ShardedRows",
    "Traffic",
    "resolve",
]
