"""`echelon sandbox`: a real Slurm cluster on one machine, to rehearse on.

config.py      what a cluster of ours looks like: pure text of every configuration file
layout.py      where its files are
lifecycle.py   up and down, and the order in which things happen
cluster.py     a sandbox that is up: run in it, look at it, break it, mend it
hosts.py       what is asked of a simulated machine
  namespaces.py  made as root, with everything of their own
  loopback.py    made by anyone, sharing this machine
processes.py   which processes belong to a sandbox, and how to be sure that they are gone
accounting.py  MariaDB and slurmdbd, when asked for
"""
