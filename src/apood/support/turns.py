"""A lock that threads get in the order in which they ask for it."""

import threading
from collections import deque
from typing import Self

__all__ = ["Turns"]


class Turns:
    """A lock for long work that is done in pieces; used in a `with` block per piece.

    A plain lock mostly goes back to the thread that has just released it, so others would wait for all of its pieces.
    Here a thread that asks for its next turn goes to the end of the line.
    """

    def __init__(self) -> None:
        self._state = threading.Lock()
        self._line: deque[threading.Lock] = deque()
        self._holder: threading.Lock | None = None

    def __enter__(self) -> Self:
        turn = threading.Lock()
        turn.acquire()
        try:
            with self._state:
                if self._holder is None:
                    self._holder = turn
                    return self
                self._line.append(turn)
            turn.acquire()  # until the thread before releases it
        except BaseException:  # Ctrl-C, which may come at any of these lines
            with self._state:
                if turn in self._line:
                    self._line.remove(turn)
                came = self._holder is turn
            if came:  # it would be lost
                self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._state:
            self._holder = self._line.popleft() if self._line else None
            if self._holder is not None:
                self._holder.release()
