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
if what == "hang":
    time.sleep(600)
# A lost task is killed with its node, and its next attempt completes; the limit ends the other.
while what == "limit" or (what == "lose" and not begun_before):
    sum(range(1_000_000))
    time.sleep(0.05)
