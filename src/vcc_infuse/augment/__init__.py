"""Weak and strong augmentation on whole batches."""
