"""The command line: words in, objects out; one file per command."""
