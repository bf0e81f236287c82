"""What the kernels need that Numba has no word for: numbers as bits, addresses as arrays, and arithmetic that stays
as wide as the numbers are.

Everything is generic: of a float32 the bits are an int32, of a float64 an int64. Numba widens every sum of int32 to 64
bits, which halves the lanes; `fit` keeps it narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba import config as _config
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

cgutils: Any = _cgutils  # which says nothing of its types
config: Any = _config


def _features() -> dict[str, bool]:
    """What the processor that Numba compiles for is known to have: nothing, if that was set to be another one."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return {}
    try:
        return dict(binding.get_host_cpu_features())
    except RuntimeError:
        return {}


_FEATURES = _features()
_CONVERTS = _FEATURES.get("f16c", False)
"""Whether the processor has an instruction for the conversion of halves; else a library would be called, which is not
there."""
_INTEGER: dict[Any, Any] = {types.float32: types.int32, types.float64: types.int64}
_REAL = {integer: real for real, integer in _INTEGER.items()}


@intrinsic
def popcount(context: Any, word: Any) -> Any:
    return word(word), lambda ctx, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def bits(context: Any, number: Any) -> Any:
    """A number as the integer with the same bits."""
    integer = _INTEGER[number]
    return integer(number), lambda ctx, b, signature, arguments: b.bitcast(arguments[0], ir.IntType(integer.bitwidth))


@intrinsic
def number(context: Any, integer: Any) -> Any:
    """An integer as the number with the same bits."""
    real = _REAL[integer]
    return real(integer), lambda ctx, b, s, arguments: b.bitcast(arguments[0], ctx.get_value_type(real))


@intrinsic
def magnitude(context: Any, integer: Any) -> Any:
    """The bits of |x|, from those of x: for numbers of one sign the order of the bits is that of the numbers."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        most = (1 << (integer.bitwidth - 1)) - 1
        return builder.and_(arguments[0], ir.Constant(ir.IntType(integer.bitwidth), most))

    return integer(integer), generate


@intrinsic
def fit(context: Any, value: Any, like: Any) -> Any:
    """An integer as one of the width of another."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, narrow = value.bitwidth, like.bitwidth
        if wide == narrow:
            return arguments[0]
        target = ir.IntType(narrow)
        return builder.trunc(arguments[0], target) if wide > narrow else builder.sext(arguments[0], target)

    return like(value, like), generate


@intrinsic
def mask(context: Any, condition: Any, like: Any) -> Any:
    """All ones where it holds and zero where not, in the width of an integer."""
    return like(condition, like), lambda c, b, s, arguments: b.sext(arguments[0], ir.IntType(like.bitwidth))


@intrinsic
def flag(context: Any, condition: Any, like: Any) -> Any:
    """1 where it holds and 0 where not, in the width of an integer."""
    return like(condition, like), lambda c, b, s, arguments: b.zext(arguments[0], ir.IntType(like.bitwidth))


@intrinsic
def sign_mask(context: Any, integer: Any) -> Any:
    """All ones of what is negative, else zero."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ashr(arguments[0], ir.Constant(ir.IntType(integer.bitwidth), integer.bitwidth - 1))

    return integer(integer), generate


@intrinsic
def sign_bit(context: Any, integer: Any) -> Any:
    """The bit of the sign alone."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.and_(arguments[0], ir.Constant(ir.IntType(integer.bitwidth), -1 << (integer.bitwidth - 1)))

    return integer(integer), generate


def _pointer_to(kind: Any) -> Any:
    return types.CPointer(kind)  # type: ignore[no-untyped-call]


