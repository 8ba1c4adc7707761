"""`echelon sandbox`: a real Slurm cluster on one machine, for rehearsals and tests.

config.py      the cluster's size and the text of its configuration files (pure)
layout.py      paths of all its files
lifecycle.py   starting and stopping a sandbox
cluster.py     a running sandbox: run commands, read node states, inject and repair faults
hosts.py       the interface of a simulated host
  namespaces.py  hosts in namespaces of their own (needs root)
  loopback.py    hosts that share this machine (any user)
processes.py   finding and ending all processes of a sandbox
accounting.py  MariaDB and slurmdbd (--accounting)
ssh.py         sshd on the login host (--ssh)
"""
