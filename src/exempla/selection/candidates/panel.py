"""The innermost loop of a pass: a few rows times a few directions, held in registers.

Written as LLVM instructions because neither numba nor NumPy can be told to keep a tile of sums in
registers: 6 rows × 16 directions (8 where there are no more), one vector multiply-add for every
number read. LLVM cuts the vectors to what the machine has (AVX-512, AVX2, NEON). Each (row,
direction) is summed by itself, in the order of the coordinates: the products of a direction do not
depend on where it stands.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["COLUMNS", "HEIGHT", "NARROW", "RUN", "add_narrow", "add_products", "turn"]

HEIGHT = 6
"""Rows of a panel."""
COLUMNS, NARROW = 16, 8
"""Directions of a panel, and of a narrow one, which takes two thirds of the time."""
RUN = 16
"""Coordinates taken per turn of the loop; `add_products` takes whole runs only."""
FARTHER = 2
"""Panels ahead of this one whose rows are called into the cache: they lie in as many streams as
the panel has rows, more than processors foresee by themselves. Into the second cache: the first is
full of directions and products, which such rows would drive out."""


@intrinsic
def add_products(typingctx: Any, F: Any, j: Any, Q: Any, g: Any, start: Any, stop: Any, out: Any):
    """out[r, s] += Σ_i F[j + r, i]·Q[g, i, s] over start ≤ i < stop, a whole number of runs.

    F (t, p), Q (groups, p, COLUMNS) and out (HEIGHT, COLUMNS) are C-contiguous; products are summed
    in the precision of Q, then added in that of out.
    """
    word = types.intp
    return types.void(F, word, Q, word, word, word, out), _emit_wide


@intrinsic
def add_narrow(typingctx: Any, F: Any, j: Any, Q: Any, g: Any, start: Any, stop: Any, out: Any):
    """`add_products` with NARROW for COLUMNS."""
    word = types.intp
    return types.void(F, word, Q, word, word, word, out), _emit_narrow


@intrinsic
def turn(typingctx: Any, panel: Any, V: Any, row: Any, column: Any):
    """V[row + s, column + r] = panel[r, s]: the sums of a panel, a direction a line, in the
    precision of V."""
    return types.void(panel, V, types.intp, types.intp), _emit_turn


def _emit_turn(context: Any, b: Any, signature: Any, args: Any) -> Any:
    panel, V = (
        context.make_array(kind)(context, b, value)
        for kind, value in zip(signature.args[:2], args[:2])
    )
    of_sum, of_line = (context.get_data_type(kind.dtype) for kind in signature.args[:2])
    word = args[2].type
    columns, width = (cgutils.unpack_tuple(b, array.shape)[1] for array in (panel, V))
    with cgutils.for_range(b, columns) as loop:
        line = b.gep(V.data, [b.add(b.mul(b.add(args[2], loop.index), width), args[3])])
        for r in range(HEIGHT):
            at = b.add(b.mul(columns, word(r)), loop.index)
            value = b.load(b.gep(panel.data, [at]))
            value = value if of_sum == of_line else b.fptrunc(value, of_line)
            b.store(value, b.gep(line, [word(r)]))
    return context.get_dummy_value()


def _emit_wide(context: Any, b: Any, signature: Any, args: Any) -> Any:
    return _emit(context, b, signature, args, COLUMNS)


def _emit_narrow(context: Any, b: Any, signature: Any, args: Any) -> Any:
    return _emit(context, b, signature, args, NARROW)


def _emit(context: Any, b: Any, signature: Any, args: Any, columns: int) -> Any:
    kinds = [signature.args[k] for k in (0, 2, 6)]
    arrays = [context.make_array(kind)(context, b, args[k]) for kind, k in zip(kinds, (0, 2, 6))]
    F, Q, out = arrays
    of_row, of_sum, of_out = (context.get_data_type(kind.dtype) for kind in kinds)
    j, g, start, stop = args[1], args[3], args[4], args[5]
    word = start.type
    vector = ir.VectorType(of_sum, columns)
    p = cgutils.unpack_tuple(b, F.shape)[1]
    lines = [b.gep(F.data, [b.mul(b.add(j, word(r)), p)]) for r in range(HEIGHT)]
    directions = b.gep(Q.data, [b.mul(b.mul(g, p), word(columns))])

    before, loop, after = b.block, b.append_basic_block("run"), b.append_basic_block("sums")
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(word)
    sums = [b.phi(vector) for _ in range(HEIGHT)]
    new: list[Any] = list(sums)
    for r in range(HEIGHT):
        _prefetch(b, b.gep(lines[r], [b.add(i, b.mul(p, word(FARTHER * HEIGHT)))]))
    for k in range(RUN):
        at = b.add(i, word(k))
        q = _load(b, b.gep(directions, [b.mul(at, word(columns))]), vector)
        for r in range(HEIGHT):
            f = b.load(b.gep(lines[r], [at]))
            f = f if of_row == of_sum else b.fpext(f, of_sum)
            new[r] = b.call(_fma(b, vector), [_spread(b, f, vector), q, new[r]])
    turn = b.add(i, word(RUN))
    for phi, first, then in zip([i, *sums], [start, *[vector(None)] * HEIGHT], [turn, *new]):
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    b.cbranch(b.icmp_signed("<", turn, stop), loop, after)

    b.position_at_end(after)
    wide = ir.VectorType(of_out, columns)
    for r in range(HEIGHT):
        where = b.gep(out.data, [word(r * columns)])
        total = new[r] if of_out == of_sum else b.fpext(new[r], wide)
        total = b.fadd(_load(b, where, wide), total)
        b.store(total, b.bitcast(where, wide.as_pointer()), align=4)
    return context.get_dummy_value()


def _load(b: Any, where: Any, vector: Any) -> Any:
    return b.load(b.bitcast(where, vector.as_pointer()), align=4)


def _spread(b: Any, value: Any, vector: Any) -> Any:
    """The value in every lane."""
    small, nothing = ir.IntType(32), vector(ir.Undefined)
    one = b.insert_element(nothing, value, small(0))
    return b.shuffle_vector(one, nothing, ir.VectorType(small, vector.count)([0] * vector.count))


def _fma(b: Any, vector: Any) -> Any:
    kind = "f32" if isinstance(vector.element, ir.FloatType) else "f64"
    shape = ir.FunctionType(vector, [vector] * 3)
    return cgutils.get_or_insert_function(b.module, shape, f"llvm.fma.v{vector.count}{kind}")


def _prefetch(b: Any, where: Any) -> None:
    byte, small = ir.IntType(8).as_pointer(), ir.IntType(32)
    shape = ir.FunctionType(ir.VoidType(), [byte, small, small, small])
    call = cgutils.get_or_insert_function(b.module, shape, "llvm.prefetch.p0i8")
    b.call(call, [b.bitcast(where, byte), small(0), small(2), small(1)])
