"""Work done one step ahead, in a thread."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items in the same order; the next is made while one is used, and never more.

    An error of ``items`` is raised where its item would have come. Closing the generator waits for
    the item that is being made.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]  # `end` does not come here
