"""Models for `experiment.module=…`: a good one, and others that answer never the same, hang or crash."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))


def fickle() -> nn.Module:
    class Fickle(nn.Module):
        def forward(self, images):
            return torch.rand(len(images), 4, dtype=images.dtype)

    return Fickle()


def hungry(what) -> nn.Module:
    raise AssertionError(what)


def hangs() -> nn.Module:
    time.sleep(3600)
    raise AssertionError


def hangs_while_marked() -> nn.Module:
    """As long as there is a file "hang" in the working folder."""
    while Path("hang").exists():
        time.sleep(0.1)
    return linear()


def crashes() -> nn.Module:
    os.abort()
