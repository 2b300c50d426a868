#!/bin/sh
# Every test that needs a GPU, on a machine with no more than torch, triton, transformers and pytest. Arguments go to pytest.
cd "$(dirname "$0")/../.." || exit 1
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider -W ignore -m gpu \
    tests/kernels tests/models tests/sampling tests/backends "$@"
