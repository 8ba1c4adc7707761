"""The format of checkpoints on disk, and other formats. Without torch: commands use it too."""
