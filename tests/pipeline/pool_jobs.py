"""What the pool's tests have computed: each is a factory(device) -> fn, or gives one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


def doubled(device):
    return lambda chunk: chunk * 2


def echoed(device):
    return lambda chunk: chunk


def measured(device):
    """Loops of different length, so that workers overtake each other."""

    def fn(chunk):
        time.sleep(chunk[1])
        return chunk[0], os.getpid()

    return fn


def placed(device):
    at_factory = os.sched_getaffinity(0)
    return lambda chunk: (device, sorted(at_factory), sorted(os.sched_getaffinity(0)))


def scribbler(device):
    """Writes into its chunk, then dies the first time."""

    def fn(chunk):
        before = chunk["array"].copy()
        chunk["array"][:] = -1
        mark = Path(chunk["mark"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return before

    return fn


class Deadly:
    """Dies of the chunks that say how; `marks` makes each of them deadly only once."""

    def __init__(self, marks=None):
        self.marks = marks

    def __call__(self, device):
        return self.fn

    def fn(self, chunk):
        index, how = chunk
        if how:
            mark = Path(self.marks, str(index)) if self.marks else None
            if mark is None or not mark.exists():
                if mark:
                    mark.touch()
                die(how)
        return index * 10


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        os._exit(3)
    elif how == "hang":
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock
    elif how == "fork":
        if os.fork() == 0:  # a child that holds the line open
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)


def failing(device):
    def fn(chunk):
        if chunk == 3:
            raise KeyError("no such word")
        if chunk == 5:
            return lambda: None  # cannot be sent home
        if chunk == 7:
            sys.exit("enough")
        return chunk

    return fn


def no_factory(device):
    raise OSError(f"no model for {device}")


def stillborn(device):
    os.kill(os.getpid(), signal.SIGKILL)


def printing(device):
    def fn(chunk):
        print("noise", flush=True)
        return np.full(1000, chunk)

    return fn