def _pointer(ctx: Any, builder: Any, arguments: Any, kind: Any) -> Any:
    address, start = arguments[0], builder.mul(arguments[1], ir.Constant(ir.IntType(64), kind.bitwidth // 8))
    return builder.inttoptr(builder.add(address, start), ctx.get_value_type(kind).as_pointer())


@intrinsic
def integers_at(context: Any, address: Any, start: Any, one: Any) -> Any:
    """Where the bits of number `start` of a row lie; `one` is a number of the kind that the row has."""
    kind = _INTEGER[one]
    return _pointer_to(kind)(address, start, one), lambda c, b, s, arguments: _pointer(c, b, arguments, kind)


@intrinsic
def numbers_at(context: Any, address: Any, start: Any, one: Any) -> Any:
    """Where number `start` of a row lies; `one` is a number of the kind that the row has."""
    return _pointer_to(one)(address, start, one), lambda c, b, s, arguments: _pointer(c, b, arguments, one)


@intrinsic
def per_line(context: Any, one: Any) -> Any:
    """How many numbers of a kind come from memory together."""
    return types.int64(one), lambda c, b, s, arguments: ir.Constant(ir.IntType(64), 512 // one.bitwidth)


@intrinsic
def fetch(context: Any, address: Any, start: Any, one: Any) -> Any:
    """Ask for the memory around number `start` of a row, to be read soon; what does not exist is not fetched."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line, flag, flag, flag])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (line,), kind)
        place = builder.bitcast(_pointer(ctx, builder, arguments, one), line)
        to_read, into_every_cache, data = (ir.Constant(flag, value) for value in (0, 3, 1))
        builder.call(prefetch, [place, to_read, into_every_cache, data])
        return ctx.get_dummy_value()

    return types.void(address, start, one), generate


def _arithmetic(name: str) -> Any:
    def of_two(context: Any, one: Any, other: Any) -> Any:
        assert one == other, (name, one, other)
        return one(one, other), lambda c, builder, s, arguments: getattr(builder, name)(*arguments)

    return intrinsic(of_two)


plus, minus, both, differ = (_arithmetic(name) for name in ("add", "sub", "and_", "xor"))
"""Sum, difference, AND and XOR of two integers of one width, as wide as they are."""


@intrinsic
def words_at(context: Any, address: Any, start: Any) -> Any:
    """Where word `start` of an array of 16 bits each lies."""
    kind = types.uint16
    return _pointer_to(kind)(address, start), lambda c, b, s, arguments: _pointer(c, b, arguments, kind)


BLOCK = 16
"""Numbers that `exchange` compares at a time."""


def exchange(pattern: Sequence[tuple[int, int]]) -> Any:
    """An intrinsic that does a fixed list of comparisons to as many rows: (addresses of the rows, place, like).

    It reads BLOCK integers of each row from `place` on, leaves the lesser one of each comparison in its first row, and
    writes all of them back.
    """

    def of_rows(context: Any, addresses: Any, place: Any, like: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(like.bitwidth), BLOCK)

        def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            row_addresses, start, _ = arguments
            size = ir.Constant(ir.IntType(64), like.bitwidth // 8)
            offset, pointers = builder.mul(start, size), []
            for k in range(len(addresses)):
                address = builder.add(builder.extract_value(row_addresses, k), offset)
                pointers.append(builder.inttoptr(address, lanes.as_pointer()))
            values = [builder.load(pointer, align=like.bitwidth // 8) for pointer in pointers]
            for lower, upper in pattern:
                x, y = values[lower], values[upper]
                less = builder.icmp_signed("<", x, y)
                values[lower], values[upper] = builder.select(less, x, y), builder.select(less, y, x)
            for value, pointer in zip(values, pointers, strict=True):
                builder.store(value, pointer, align=like.bitwidth // 8)
            return ctx.get_dummy_value()

        return types.void(addresses, place, like), generate

    return intrinsic(of_rows)


@intrinsic
def from_half(context: Any, word: Any) -> Any:
    """The float32 of the same value as the float16 with these 16 bits."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (bits_of_half,) = arguments
        if _CONVERTS:
            return builder.fpext(builder.bitcast(bits_of_half, ir.HalfType()), ir.FloatType())
        # A sign, 5 bits of exponent with a bias of 15, and 10 of fraction, as 8 with a bias of 127, and 23.
        whole, real = ir.IntType(32), ir.FloatType()
        word = builder.zext(bits_of_half, whole)

        def constant(value: int) -> Any:
            return ir.Constant(whole, value)

        size = builder.and_(word, constant(0x7FFF))
        shifted = builder.shl(size, constant(13))
        normal = builder.add(shifted, constant(112 << 23))
        special = builder.or_(shifted, constant(0x7F800000))  # Inf and NaN
        below_normal = builder.fmul(builder.uitofp(size, real), ir.Constant(real, 2.0**-24))
        found = builder.select(builder.icmp_unsigned(">=", size, constant(0x7C00)), special, normal)
        found = builder.select(
            builder.icmp_unsigned("<", size, constant(0x0400)), builder.bitcast(below_normal, whole), found
        )
        sign = builder.shl(builder.and_(word, constant(0x8000)), constant(16))
        return builder.bitcast(builder.or_(found, sign), real)

    return types.float32(word), generate


TILE = 4
"""Rows on each side of a tile of products."""
_WIDE = _FEATURES.get("avx512f", False)
_LANES, _OTHERS = (8, 4) if _WIDE else (4, 2)
"""Float64 numbers in a register, and how many of the other rows are worked on together, so that all sums stay in
registers: there are 32 of them on a processor with wide ones, else 16."""


def _lanes_of(builder: Any, vector: Any, start: int, count: int) -> Any:
    """So many lanes of a vector, as one of their own."""
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(start, start + count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


@intrinsic
def products(context: Any, rows: Any, others: Any, length: Any, result: Any, stride: Any) -> Any:
    """Adds ⟨a_i, b_j⟩ of TILE rows and TILE others (addresses of float64, `length` of them, a multiple of eight) to
    a square of float64 at the address `result`, whose rows are `stride` apart. The sums stay in registers."""

    def generate(ctx: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right, size, target, apart = arguments
        lanes, whole = ir.VectorType(ir.DoubleType(), _LANES), ir.IntType(64)
        nothing = ir.Constant(lanes, [0.0] * _LANES)
        kind = ir.FunctionType(lanes, [lanes, lanes, lanes])
        fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{_LANES}f64")

        def load(addresses: Any, k: int, offset: Any) -> Any:
            address = builder.add(builder.extract_value(addresses, k), offset)
            return builder.load(builder.inttoptr(address, lanes.as_pointer()), align=8)

        step, bytes_of_one = ir.Constant(whole, _LANES), ir.Constant(whole, 8)

        def part(columns: range) -> None:
            pairs = [(i, j) for j in columns for i in range(TILE)]
            sums = {pair: cgutils.alloca_once(builder, lanes) for pair in pairs}
            for total in sums.values():
                builder.store(nothing, total)
            with cgutils.for_range_slice(builder, ir.Constant(whole, 0), size, step, intp=whole) as (place, _):
                offset = builder.mul(place, bytes_of_one)
                mine = [load(left, i, offset) for i in range(TILE)]
                beside = {j: load(right, j, offset) for j in columns}
                for i, j in pairs:
                    sum_so_far = builder.load(sums[i, j])
                    builder.store(builder.call(fused, [mine[i], beside[j], sum_so_far]), sums[i, j])
            for i, j in pairs:
                total, half = builder.load(sums[i, j]), _LANES // 2
                while half:
                    lower, upper = (_lanes_of(builder, total, start, half) for start in (0, half))
                    total, half = builder.fadd(lower, upper), half // 2
                total = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
                shift = builder.add(builder.mul(apart, ir.Constant(whole, i)), ir.Constant(whole, j))
                address = builder.add(target, builder.mul(shift, bytes_of_one))
                pointer = builder.inttoptr(address, ir.DoubleType().as_pointer())
                builder.store(builder.fadd(builder.load(pointer), total), pointer)

        for first in range(0, TILE, _OTHERS):
            part(range(first, first + _OTHERS))
        return ctx.get_dummy_value()

    return types.void(rows, others, length, result, stride), generate
