#!/usr/bin/env bash
# Parity with tiktoken, from the published package: by hand, as it needs node, npm and a network.
#
#   tests/text/parity.sh [--write] [SCRATCH] [TEST_TEXT]
#
# Installs npm tiktoken 1.0.22 in SCRATCH (a new temporary directory unless given), compares what it gives with
# tests/text/parity_ids.json (--write: replaces that file), then runs the corpus under o200k_base's ranks with TEST_TEXT
# (build/tests/text/test_text). About 5 minutes. SCRATCH/o200k is then a directory for K3_O200K_FILES.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mode=--check
if [ "${1:-}" = --write ]; then
    mode=--write
    shift
fi
scratch=${1:-$(mktemp -d "${TMPDIR:-/tmp}/k3-parity.XXXXXX")}
program=${2:-$root/build/tests/text/test_text}
mkdir -p "$scratch"
cd "$scratch"
[ -d node_modules/tiktoken ] || npm install --no-audit --no-fund tiktoken@1.0.22
node "$root/tests/text/parity.mjs" "$root/tests" "$mode"
K3_O200K_FILES=$scratch/o200k "$root/tests/text/with_files.py" "$program" o200k K3_O200K_FILES
echo "files in $scratch/o200k"
