#!/usr/bin/env python3
"""The kernels of graphics processors, compiled by NVIDIA's compiler where there is no graphics processor: what they take.

    python3 tests/bench/kernels.py                     # downloads nvidia-cuda-nvrtc, 90 MB
    python3 tests/bench/kernels.py --architectures sm_86,sm_120

For each kernel and architecture: registers of a work-item, bytes that do not fit into them and go to memory (spills), bytes of
shared memory. Exits with 1 where a product spills more than some values, where two groups of 256 work-items do not fit, or
where a kernel has other code when the compiler may contract: then its bits would hang on an option.
"""

import argparse
import ctypes
import pathlib
import re
import struct
import subprocess
import sys

import environment

environment.PACKAGES["nvidia"] = "nvidia-cuda-nvrtc==13.0.88"
environment.enter("nvidia")

# As the product has them (`cuda.rs`).
OPTIONS = ["--ftz=false", "--prec-div=true", "--prec-sqrt=true", "-w"]
ARCHITECTURES = "sm_75,sm_80,sm_86,sm_89,sm_90,sm_120"
# A work-item of 256 has so many registers where two groups share a unit; bytes of a group on every architecture; spilt bytes.
REGISTERS, SHARED, SPILT = 128, 48 << 10, 256
# What may be contracted without another bit: products with a power of two are exact, those of GRID-2 and the last one of e^x
# (ARITH-23), to which 1 is added. And what the proof of a device asks for, to see it (ARITH-27).
CONTRACTED = {"grid", "gelu", "sigmoids", "swiglu", "functions"}


class Compiler:
    """NVRTC, out of its Python package."""

    def __init__(self):
        import nvidia
        folder = next(pathlib.Path(path, "cu13", "lib") for path in nvidia.__path__ if pathlib.Path(path, "cu13").exists())
        for name in ("libnvrtc-builtins.so.13.0", "libnvrtc.so.13"):
            self.library = ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)

    def text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, text)
        return text.raw

    def compile(self, source, *options):
        """The log, and the machine's code of each kernel."""
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), words)
        log = self.text(program, "ProgramLog").decode()
        if failed:
            sys.exit(log)
        return log, sections(self.text(program, "CUBIN"))


def sections(elf):
    """The code of each kernel in a file of NVIDIA's, which is one of ELF with 64 bits."""
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, at + number * size) for number in range(count)]
    name = lambda offset: elf[headers[names][4] + offset:].split(b"\0", 1)[0].decode()
    code = {name(header[0]): elf[header[4]:header[4] + header[5]] for header in headers}
    return {name.removeprefix(".text."): text for name, text in code.items() if name.startswith(".text.")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", type=lambda text: text.split(","), default=ARCHITECTURES.split(","))
    parser.add_argument("--program", help="the example gpu, where it is built already")
    arguments = parser.parse_args()
    program = arguments.program or environment.build("gpu", kind="example")
    source = subprocess.run([program, "source"], check=True, capture_output=True, text=True).stdout
    compiler, bad = Compiler(), []
    print(f"{'':24}" + "".join(f"{name:>20}" for name in arguments.architectures))
    table = {}
    for architecture in arguments.architectures:
        log, _ = compiler.compile(source, *OPTIONS, f"--gpu-architecture={architecture}", "--fmad=false", "--ptxas-options=-v")
        entry = r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers(.*?)\n"
        for name, stores, loads, registers, rest in re.findall(entry, log, re.S):
            shared = re.search(r"(\d+) bytes smem", rest)
            taken = int(registers), max(int(stores), int(loads)), int(shared[1]) if shared else 0
            table.setdefault(name, {})[architecture] = taken
            if taken[0] > REGISTERS or taken[2] > SHARED or taken[1] > SPILT:
                bad.append(f"{name} on {architecture}: {taken[0]} registers, {taken[1]} bytes spilt, {taken[2]} bytes shared")
    for name, row in sorted(table.items()):
        cells = (f"{r} r {spilt} s {shared >> 10:3} K" for r, spilt, shared in map(row.get, arguments.architectures))
        print(f"{name:24}" + "".join(f"{cell:>20}" for cell in cells))
    apart, joined = (compiler.compile(source, *OPTIONS, f"--gpu-architecture={arguments.architectures[0]}", f"--fmad={fused}")[1]
                     for fused in ("false", "true"))
    differ = sorted(name for name in apart if apart[name] != joined[name])
    print(f"{len(apart)} kernels; other code where the compiler may contract: {', '.join(differ) or 'none'}")
    bad += [f"{name} is contracted where the compiler may" for name in differ if name not in CONTRACTED]
    environment.verdict("kernels fit and keep their bits", "; ".join(bad) or "all", "all", not bad)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
