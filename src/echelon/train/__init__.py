"""The training library: what a script needs besides its model. The only package to import torch."""
