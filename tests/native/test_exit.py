"""The end of a process while daemon threads run native code.

python -m pytest tests/native/test_exit.py
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import threading, numpy
from ridgeline.native import dot_floats
values, inside = numpy.ones((250_000, 64), numpy.float32), threading.Barrier(4)
def work():
    inside.wait()
    while True:
        dot_floats(values[0], values, numpy.empty(len(values), numpy.float32))
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
inside.wait()
print("the last line")
sys.exit(7)
"""


def test_daemon_threads_in_native_code_do_not_change_how_a_process_ends():
    done = subprocess.run([sys.executable, "-c", f"import sys{SCRIPT}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, "the last line\n", "")
