"""How many threads one text is worth.

Sixteen threads take longer to meet than a norm over thirty tokens takes: in bfloat16, where the products are quick,
one text of 28 tokens took 3.8 ms with sixteen threads and 2.1 with four (benchmarks/records/h200-host-embed-one.txt).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

TOKENS = 8  # per thread

_lock = threading.Lock()
_users = 0
_usual = 0


@contextmanager
def few_threads(tokens: int) -> Iterator[None]:
    """torch's threads cut to what so many tokens are worth, for the time being.

    The number belongs to the process, so it is restored when the last of several callers leaves.
    """
    import torch

    global _users, _usual
    wanted = -(-tokens // TOKENS)
    with _lock:
        if not _users:
            _usual = torch.get_num_threads()
        if wanted >= _usual:
            wanted = 0
        else:
            _users += 1
            torch.set_num_threads(wanted)
    try:
        yield
    finally:
        if wanted:
            with _lock:
                _users -= 1
                if not _users:
                    torch.set_num_threads(_usual)
