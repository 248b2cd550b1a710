#!/bin/sh
# Sets up .venv if needed, then auto-schedules ResNet-18 for about two minutes and runs it on a
# picture (scripts/demo.py says what it prints). A second run continues from the first one's log.
extras=onnx
. "$(dirname "$0")/setup.sh"
exec "$PYTHON" scripts/demo.py "$@"
