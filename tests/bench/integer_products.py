#!/usr/bin/env python3
"""Matrix products whose every sum is an integer sum, on tensor cores: how fast, beside cuBLAS, and whether they are exact.

    python3 tests/bench/integer_products.py            # on a Hopper GPU, with PyTorch 2.11 and Triton 3.6
    python3 tests/bench/integer_products.py --dry      # without one: rounding and limbs in Triton's interpreter, what the
                                                       # compiler makes of the products

A question, outside the product: such sums have the same bits on any hardware. Is there a profile in them that is as fast as
tensor cores? Each row of an operand, k numbers in f32, becomes integers q of at most 8127 in magnitude and one power of two:
e is least with max|x| ≤ 8127·2^e, q = x·2^−e rounded to nearest, ties to even. The product of two rows is S = Σ q·q', exactly,
rounded once to f32, times both powers. q = 128·h + l has limbs h in −63…63 and l in −64…63 (8127 is the largest with such
limbs), so that

    S = 2^14·Σ h·h' + 2^7·M + Σ l·l',    M = Σ (h·l' + l·h') = Σ (h + l)·(h' + l') − Σ h·h' − Σ l·l'

| way | products of limbs | operands that travel | sums of limbs |
|---|---|---|---|
| int8-four | h·h', h·l', l·h', l·l' | h, l | int32, exact for k < 2^17 |
| int8-three (Karatsuba) | h·h', l·l', (h + l)·(h' + l') | h, l, h + l | int32 |
| bf16-four | as int8-four | h, l | f32, exact: below 2^24, with what is above a limb carried on every 1024 terms |

One kernel quantises a matrix by rows, or by columns as the backward pass needs it; another multiplies, combines and rounds, so
that no sum of limbs is ever in memory. It has a warp that loads tiles (TMA) and two warpgroups that multiply, each 64 × 128.

Every result is compared with the integer one: products in f64 of the q, whose sums are exact in any order. Each figure
counts 2·m·n·k operations, whatever is done inside, and is the median of turns in which each side is measured after the other:
the product of quantised operands alone, and the product together with quantising the left operand, or both. Each way is a process of its own, given up after
--patience seconds. Exit code 1 if a result differs or a way fails.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import environment

environment.enter("numpy", "torch")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Name: limbs that travel, bytes of one, stages of tiles on their way.
WAYS = {"int8-four": (2, 1, 3), "int8-three": (3, 1, 2), "bf16-four": (2, 2, 3)}
KINDS = {1: ("i8", torch.int8), 2: ("bf16", torch.bfloat16)}
# Rows of a warpgroup's tile, which is twice as wide; bytes of k at a time; terms of k after which limbs in f32 are carried.
HALF, STEP_BYTES, CARRY = 64, 128, 1024
# Operations a second, in 10^12.
GOAL = 300


@triton.jit
def exponent(largest):
    """The least e with largest ≤ 8127·2^e; 8127 is 1.984…·2^12."""
    bits = largest.to(tl.int32, bitcast=True)
    above = (bits & 0x7FFFFF) > 0x7DF800
    return tl.maximum((bits >> 23) - 127 - 12 + above.to(tl.int32), -126)


@triton.jit
def limbs(x, e):
    """High and low limb of x·2^−e, rounded to nearest, ties to even."""
    scaled = x * ((127 - e) << 23).to(tl.float32, bitcast=True)
    # Adding 3·2^22 leaves no bit below the unit.
    q = ((scaled + 12582912.0) - 12582912.0).to(tl.int32)
    high = (q + 64) >> 7
    return high, q - 128 * high


@triton.jit
def keep(place, limb, mask):
    if place.dtype.element_ty == tl.int8:
        tl.store(place, limb.to(tl.int8), mask=mask)
    else:
        tl.store(place, limb.to(tl.float32).to(tl.bfloat16), mask=mask)


@triton.jit
def quantise_rows(x, out, exponents, rows, k, LIMBS: tl.constexpr, BLOCK: tl.constexpr):
    """A row to a program: `[rows, k]` in f32 to LIMBS matrices `[rows, k]`, one below the other."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * k + at, mask=at < k, other=0.0)
    e = exponent(tl.max(tl.abs(values), 0))
    high, low = limbs(values, e)
    place = out + row * k + at
    keep(place, high, at < k)
    keep(place + rows * k, low, at < k)
    if LIMBS == 3:
        keep(place + 2 * rows * k, high + low, at < k)
    tl.store(exponents + row, e)


