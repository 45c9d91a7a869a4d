"""What is on disk: run folders, checkpoints and the files beside them. Knows no method."""
