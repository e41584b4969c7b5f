"""The watcher: events from sources into the ledger, then scored, and every score recorded beside what it speaks of."""
