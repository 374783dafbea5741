"""Errors that a person can act on."""


class TtkernError(ValueError):
    """Bad input. The message is one line: what is wrong, where, and what would be right.

    The command line prints it and exits with 1; the server answers with a 4xx.
    """
