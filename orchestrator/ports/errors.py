"""The errors that every port may raise."""


class PortError(Exception):
    """A call to an outside system failed. The text says which, and never contains a secret."""


class Unavailable(PortError):
    """No clear answer: a timeout, a broken connection, a 5xx, a reply that cannot be read. It may have been done."""
