"""What a client is told when it gets no ranking."""

from ricci_gpu.errors import RicciError


class Refusal(RicciError):
    """A request that is not answered.

    Args:
        status: the HTTP status; 422 stands for a request that breaks a rule, and each dialect says
            what its own clients expect for it.
        retry_after: seconds, when it is worth trying again.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def invalid(message: str) -> Refusal:
    """The request breaks a rule."""
    return Refusal(422, message)
