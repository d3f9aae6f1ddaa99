"""Tensors on devices, and in files."""
