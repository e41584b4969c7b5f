"""Group commit: threads that come while one is being made go together into the next.

The first to come leads: it takes all that wait, commits for them, and lets them go. Whoever came meanwhile is led by
the first among them. No thread stands in between, so a single caller pays for no switch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ridgeline.audit.ledger.event import Encoded
from ridgeline.errors import RidgelineError, StoreError


class Ticket:
    """One append on its way; its lock is held until it is done or its turn to lead has come."""

    __slots__ = ("done", "encoded", "error", "first", "lock", "size")

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.lock = threading.Lock()
        self.done, self.first, self.size = False, 0, 0
        self.error: BaseException | None = None


class Group:
    """The queue before one `commit(tickets)`, which is called by one thread at a time."""

    def __init__(self, commit: Callable[[list[Ticket]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._queue: list[Ticket] = []
        self._leading = False
        self.closed = False

    def submit(self, encoded: Encoded) -> Ticket:
        """Wait until `encoded` is committed, together with what else waits; raises what the commit raised."""
        ticket = Ticket(encoded)
        with self._mutex:
            if self.closed:
                raise StoreError("the ledger is closed; open it anew to append.")
            self._queue.append(ticket)
            lead = not self._leading
            self._leading = True
            if not lead:
                ticket.lock.acquire()
        if not lead:
            with ticket.lock:  # let go by the one who leads: done, or our turn
                pass
        if not ticket.done:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket

    def close(self) -> None:
        """Let nobody else in."""
        with self._mutex:
            self.closed = True

    def _lead(self) -> None:
        with self._mutex:
            batch, self._queue = self._queue, []
        try:
            self._commit(batch)
        except RidgelineError as error:
            for ticket in batch:
                ticket.error = error
        except BaseException as error:
            stopped = StoreError(f"the commit these events waited for was stopped ({error!r}); append them again.")
            for ticket in batch:
                ticket.error = stopped
            raise
        finally:
            with self._mutex:
                for ticket in batch:
                    ticket.done = True
                following = self._queue[0] if self._queue else None
                self._leading = following is not None
            for ticket in batch:
                if ticket.lock.locked():
                    ticket.lock.release()
            if following is not None:
                following.lock.release()
