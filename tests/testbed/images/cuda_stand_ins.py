"""Empty stand-ins for the CUDA libraries that PyPI's torch links to: `python cuda_stand_ins.py SITE_PACKAGES`.

PyPI has no CPU build of torch for x86_64. With these beside its own libraries, torch imports without 2.7 GB of nvidia
packages and finds no CUDA device. For images that run on CPU only. Needs gcc and binutils.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)")
CUDA_SYMBOL = re.compile(r"_*(cu|nccl|pnccl|nv)[A-Za-z0-9_]+$")  # for those that carry no version
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE
TEXTS = ("cudaGetErrorString", "cudaGetErrorName", "ncclGetErrorString", "cudnnGetErrorString")


@dataclass
class Needs:
    """What torch's libraries take from CUDA's: library names, and symbols by library and version."""

    libraries: Counter[str] = field(default_factory=Counter)  # by how many of torch's need them
    versions: dict[str, str] = field(default_factory=dict)  # version: the library that defines it
    symbols: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by version; "" has none
    defined: set[str] = field(default_factory=set)


def output(*command: str) -> list[str]:
    """Lines that a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def read(library: Path, needs: Needs) -> None:
    """Add what one of torch's libraries needs and defines."""
    needs.libraries.update(
        name
        for line in output("readelf", "-dW", str(library))
        if "(NEEDED)" in line and CUDA_LIBRARY.match(name := line.split("[")[1].rstrip("]"))
    )
    file = ""
    for line in output("readelf", "-VW", str(library)):
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif (found := re.search(r"Name: (\S+)", line)) and CUDA_LIBRARY.match(file):
            needs.versions[found[1]] = file
    for line in output("nm", "-D", "--with-symbol-versions", str(library)):
        *_, kind, symbol = line.split()
        name, _, version = symbol.replace("@@", "@").partition("@")
        if kind in "Uvw":
            needs.symbols[version].add(name)
        else:
            needs.defined.add(name)


def source(symbols: set[str]) -> str:
    """C for functions that all say that there is no device."""
    lines = [f"int {name}(void) {{ return {NO_DEVICE}; }}" for name in sorted(symbols - {*TEXTS, "cudaGetDeviceCount"})]
    lines += [f'const char *{name}(void) {{ return "no CUDA here"; }}' for name in TEXTS if name in symbols]
    if "cudaGetDeviceCount" in symbols:
        lines.append(f"int cudaGetDeviceCount(int *count) {{ *count = 0; return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def build(name: str, versions: dict[str, set[str]], folder: Path) -> None:
    """Link one stand-in; `versions`: its symbols by version."""
    with tempfile.TemporaryDirectory() as temporary:
        code, script = Path(temporary) / "code.c", Path(temporary) / "versions"
        code.write_text(source(set().union(*versions.values())))
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(f'{s};' for s in sorted(symbols))} }};\n"
                for version, symbols in versions.items()
                if version
            )
        )
        flags = [f"-Wl,--version-script={script}"] if script.read_text() else []
        target = str(folder / name)
        output("gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", *flags, "-o", target, str(code))


def main() -> None:
    """Write the stand-ins beside torch's libraries, where their search path begins."""
    folder = Path(sys.argv[1]) / "torch" / "lib"
    needs = Needs()
    for library in sorted(folder.glob("*.so*")):
        if not CUDA_LIBRARY.match(library.name):
            read(library, needs)
    by_library: dict[str, dict[str, set[str]]] = {name: {} for name, _ in needs.libraries.most_common()}
    for version, library in needs.versions.items():
        by_library.setdefault(library, {})[version] = needs.symbols[version]
    loose = {name for name in needs.symbols[""] - needs.defined if CUDA_SYMBOL.match(name)}
    unversioned = next(name for name, versions in by_library.items() if not versions)
    by_library[unversioned] = {"": loose}
    for name, versions in by_library.items():
        build(name, versions or {"": set()}, folder)
    sys.stdout.write(f"{len(by_library)} stand-ins, {len(loose)} symbols without a version in {unversioned}\n")


if __name__ == "__main__":
    main()
