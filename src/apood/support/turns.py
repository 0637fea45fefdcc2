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
        self._taken = False

    def __enter__(self) -> Self:
        with self._state:
            if not self._taken:
                self._taken = True
                return self
            turn = threading.Lock()
            turn.acquire()
            self._line.append(turn)
        try:
            turn.acquire()  # until the thread before releases it
        except BaseException:  # Ctrl-C while waiting
            with self._state:
                waiting = turn in self._line
                if waiting:
                    self._line.remove(turn)
            if not waiting:  # the turn has come already, and would be lost
                self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._state:
            if self._line:
                self._line.popleft().release()  # it stays taken
            else:
                self._taken = False
