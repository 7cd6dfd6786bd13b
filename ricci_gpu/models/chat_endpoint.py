"""Asking a language model behind an OpenAI-compatible endpoint (``/chat/completions``)."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ricci_gpu.errors import InputError, missing

logger = logging.getLogger(__name__)

Message = dict[str, str]  # "role" and "content"

RETRIED = (408, 409, 425, 429)  # and all of 5xx: the server may do better later
LONGEST_PAUSE_S = 30.0


class ChatEndpoint:
    """A chat model behind an address. Answers are asked for at temperature 0.

    The key in the environment variable OPENAI_API_KEY is sent where there is one.

    Args:
        model: name that the endpoint knows.
        base_url: up to and with the version, such as ``http://localhost:8000/v1``.
        concurrency: requests at once.
        timeout: seconds per request.
        retries: of a request that fails on the way or is turned away for now.
        pause: seconds before the first retry; doubled for each one after it.
        transport: an `httpx` transport in place of the network.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        concurrency: int = 8,
        timeout: float = 60.0,
        retries: int = 3,
        pause: float = 1.0,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise missing("httpx", "asking a language model by its address", "llm") from error
        self.model, self.base_url = model, base_url.rstrip("/")
        self._concurrency, self._retries, self._pause = concurrency, retries, pause
        key = os.environ.get("OPENAI_API_KEY")
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout,
            transport=transport,
            limits=httpx.Limits(max_connections=concurrency),
        )
        self._failures: tuple[type[Exception], ...] = (httpx.TransportError,)

    def ask(
        self,
        conversations: Sequence[Sequence[Message]],
        max_tokens: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[str | None]:
        """The answer to each conversation, in order; None where the endpoint gave none.

        Args:
            max_tokens: longest answer.
            progress: called with the number of conversations done and their total.

        Raises:
            InputError: the endpoint refuses the request as such (address, key, model), or gave no
                answer to any of them.
        """
        answers: list[str | None] = [None] * len(conversations)
        trouble = ""
        with ThreadPoolExecutor(self._concurrency) as pool:
            place_of = {
                pool.submit(self._ask, conversation, max_tokens): place
                for place, conversation in enumerate(conversations)
            }
            try:
                for done, future in enumerate(as_completed(place_of), start=1):
                    answer, complaint = future.result()
                    answers[place_of[future]] = answer
                    trouble = complaint or trouble
                    if progress is not None:
                        progress(done, len(conversations))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        lost = sum(answer is None for answer in answers)
        if lost and lost == len(answers):
            raise InputError(
                f"{self.base_url} answered none of {lost} requests; the last trouble: {trouble}. "
                "Check that the endpoint runs, and raise `timeout` or `retries`."
            )
        if lost:
            logger.warning("%d of %d requests got no answer: %s", lost, len(answers), trouble)
        return answers

    def _ask(
        self, conversation: Sequence[Message], max_tokens: int
    ) -> tuple[str | None, str | None]:
        """The answer, or why there is none."""
        request = {
            "model": self.model,
            "messages": list(conversation),
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        trouble = ""
        for attempt in range(self._retries + 1):
            pause = self._pause * 2**attempt
            try:
                response = self._client.post(f"{self.base_url}/chat/completions", json=request)
            except self._failures as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if response.status_code == 200:
                    return _content(response)
                trouble = f"status {response.status_code}: {response.text[:200]}"
                if response.status_code < 500 and response.status_code not in RETRIED:
                    raise InputError(
                        f"{self.base_url} refuses the request ({trouble}). Check `rerank.base_url`,"
                        " `rerank.model` and the key in OPENAI_API_KEY."
                    )
                pause = _seconds(response.headers.get("retry-after"), pause)
            if attempt < self._retries:
                time.sleep(min(pause, LONGEST_PAUSE_S))
        return None, trouble


def _content(response: Any) -> tuple[str | None, str | None]:
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return None, f"an answer without content ({type(error).__name__})"
    return (content, None) if isinstance(content, str) else (None, "an answer without content")


def _seconds(header: str | None, otherwise: float) -> float:
    try:
        return max(float(header or ""), 0.0)
    except ValueError:
        return otherwise
