"""What can be seen of a run: where its time went."""
