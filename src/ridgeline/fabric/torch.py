"""Importing this module registers the back end "ridgeline" of torch.distributed:

import ridgeline.fabric.torch
torch.distributed.init_process_group("ridgeline")
"""

from __future__ import annotations

from ridgeline.fabric.torch_backend import RidgelineGroup as RidgelineGroup
from ridgeline.fabric.torch_backend import register_torch_backend

register_torch_backend()
