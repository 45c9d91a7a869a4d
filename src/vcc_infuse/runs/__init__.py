"""What a run keeps on disk: its folder, checkpoints, fingerprint and thumbnails. Nothing here depends on a method."""