@triton.jit
def largest_of_columns(x, largest, k, rows, DEEP: tl.constexpr, WIDE: tl.constexpr):
    """Largest magnitude of each column of `[k, rows]`, as bits, in which such numbers have the same order."""
    deep = tl.program_id(0) * DEEP + tl.arange(0, DEEP)
    wide = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    values = tl.load(x + deep[:, None] * rows + wide[None, :])
    tl.atomic_max(largest + wide, tl.max(tl.abs(values), 0).to(tl.int32, bitcast=True))


@triton.jit
def quantise_columns(x, largest, out, exponents, k, rows, LIMBS: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr):
    """`[k, rows]` to what `quantise_rows` makes of its transpose."""
    deep = tl.program_id(0) * DEEP + tl.arange(0, DEEP)
    wide = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    values = tl.load(x + deep[:, None] * rows + wide[None, :])
    e = exponent(tl.load(largest + wide).to(tl.float32, bitcast=True))
    high, low = limbs(values, e[None, :])
    place = out + wide[:, None] * k + deep[None, :]
    keep(place, high.T, True)
    keep(place + rows * k, low.T, True)
    if LIMBS == 3:
        keep(place + 2 * rows * k, (high + low).T, True)
    if tl.program_id(0) == 0:
        tl.store(exponents + wide, e)


@gluon.jit
def place(tile, m, n, TILE: gl.constexpr):
    """First row and column of a tile: eight rows of tiles at a time, so that what they share stays in the cache."""
    down, across = gl.cdiv(m, TILE), gl.cdiv(n, TILE)
    first = tile // (8 * across) * 8
    height = gl.minimum(down - first, 8)
    within = tile % (8 * across)
    return (first + within % height) * TILE, within // height * TILE


@gluon.jit
def load_tiles(a, b, left, right, ready, free, m, n, k, LIMBS: gl.constexpr, STAGES: gl.constexpr):
    HALF: gl.constexpr = a.block_type.shape[0]
    STEP: gl.constexpr = a.block_type.shape[1]
    BYTES: gl.constexpr = LIMBS * (2 * a.block_type.nbytes + b.block_type.nbytes)
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(m, 2 * HALF) * gl.cdiv(n, 2 * HALF), gl.num_programs(0)):
        row, column = place(tile, m, n, 2 * HALF)
        for at in range(0, k, STEP):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            full = ready.index(slot)
            mbarrier.expect(full, BYTES)
            for limb in gl.static_range(LIMBS):
                first = (slot * LIMBS + limb) * 2
                tma.async_copy_global_to_shared(a, [limb * m + row, at], full, left.index(first))
                tma.async_copy_global_to_shared(a, [limb * m + row + HALF, at], full, left.index(first + 1))
                tma.async_copy_global_to_shared(b, [limb * n + column, at], full, right.index(slot * LIMBS + limb))
            step += 1


