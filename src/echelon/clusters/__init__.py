"""Where runs go. Slurm's words stay in here.

sbatch.py   a request ⇄ #SBATCH lines
styles.py   a request → the whole script, one way of starting ranks each
"""
