"""The charts of the report, one subject per file."""
