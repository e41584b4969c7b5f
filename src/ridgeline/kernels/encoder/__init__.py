"""Encoder kernels."""
