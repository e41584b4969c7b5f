"""The image of the guest: a Debian kernel, and an initramfs with this Python and this checkout's `ridgeline`.

    python -m tests.machine.guest.image      # fetch and pack, without booting

The kernel package is downloaded and unpacked under build/guest, never installed: a host that only runs tests
should not get a second kernel into /boot. The initramfs is packed for each run (about a second), so it cannot be
stale.
"""

from __future__ import annotations

import compileall
import lzma
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .srat import srat

ROOT = Path(__file__).parents[3]
CACHE = ROOT / "build" / "guest"
FOLDER = Path(__file__).parent

NODES, CPUS, MEMORY = 2, 4, 1 << 30  # of the guest in total, divided evenly among the nodes

# Debian's cloud kernels are a third of the size and have all drivers for QEMU.
KERNELS = {"aarch64": "linux-image-cloud-arm64", "x86_64": "linux-image-cloud-amd64"}
DRIVERS = ("virtio_pci", "virtio_net")
UNUSED = {
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
}


class Unavailable(Exception):
    """The guest cannot be booted on this host; `str(error)` names what is missing and the remedy."""


def kernel(arch: str = platform.machine()) -> Path:
    """The folder of an unpacked kernel package, from the cache or by `apt-get download`."""
    if arch not in KERNELS:
        raise Unavailable(f"there is no guest for the architecture {arch!r}; there are: {', '.join(KERNELS)}")
    unpacked = CACHE / f"kernel-{arch}"
    if unpacked.is_dir():
        return unpacked
    if not shutil.which("apt-get"):
        raise Unavailable(f"no kernel in {unpacked} and no apt-get to fetch {KERNELS[arch]} with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        try:
            meta = _output("apt-cache", "show", "--no-all-versions", KERNELS[arch])
            (package,) = re.findall(r"^Depends: (linux-image-\S+)", meta, re.MULTILINE)
            _output("apt-get", "download", package, cwd=scratch)
        except (Unavailable, ValueError) as error:
            raise Unavailable(f"no kernel for the guest; try: apt-get update ({error})") from error
        (deb,) = Path(scratch).glob("*.deb")
        _output("dpkg-deb", "-x", str(deb), f"{scratch}/unpacked")
        Path(scratch, "unpacked").rename(unpacked)
    return unpacked


def vmlinuz(unpacked: Path) -> Path:
    return next(unpacked.glob("boot/vmlinuz-*"))


def initramfs(unpacked: Path, target: Path, arch: str = platform.machine()) -> None:
    """Packs /init, its probe, the drivers, Python and `ridgeline` into one newc archive at `target`.

    Not compressed: under TCG the guest reads 30 MB sooner than it inflates them.
    """
    files: dict[str, tuple[int, bytes, float]] = {}

    def put(name: str | Path, data: bytes, mode: int = 0o644, mtime: float = 0) -> None:
        files[str(name).lstrip("/")] = (stat.S_IFREG | mode, data, mtime)

    def put_file(path: Path, name: str | Path | None = None) -> None:
        info = path.stat()  # with the time: Python uses a .pyc only if its source has the same time
        put(name or path, path.read_bytes(), stat.S_IMODE(info.st_mode), info.st_mtime)

    if arch == "aarch64":
        put("kernel/firmware/acpi/srat.aml", srat(NODES, CPUS, MEMORY))
    python = Path(sys.executable).resolve()
    put("init", f"#!{python} -BS\n".encode() + (FOLDER / "init.py").read_bytes(), 0o755)
    for name in ("probe.py", "pipeline.py"):
        put_file(FOLDER / name, f"guest/{name}")
    compileall.compile_dir(ROOT / "src" / "ridgeline", quiet=2)  # fast on the host, slow under TCG
    for source in sorted((ROOT / "src" / "ridgeline").rglob("*.py*")):
        if source.suffix in (".py", ".pyc") and ".opt-" not in source.name:
            put_file(source, Path("guest") / source.relative_to(ROOT / "src"))
    for place, (name, data) in enumerate(_drivers(unpacked)):
        put(f"drivers/{place:02}-{name}.ko", data)

    binaries = [python]
    for path in _standard_library():
        put_file(path)
        if path.suffix == ".so":
            binaries.append(path)
    for path in (python, *_shared_libraries(binaries), Path("/etc/ld.so.cache")):
        if path.exists():
            put_file(path)
    target.write_bytes(b"".join(_newc(files)))


def _output(*command: str, cwd: str | None = None) -> str:
    process = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if process.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {process.stderr.strip()}")
    return process.stdout


def _standard_library() -> Iterator[Path]:
    base = Path(sysconfig.get_path("stdlib"))
    for top in {base, Path(sysconfig.get_config_var("DESTSHARED") or base / "lib-dynload")}:
        for folder, subfolders, names in os.walk(top):
            subfolders[:] = sorted(s for s in subfolders if s not in UNUSED and not s.startswith("config-"))
            for name in sorted(names):
                # Python never reads a .pyc of another optimisation level.
                if name.endswith((".py", ".so", ".pyc")) and ".opt-" not in name and "_tkinter" not in name:
                    yield Path(folder, name)


def _shared_libraries(binaries: list[Path]) -> list[Path]:
    """The shared libraries of `binaries`, and the loader itself."""
    output = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True).stdout
    paths = re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", output, re.MULTILINE)
    return [Path(p) for p in sorted(set(paths))]


def _drivers(unpacked: Path) -> list[tuple[str, bytes]]:
    """The modules of DRIVERS, each after the modules it depends on, ready to be inserted in this order.

    The dependencies are read from the modules: modules.dep is written at installation only.
    """
    paths = {p.name.split(".")[0].replace("-", "_"): p for p in unpacked.glob("**/lib/modules/**/*.ko*")}
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered or name not in paths:  # a missing module is built into the kernel
            return
        data = paths[name].read_bytes()
        if paths[name].suffix == ".xz":
            data = lzma.decompress(data)
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in filter(None, depends[1].decode().split(",") if depends else ()):
            add(needed.replace("-", "_"))
        ordered[name] = data

    for name in DRIVERS:
        add(name)
    return list(ordered.items())


def _newc(files: dict[str, tuple[int, bytes, float]]) -> Iterator[bytes]:
    """The cpio format of initramfs (Documentation/driver-api/early-userspace/buffer-format.rst)."""
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, stat.S_IFDIR | 0o755, b"", 0.0) for name in sorted(folders)]
    entries += [(name, *files[name]) for name in files]
    entries.append(("TRAILER!!!", 0, b"", 0.0))
    for inode, (name, mode, data, mtime) in enumerate(entries, 1):
        label = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, int(mtime), len(data), 0, 0, 0, 0, len(label), 0)
        head = b"070701" + b"".join(b"%08x" % f for f in fields) + label
        yield head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


if __name__ == "__main__":
    initramfs(kernel(), CACHE / "initramfs")
    print(f"{vmlinuz(kernel())}\n{CACHE / 'initramfs'}: {(CACHE / 'initramfs').stat().st_size / 1e6:.0f} MB")
