"""A page on which a person labels photos while the model learns from them."""
