"""Shared machinery: keys, chunks, devices, stored stages, progress and argument checks."""
