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
# A lost task is killed with its node, and the next attempt completes; the time limit ends the other.
while what == "limit" or (what == "lose" and not begun_before):
    print(sum(range(100_000)), flush=True)
    time.sleep(0.05)
