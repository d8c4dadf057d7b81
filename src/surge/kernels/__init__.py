"""Triton kernels for the layers where the stock ones are far from the memory's speed."""
