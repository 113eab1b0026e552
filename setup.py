"""Builds the native CPU kernels (octavo/kernels/csrc) into one library that Python loads with ctypes.

Everything else about the package is in pyproject.toml. Where there is no compiler the package still installs: it then
runs on the reference kernels and says so once.
"""

import hashlib
import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

CSRC = Path("octavo/kernels/csrc")

# No -ffast-math and no contraction: what is rounded, and when, is written in the source.
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
]
# The C++ run-time is linked in, hidden and only as far as it is used: few symbols are asked of the machine.
LINK_FLAGS = ["-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-Wl,--gc-sections"]

# tests/native/run.sh asks for one: less optimised, so that a report names the line; the program that loads the library
# brings the sanitizer's run-time.
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
if sanitizer := os.environ.get("OCTAVO_SANITIZER"):
    COMMON_FLAGS += ["-O1", "-g", "-fno-omit-frame-pointer", *SANITIZERS[sanitizer]]

# By which Python knows a library that was built from another header than the one it stands beside.
INTERFACE = hashlib.sha256((CSRC / "octavo_kernels.h").read_bytes()).hexdigest()

# Each instruction set is a file with flags of its own; which one runs is chosen when the library is loaded.
SOURCES: dict[str, list[str]] = {
    "api.cpp": [f'-DOCTAVO_INTERFACE="{INTERFACE}"'],
    "attention_api.cpp": [],
    "ceilings.cpp": [],
    "quantized_api.cpp": [],
    "sampling_api.cpp": [],
    "isa.cpp": [],
    "operation.cpp": [],
    "program.cpp": [],
    "thread_pool.cpp": [],
    "isa/portable.cpp": [],
}
if platform.machine() in ("x86_64", "AMD64"):
    AVX2 = ["-mavx2", "-mfma", "-mf16c"]
    AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
    SOURCES["isa/avx2.cpp"] = AVX2
    # GCC 12 warns about its own header, of operands without a value that are masked out.
    AVX512_HEADER = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
    SOURCES["isa/avx512.cpp"] = [*AVX2, *AVX512, *AVX512_HEADER]
    SOURCES["ceilings.cpp"] = AVX512_HEADER


class BuildNative(build_ext):
    """Compiles each source with its own flags; the file name carries no Python ABI because there is none."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        objects: list[str] = []
        for source, flags in SOURCES.items():
            objects += self.compiler.compile(
                [str(CSRC / source)], output_dir=self.build_temp, extra_postargs=COMMON_FLAGS + flags
            )
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=LINK_FLAGS, target_lang="c++"
        )


class PlatformWheel(bdist_wheel):
    """One wheel a platform serves every Python 3: the library is not tied to a Python ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "octavo.kernels._native",
            sources=[str(CSRC / source) for source in SOURCES],
            depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in CSRC.rglob(pattern)),
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
