"""Other people's training loops: their ranks stop together, save, resume and report as ours do.

Each module is imported only by who uses it: nothing else of Echelon needs these frameworks.
"""