@gluon.jit
def multiply_tiles(half: gl.constexpr, left, right, ready, free, a_exponents, b_exponents, out, m, n, k,
                   LIMBS: gl.constexpr, STAGES: gl.constexpr, CARRY: gl.constexpr):
    HALF: gl.constexpr = left.shape[1]
    STEP: gl.constexpr = left.shape[2]
    SUMS: gl.constexpr = gl.float32 if left.dtype == gl.bfloat16 else gl.int32
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * HALF, 32 // (left.dtype.primitive_bitwidth // 8)])
    step = 0
    for tile in range(gl.program_id(0), gl.cdiv(m, 2 * HALF) * gl.cdiv(n, 2 * HALF), gl.num_programs(0)):
        row, column = place(tile, m, n, 2 * HALF)
        high = gl.zeros((HALF, 2 * HALF), SUMS, LAYOUT)
        middle = gl.zeros((HALF, 2 * HALF), SUMS, LAYOUT)
        low = gl.zeros((HALF, 2 * HALF), SUMS, LAYOUT)
        for at in range(0, k, STEP):
            slot = step % STAGES
            mbarrier.wait(ready.index(slot), step // STAGES & 1)
            ah = left.index(slot * LIMBS * 2 + half)
            al = left.index((slot * LIMBS + 1) * 2 + half)
            bh = right.index(slot * LIMBS).permute((1, 0))
            bl = right.index(slot * LIMBS + 1).permute((1, 0))
            high_sum = warpgroup_mma(ah, bh, high, is_async=True)
            low_sum = warpgroup_mma(al, bl, low, is_async=True)
            if LIMBS == 3:
                both = right.index(slot * LIMBS + 2).permute((1, 0))
                middle_sum = warpgroup_mma(left.index((slot * LIMBS + 2) * 2 + half), both, middle, is_async=True)
            else:
                half_sum = warpgroup_mma(ah, bl, middle, is_async=True)
                middle_sum = warpgroup_mma(al, bh, half_sum, is_async=True)
            # The other warpgroup's products fill the pause.
            high, middle, low = warpgroup_mma_wait(0, [high_sum, middle_sum, low_sum])
            mbarrier.arrive(free.index(slot))
            step += 1
            if SUMS == gl.float32:
                if (at + STEP) % CARRY == 0:
                    carried = gl.floor((low + 64.0) * 0.0078125)
                    low -= 128.0 * carried
                    middle += carried
                    carried = gl.floor((middle + 64.0) * 0.0078125)
                    middle -= 128.0 * carried
                    high += carried
        high, middle, low = high.to(gl.int32), middle.to(gl.int32), low.to(gl.int32)
        if LIMBS == 3:
            middle -= high + low
        whole = (high.to(gl.int64) << 14) + (middle.to(gl.int64) << 7) + low.to(gl.int64)
        rows = row + half * HALF + gl.arange(0, HALF, gl.SliceLayout(1, LAYOUT))
        columns = column + gl.arange(0, 2 * HALF, gl.SliceLayout(0, LAYOUT))
        e = gl.load(a_exponents + rows)[:, None] + gl.load(b_exponents + columns)[None, :]
        scale = ((e + 127) << 23).to(gl.float32, bitcast=True)
        gl.store(out + rows[:, None] * n + columns[None, :], whole.to(gl.float32) * scale)


@gluon.jit
def multiply(a, b, a_exponents, b_exponents, out, m, n, k, LIMBS: gl.constexpr, STAGES: gl.constexpr, CARRY: gl.constexpr):
    """`[m, k]` times the transpose of `[n, k]`, both in limbs, to `[m, n]` in f32; for multiples of 128."""
    left = gl.allocate_shared_memory(a.dtype, [STAGES * LIMBS * 2] + a.block_type.shape, a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STAGES * LIMBS] + b.block_type.shape, b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=2)
    common = (left, right, ready, free, a_exponents, b_exponents, out, m, n, k, LIMBS, STAGES, CARRY)
    gl.warp_specialize([
        (multiply_tiles, (gl.constexpr(0),) + common),
        (multiply_tiles, (gl.constexpr(1),) + common),
        (load_tiles, (a, b, left, right, ready, free, m, n, k, LIMBS, STAGES)),
    ], [4, 1], [240, 24])


