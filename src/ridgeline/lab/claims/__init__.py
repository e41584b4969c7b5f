"""Are published numbers true? A report held against itself, and our own numbers held against their records."""

from ridgeline.lab.claims.check import Checked, check_file, check_text
from ridgeline.lab.claims.finding import Finding

__all__ = ["Checked", "Finding", "check_file", "check_text"]
