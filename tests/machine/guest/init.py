"""The first process of the guest: mounts, drivers, the probe, its report on the console, power-off.

The image puts it at /init, with a first line that names the interpreter; nothing else runs in the guest.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import traceback
from pathlib import Path

FINIT_MODULE = {"aarch64": 273, "x86_64": 313}
POWER_OFF = 0x4321FEDC


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, folder in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")):
        os.makedirs(folder, exist_ok=True)
        libc.mount(kind.encode(), folder.encode(), kind.encode(), 0, None)
    for driver in sorted(Path("/drivers").iterdir()):
        with driver.open("rb") as file:
            if libc.syscall(FINIT_MODULE[platform.machine()], file.fileno(), b"", 0):
                print(f"{driver.name}: {os.strerror(ctypes.get_errno())}")

    sys.path.insert(0, "/guest")
    from probe import observe

    report = json.dumps(observe())
    Path("/proc/sys/kernel/printk").write_text("1\n")  # no kernel messages inside the report
    print(f"<<<ridgeline report\n{report}\nridgeline report>>>", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os.sync()
    ctypes.CDLL(None).reboot(POWER_OFF)
