"""Where examples come from, which labels are shown, and how they are augmented."""