class Operand:
    """A matrix of rows in limbs, with their exponents."""

    def __init__(self, rows, k, way, device):
        self.count, self.size, _ = WAYS[way]
        self.rows, self.k = rows, k
        self.limbs = torch.empty((self.count * rows, k), dtype=KINDS[self.size][1], device=device)
        self.exponents = torch.empty(rows, dtype=torch.int32, device=device)
        self.largest = torch.empty(rows, dtype=torch.int32, device=device)

    def by_rows(self, x):
        """Of `[rows, k]`."""
        block = triton.next_power_of_2(self.k)
        quantise_rows[(self.rows,)](x, self.limbs, self.exponents, self.rows, self.k, self.count, block, num_warps=8)
        return self

    def by_columns(self, x):
        """Of `[k, rows]`."""
        self.largest.zero_()
        grid = (self.k // 64, self.rows // 64)
        largest_of_columns[grid](x, self.largest, self.k, self.rows, 64, 64)
        quantise_columns[grid](x, self.largest, self.limbs, self.exponents, self.k, self.rows, self.count, 64, 64)
        return self

    def integers(self):
        """The q, in f64."""
        high, low = self.limbs[:self.rows].double(), self.limbs[self.rows:2 * self.rows].double()
        if self.count == 3 and not torch.equal(self.limbs[2 * self.rows:].double(), high + low):
            raise SystemExit("the third limb is not the sum of the two others")
        return 128 * high + low

    def descriptor(self, rows):
        return TensorDescriptor.from_tensor(self.limbs, [rows, STEP_BYTES // self.size], layout(self.size))


def layout(size):
    return gl.NVMMASharedLayout(swizzle_byte_width=STEP_BYTES, element_bitwidth=8 * size, rank=2)


def product(a, b, out, stages, programs):
    multiply[(programs,)](a.descriptor(HALF), b.descriptor(2 * HALF), a.exponents, b.exponents, out, a.rows, b.rows, a.k,
                          a.count, stages, CARRY, num_warps=4)
    return out


def right(a, b):
    """The integer products, rounded once. Sums in f64 are exact here: they stay below 2^53."""
    sums = (a.integers() @ b.integers().T).to(torch.float32)
    powers = a.exponents[:, None] + b.exponents[None, :]
    if powers.min() < -126 or powers.max() > 127:
        raise SystemExit("a power of two leaves f32: scaling would round again")
    return sums * ((powers + 127) << 23).view(torch.float32)


def numbers(rows, k, device, seed):
    """Normal, with rows, columns and single numbers that stand out."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn((rows, k), generator=generator, device=device)
    x[:, ::97] *= 16
    x[::61] *= 1e-6
    x[1::61, 5] = 300
    return x


def measure(way, arguments):
    """One way on the GPU, beside cuBLAS, as lines of JSON."""
    torch.backends.cuda.matmul.allow_tf32 = False
    device, (m, n) = "cuda", arguments.size
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    for k in arguments.k:
        x, y = numbers(m, k, device, 1), numbers(n, k, device, 2)
        a, b = Operand(m, k, way, device).by_rows(x), Operand(n, k, way, device).by_rows(y)
        turned, transpose = Operand(m, k, way, device), x.T.contiguous()
        same = torch.equal(turned.by_columns(transpose).limbs, a.limbs) and torch.equal(turned.exponents, a.exponents)
        out = torch.empty((m, n), device=device)
        stages = WAYS[way][2]
        differ = int((product(a, b, out, stages, programs).view(torch.int32) != right(a, b).view(torch.int32)).sum())
        x16, y16 = x.bfloat16(), y.bfloat16()
        x8, y8 = (each.clamp(-100, 100).to(torch.int8) for each in (x, y))

        def tf32():
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.matmul(x, y.T, out=out)
            torch.backends.cuda.matmul.allow_tf32 = False

        sides = {
            "cuBLAS f32": lambda: torch.matmul(x, y.T, out=out), "cuBLAS tf32": tf32,
            "cuBLAS bf16": lambda: x16 @ y16.T, "cuBLAS int8, one product": lambda: torch._int_mm(x8, y8.T),
            "product": lambda: product(a, b, out, stages, programs),
            "left quantised, product": lambda: product(a.by_rows(x), b, out, stages, programs),
            "both quantised, product": lambda: product(a.by_rows(x), b.by_rows(y), out, stages, programs),
            "both quantised by columns, product":
                lambda: product(turned.by_columns(transpose), b.by_columns(y.view(k, n)), out, stages, programs),
        }
        taken = {name: [] for name in sides}
        for _ in range(arguments.turns):
            for name, run in sides.items():
                taken[name].append(triton.testing.do_bench(run, warmup=20, rep=60, return_mode="median"))
        rates = {name: 2 * m * n * k / statistics.median(each) / 1e9 for name, each in taken.items()}
        print(json.dumps({"k": k, "differ": differ, "columns": same, "rates": rates}), flush=True)


def compiled(way):
    """What the compiler makes of the kernels for Hopper: registers, spilled bytes, instructions of tensor cores."""
    from triton.experimental.gluon._runtime import GluonASTSource
    count, size, stages = WAYS[way]
    kind = KINDS[size][0]
    boxes = [f"tensordesc<{kind}[{rows},{STEP_BYTES // size}],{layout(size)!r}>" for rows in (HALF, 2 * HALF)]
    kernels = [(multiply, GluonASTSource, [*boxes, "*i32", "*i32", "*fp32", "i32", "i32", "i32", count, stages, CARRY], 4),
               (quantise_rows, ASTSource, ["*fp32", f"*{kind}", "*i32", "i32", "i32", count, 4096], 8),
               (largest_of_columns, ASTSource, ["*fp32", "*i32", "i32", "i32", 64, 64], 4),
               (quantise_columns, ASTSource, ["*fp32", "*i32", f"*{kind}", "*i32", "i32", "i32", count, 64, 64], 4)]
    good = True
    for kernel, source, types, warps in kernels:
        fixed = {(index,): kind for index, kind in enumerate(types) if isinstance(kind, int)}
        sized = {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(types) if kind in ("i32", "*i32", "*fp32")}
        named = {name: "constexpr" if isinstance(kind, int) else kind for name, kind in zip(kernel.arg_names, types)}
        made = triton.compile(source(kernel, named, fixed, sized), target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        spilled, registers = assembled(made.asm["ptx"])
        found = ", ".join(sorted(set(re.findall(r"wgmma\.mma_async\S*", made.asm["ptx"]))))
        print(f"{way}, {kernel.fn.__name__}: {registers} registers at entry, {spilled} bytes spilled, "
              f"{made.metadata.shared} bytes of shared memory{', ' if found else ''}{found}")
        good &= spilled == "0" and bool(found) == (kernel is multiply)
    return good


def assembled(text):
    """Bytes spilled and registers, as the assembler says them."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        program = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
        said = subprocess.run([program, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"], capture_output=True, text=True).stderr
    return [re.search(pattern, said)[1] for pattern in (r"(\d+) bytes spill stores", r"Used (\d+) registers")]


def interpreted():
    """Whether the kernels that quantise are right, in Triton's interpreter."""
    good = True
    for rows, k in ((128, 64), (64, 192)):
        x = numbers(rows, k, "cpu", rows)
        x[3], x[5, 7], x[6] = 0, 2.0 ** 100, 1.984130859375  # 8127·2^−12
        x[9, :4], x[9, 4:] = torch.tensor([8127, 0.5, 1.5, 2.5]), 0
        largest = x.abs().double().amax(1)
        e = torch.ceil(torch.log2(largest.clamp(min=2.0 ** -140) / 8127)).clamp(min=-126)
        q = torch.round(x.double() * torch.exp2(-e)[:, None])
        for way in WAYS:
            for found in (Operand(rows, k, way, "cpu").by_rows(x), Operand(rows, k, way, "cpu").by_columns(x.T.contiguous())):
                low = found.limbs[rows:2 * rows]
                good &= torch.equal(found.integers(), q) and torch.equal(found.exponents.double(), e)
                good &= low.min() >= -64 and low.max() <= 63 and found.limbs[:rows].abs().max() <= 63
    return good


def dry(arguments):
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit(not interpreted())
    # In a process of its own: the interpreter takes the place of the compiler.
    child = subprocess.run([sys.executable, __file__, "--dry"], env=os.environ | {"TRITON_INTERPRET": "1"})
    good = child.returncode == 0
    print(f"quantising by rows and by columns, in the interpreter: {'as defined' if good else 'WRONG'}")
    compiles = [compiled(way) for way in arguments.ways]
    sys.exit(not (good and all(compiles)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS), metavar=",".join(WAYS))
    parser.add_argument("--size", type=int, nargs=2, default=[4096, 4096], metavar=("M", "N"), help="multiples of 128")
    parser.add_argument("--k", type=int, nargs="+", default=[1024, 4096], help="multiples of 128, at most 4096")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--patience", type=float, default=120, help="seconds for one way")
    parser.add_argument("--dry", action="store_true", help="without a GPU")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.ways) - set(WAYS):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(WAYS)}")
    if any(number % 128 for number in arguments.size + arguments.k) or max(arguments.k) > 4096:
        parser.error("sizes must be multiples of 128, and k at most 4096")
    if arguments.dry:
        dry(arguments)
    if arguments.way:
        return measure(arguments.way, arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        parser.error("this needs a Hopper GPU (H100, H200); --dry tries what can be tried without one")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}; "
          f"m, n = {arguments.size}, medians of {arguments.turns} turns, 10^12 operations a second")
    failed, best = False, {}
    for way in arguments.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.patience)
            said, why = done.stdout, done.stderr if done.returncode else ""
        except subprocess.TimeoutExpired as late:
            said, why = (late.stdout or b"").decode(), f"it did not end within {arguments.patience} s"
        for found in map(json.loads, said.splitlines()):
            exact = found["differ"] == 0 and found["columns"]
            print(f"\n{way}, k = {found['k']}: {found['differ']} results differ from the integer ones; quantised by columns "
                  f"{'as by rows' if found['columns'] else 'OTHERWISE'}")
            for name, rate in found["rates"].items():
                print(f"  {name:36}{rate:8.0f}  {rate / found['rates']['cuBLAS bf16']:.2f} of bf16")
            failed |= not exact
            best[found["k"]] = max(best.get(found["k"], 0), found["rates"]["both quantised, product"] if exact else 0)
        if why:
            failed = True
            print(f"\n{way}: {why[-2000:]}")
    for k, rate in best.items():
        environment.verdict(f"integer sums with both operands quantised, k = {k}", f"{rate:.0f}·10^12", f"above {GOAL}", rate > GOAL)
    sys.exit(failed)


if __name__ == "__main__":
    main()
