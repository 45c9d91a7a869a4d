"""The one exception for a user's mistake: a single line that says what is wrong and what would be right."""


class UserError(ValueError):
    """Shown as one line with exit status 2 on the command line; a plain ValueError in Python."""
