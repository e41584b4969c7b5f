"""Models for `experiment.module=…`: one that works, and others with random output, a hang or a crash."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))


def random_output() -> nn.Module:
    class RandomOutput(nn.Module):
        def forward(self, images):
            return torch.rand(len(images), 4, dtype=images.dtype)

    return RandomOutput()


def needs_argument(what) -> nn.Module:
    raise AssertionError(what)


def hangs() -> nn.Module:
    time.sleep(3600)
    raise AssertionError


def hangs_while_file_exists() -> nn.Module:
    """Hang as long as the working folder has a file "hang"."""
    while Path("hang").exists():
        time.sleep(0.1)
    return linear()


def crashes() -> nn.Module:
    os.abort()
