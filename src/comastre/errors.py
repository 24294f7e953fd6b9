"""Errors that a user can cause and mend."""


class UserError(Exception):
    """One sentence that names what is wrong, where, and how to fix it; shown without a traceback."""
