"""Rigs on real file systems: power cuts (P), a strict FUSE file system (F), a block log under a loop device (B).

The engine runs in child processes with the operating system's own calls; the reference model goes with them.
"""
