"""Builds a kernel file for the CPU and calls its kernels with numpy arrays; see cuda.hpp."""

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.dirname(HERE)


class Drop(ctypes.Structure):
    _fields_ = [
        ("sample", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("place", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("steps", ctypes.c_uint32),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("update", ctypes.c_uint64),
        ("first_micro", ctypes.c_uint32),
        ("stopped", ctypes.c_uint32),
        ("loss_sum", ctypes.c_double),
        ("squares", ctypes.c_double),
        ("mean", ctypes.c_double),
        ("clip_norm", ctypes.c_double),
        ("norm", ctypes.c_double),
        ("grad_scale", ctypes.c_float),
        ("loss_scale", ctypes.c_float),
        ("numbers", ctypes.c_float * 16),
        ("rates", ctypes.c_double * 8),
        ("judged", ctypes.c_uint32),
        ("unused", ctypes.c_uint32 * 13),
    ]


class Param(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in "master weight grad state0 state1 state2 scratch".split()] + [
        ("elements", ctypes.c_uint64),
        ("rows", ctypes.c_uint32),
        ("cols", ctypes.c_uint32),
        ("key", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


POINTERS = "q k v out lse dout dq dk dv bias dbias_partial dbias dots q_starts k_starts documents sample offset".split()
WORDS = "q_stride k_stride v_stride dq_stride dk_stride dv_stride heads kv_heads d scale causal window max_queries max_keys place \
threshold drop_scale tile".split()


class Attention(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in POINTERS] + [
        (n, ctypes.c_float if n in ("scale", "drop_scale") else ctypes.c_uint32) for n in WORDS
    ]


class Cached(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in "q prompt starts cache origin position bias out rows".split()] + [
        (n, ctypes.c_float if n == "scale" else ctypes.c_uint32)
        for n in "q_stride prompt_stride beams max_len heads kv_heads d scale causal window max_queries max_keys".split()
    ]


def words(name, pointers, numbers):
    """A structure of pointers, then words of 32 bits; those that begin with f_ are floats."""
    kind = lambda n: ctypes.c_float if n.startswith("f_") else ctypes.c_uint32
    fields = [(n, ctypes.c_void_p) for n in pointers.split()] + [(n.removeprefix("f_"), kind(n)) for n in numbers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Lstm = words("Lstm", "gates weight input_bias state_bias cells start end out counters", "stride samples steps from_ count hidden reverse begins group groups")
LstmBack = words(
    "LstmBack", "gates weight cells start dout carry shares counters", "stride samples steps from_ count hidden reverse begins group groups last zero"
)
Pool = words("Pool", "x stats weight bias", "steps width pool gelu")
Running = words("Running", "mean variance batches next_mean next_variance next_batches", "")
Answer = words("Answer", "out grad", "outputs zero")
Terms = words("Terms", "", "f_label_smoothing f_focal_gamma f_classes f_confidence f_values class_weights")

STRUCTS = {
    kind.__name__: kind for kind in (Cached, Drop, Attention, Lstm, LstmBack, Pool, Running, Answer, Terms)
}
SCALARS = {"u32": ctypes.c_uint32, "int": ctypes.c_int32, "u64": ctypes.c_uint64, "float": ctypes.c_float}


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def store(x, kind):
    """An array as the kernel sees it, beginning at a multiple of 64 bytes."""
    x = np.asarray(x)
    if x.dtype.kind == "f" and kind == "bf16":
        x = to_bf16(x)
    elif x.dtype.kind == "f" and kind == "f16":
        x = x.astype(np.float16).view(np.uint16)
    elif x.dtype.kind == "f" and kind == "float":
        x = x.astype(np.float32)
    raw = np.zeros(x.nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    out = raw[skip : skip + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def read(x, kind):
    if kind == "bf16":
        return from_bf16(x)
    return x.view(np.float16).astype(np.float32) if kind == "f16" else x


class Module:
    def __init__(self, file, act="float", **more):
        text = open(os.path.join(KERNELS, file)).read()
        # A header with a kernel or shared memory in it is taken in, so that the lines below find it.
        text = re.sub(r'#include "((?:attention_mma|adamw|lstm)\.cuh)"', lambda m: open(os.path.join(KERNELS, m[1])).read(), text)
        shared = r"extern __shared__ (?:__align__\(\d+\) )?(\w+) shared\[\];"
        text = re.sub(shared, r"#define shared ((\1 *)emulated::here)", text)
        # Whose blocks wait for each other runs them together.
        launch = "launch_together" if "emulated::yield" in text else "launch"
        self.signatures, wrappers = {}, ""
        for name, given in re.findall(r"^KERNEL (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)", text, re.M):
            parts = [re.sub(r"\s+", " ", p).strip() for p in given.split(",")]
            kinds, declared = [], []
            for i, part in enumerate(parts):
                plain = part.replace("const ", "")
                kinds.append(ctypes.c_void_p if "*" in part else {**SCALARS, **STRUCTS}[plain.split()[0]])
                declared.append((plain.split()[0] + " *" if "*" in part else plain.split()[0]) + f" p{i}")
            self.signatures[name] = kinds
            names = ", ".join(f"p{i}" for i in range(len(parts)))
            wrappers += f'extern "C" void run_{name}(u32 gx, u32 gy, u32 threads, u32 smem, {", ".join(declared)}) {{ '
            wrappers += f"emulated::{launch}(gx, gy, threads, smem, [=] {{ {name}({names}); }}); }}\n"
        options = [f"-DACT={act}"] + [f"-D{k}={v}" for k, v in more.items()]
        headers = "".join(open(os.path.join(d, f)).read() for d in (KERNELS, HERE) for f in sorted(os.listdir(d)) if f.endswith(("hpp", "cuh")))
        stamp = hashlib.sha256((text + headers + wrappers + str(options)).encode()).hexdigest()[:16]
        folder = os.path.join(tempfile.gettempdir(), "plimsoll-emulated")
        os.makedirs(folder, exist_ok=True)
        library = os.path.join(folder, stamp + ".so")
        if not os.path.exists(library):
            source = os.path.join(folder, stamp + ".cpp")
            with open(source, "w") as out:
                out.write('#include "cuda.hpp"\n' + text + wrappers)
            subprocess.run(
                ["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-fpermissive", "-w", "-shared", "-fPIC", "-I", HERE, "-I", KERNELS]
                + options + [source, "-o", f"{library}.{os.getpid()}"],
                check=True,
            )
            os.replace(f"{library}.{os.getpid()}", library)
        self.library = ctypes.CDLL(library)

    def run(self, kernel, grid, *arguments, block=256, smem=0):
        grid = grid if isinstance(grid, tuple) else (grid, 1)
        kinds = self.signatures[kernel]
        assert len(kinds) == len(arguments), (kernel, len(kinds), len(arguments))
        given = []
        for kind, value in zip(kinds, arguments):
            if kind is ctypes.c_void_p:
                if value is None:
                    given.append(ctypes.c_void_p(0))
                elif isinstance(value, np.ndarray):
                    given.append(ctypes.c_void_p(value.ctypes.data))
                else:
                    given.append(ctypes.cast(ctypes.byref(value), ctypes.c_void_p))
            elif isinstance(value, ctypes.Structure):
                given.append(value)
            else:
                given.append(kind(value))
        getattr(self.library, "run_" + kernel)(
            ctypes.c_uint32(grid[0]), ctypes.c_uint32(grid[1]), ctypes.c_uint32(block), ctypes.c_uint32(smem), *given
        )
