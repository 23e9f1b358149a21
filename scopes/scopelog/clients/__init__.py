"""Thin clients of the store. ``messages``: assistant streams, recorded so that the partial message survives a crash."""
