"""Reports on a span of a log that anyone can check without the log."""
