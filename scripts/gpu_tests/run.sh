#!/bin/sh
# Run every test that needs a GPU, on a machine that needs only torch, triton, transformers and pytest. Arguments go to pytest.
# Modules without such a test are not even imported, since they may need other packages.
cd "$(dirname "$0")/../.." || exit 1
modules=$(grep -rl --include='test_*.py' 'mark\.gpu' tests)
PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider -W ignore -m gpu \
    $modules "$@"
