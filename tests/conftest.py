"""Settings that every test shares.

Tiny models gain nothing from a second thread, and lose a thousandfold when torch's threads wait for each other on a busy machine: one
thread, in the servers that tests start too. An explicit OMP_NUM_THREADS wins.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
