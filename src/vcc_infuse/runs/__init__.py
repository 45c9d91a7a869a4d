"""What a run has on disk: its folder, checkpoints and thumbnails. Nothing here depends on a method."""
