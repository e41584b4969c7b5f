"""Factories for the pool tests: factory(device) -> fn."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np


def make_doubler(device):
    return lambda chunk: chunk * 2


def make_echo(device):
    return lambda chunk: chunk


def make_sleeper(device):
    """Sleeps for the time in its chunk, so that workers overtake each other."""

    def fn(chunk):
        time.sleep(chunk[1])
        return chunk[0], os.getpid()

    return fn


def make_cpu_reporter(device):
    at_factory = os.sched_getaffinity(0)
    return lambda chunk: (device, sorted(at_factory), sorted(os.sched_getaffinity(0)))


def make_scribbler(device):
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
    """Ends its process in the way that a chunk names; with `marks` each chunk does so only once."""

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
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter lock
    elif how == "fork":
        if os.fork() == 0:  # a child that keeps the connection open
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)


def make_failing(device):
    def fn(chunk):
        if chunk == 3:
            raise KeyError("no such word")
        if chunk == 5:
            return lambda: None  # cannot be pickled
        if chunk == 7:
            sys.exit("enough")
        return chunk

    return fn


def fail_in_factory(device):
    raise OSError(f"no model for {device}")


def die_in_factory(device):
    os.kill(os.getpid(), signal.SIGKILL)


def make_printer(device):
    def fn(chunk):
        print("noise", flush=True)
        return np.full(1000, chunk)

    return fn
