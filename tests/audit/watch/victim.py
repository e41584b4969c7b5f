"""Watchers to kill: each line on stdin ("score" or "record") forks one, which follows a file until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path[:0] = [str(Path(__file__).resolve().parents[3])]
    log, file = Path(sys.argv[1]), Path(sys.argv[2])
    from tests.audit.watch.watching import jsonl, watch

    from ridgeline.audit.ledger.checkpoint import new_signer
    from ridgeline.audit.watch import watcher

    watcher._TICK_S = 0.005  # most victims live for less than a second, and the tick is a thread of its own
    new_signer("x").sign("")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                score = line.strip() == "score"
                watch(log, jsonl(file, follow=True, chunk=2_000), batch=16, wait_ms=1.0, save_s=0.02, score=score)
                status = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(status)
        os.write(sys.stdout.fileno(), f"{child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(sys.stdout.fileno(), f"{status}\n".encode())


if __name__ == "__main__":
    main()
