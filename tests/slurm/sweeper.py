"""A task of a sweep, without torch: `sweeper.py WHAT INDEX`, where WHAT says how it ends."""

import os
import sys
import time
from pathlib import Path

what, index = sys.argv[1:3]
started = Path(os.environ["ECHELON_RUN_DIR"], "started")
begun_before = started.exists()
started.write_text(index)

if what == "crash":
    raise ValueError(f"task {index} crashes")
if what in ("hang", "limit"):
    time.sleep(600)
if what == "lose" and not begun_before:
    time.sleep(600)  # until its node is killed; the next attempt completes
