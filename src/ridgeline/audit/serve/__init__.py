"""A watched log on a page of its own, and a small API for reading it."""
