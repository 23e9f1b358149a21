"""``python -m scopelog.cli``: the command without its script."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
