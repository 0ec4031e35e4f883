#!/usr/bin/env python3
"""Compiles every kernel for every architecture and number type with NVRTC; needs no card.

NVRTC comes from a toolkit or from the Python package nvidia-cuda-nvrtc (found beside this interpreter, or in $NVRTC).
Usage: check.py [file.cu ...] [--quick] [--resources]
"""

import ctypes
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"]
TYPES = [
    ("float", []),
    ("bf16", []),
    ("f16", []),
    ("bf16", ["-DWGT=float"]),
    ("bf16", ["-DGRD=bf16", "-DMOM=bf16"]),
    ("f16", ["-DLGT=float", "-DWGT=float"]),
]


def library():
    named = [os.environ["NVRTC"]] if "NVRTC" in os.environ else []
    roots = [p for p in sys.path if p.endswith("-packages")] + ["/usr/local/cuda/lib64"]
    found = [hit for root in roots for hit in sorted(glob.glob(root + "/**/libnvrtc.so*", recursive=True))]
    for path in named + found + ["libnvrtc.so"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    sys.exit("no libnvrtc: install nvidia-cuda-nvrtc beside this Python, or set NVRTC")


def compile_one(lib, path, options):
    """(log, image) where it compiled, (log, None) where not."""
    headers = sorted(glob.glob(os.path.join(HERE, "*.cuh")))
    bodies = [open(h, "rb").read() for h in headers]
    names = [os.path.basename(h).encode() for h in headers]
    program = ctypes.c_void_p()
    array = ctypes.c_char_p * len(headers)
    source = open(path, "rb").read()
    rc = lib.nvrtcCreateProgram(
        ctypes.byref(program), source, os.path.basename(path).encode(), len(headers), array(*bodies), array(*names)
    )
    assert rc == 0, rc
    given = [o.encode() for o in ["--std=c++17", *options]]
    rc = lib.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    image = None
    if rc == 0:
        lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetCUBIN(program, buffer)
        image = buffer.raw
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode().strip(), image


def main():
    arguments = sys.argv[1:]
    quick, resources = "--quick" in arguments, "--resources" in arguments
    files = [os.path.abspath(a) for a in arguments if not a.startswith("-")] or sorted(glob.glob(HERE + "/*.cu"))
    lib = library()
    failed = 0
    for path in files:
        worked = 0
        for arch in ["sm_75", "sm_90", "sm_90a"] if quick else ARCHITECTURES:
            # Attention reads no weights, and takes long.
            alone = quick or os.path.basename(path).startswith("attention")
            for act, more in TYPES[:3] if alone else TYPES:
                options = [f"--gpu-architecture={arch}", f"-DACT={act}", *more]
                if resources:
                    options.append("--ptxas-options=-v")
                log, image = compile_one(lib, path, options)
                if resources and image:
                    for name, used in re.findall(r"Compiling entry function '(\w+)'.*?(Used .*?)$", log, re.S | re.M):
                        spill = re.search(r"'%s'.*?(\d+) bytes stack frame, (\d+) bytes spill" % name, log, re.S)
                        print(arch, act, name, used, "spill", spill.groups() if spill else "")
                elif log:
                    print(f"{os.path.basename(path)} {' '.join(options)}\n{log}")
                worked += image is not None
                failed += image is None
        print(f"{os.path.basename(path)}: {worked} modules")
    print("all compile" if not failed else f"{failed} do not compile")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
