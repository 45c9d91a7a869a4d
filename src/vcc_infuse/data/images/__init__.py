"""Image files: finding, decoding and converting them."""
