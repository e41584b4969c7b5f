"""Triton: the GPU's hot loops, and nothing else. Importing this package imports neither triton nor torch."""
