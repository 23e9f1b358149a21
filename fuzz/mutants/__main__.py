from __future__ import annotations

import sys

from fuzz.mutants.run import main

sys.exit(main())
