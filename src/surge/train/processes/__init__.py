"""Runs beside each other: in a process of their own, in one process, on one GPU."""
