"""Time as a collaborator: everything that measures takes a `Clock`, so that tests can run on a virtual one."""

from collections.abc import Callable

Clock = Callable[[], float]
