"""Texts that end a continuation, cut exactly where they begin."""

from collections.abc import Sequence


class StopTexts:
    """A continuation as it comes, up to the first stop text.

    A token may hold the end of a stop text and more, and a stop text may come in several tokens.
    So what could still become a stop text is held back until it is clear.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._held = b""
        self.found: str | None = None

    def feed(self, data: bytes) -> bytes:
        """Add the bytes of a token.

        Arguments:
            data: what came next; nothing may come once a stop text was found.

        Returns:
            the bytes that are certain to be before any stop text. `found` is the stop text, if
            one is complete now.
        """
        whole = self._held + data
        places = [(whole.find(stop), -len(stop), stop) for stop in self._stops if stop in whole]
        if places:
            place, _, stop = min(places)
            self._held, self.found = b"", stop.decode()
            return whole[:place]
        held = max((_overlap(whole, stop) for stop in self._stops), default=0)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def finish(self) -> bytes:
        """End the text."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, stop: bytes) -> int:
    """The most bytes at the end of a text that a stop text begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
