#!/usr/bin/env bash
# Train with several processes on this machine: samplers and learner each their own.
#
#   launch/local/run.sh --workers 3 --gin configs/demo.gin
#
# --workers N   processes (default: 3, two samplers and a learner)
# --dry_run     print the command instead
#
# All else goes to jigsaw_jax.main. PYTHON=... picks the interpreter; by default the one
# of .venv, which `make test` sets up.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORKERS=3
DRY_RUN=0

refuse() {
  echo "$*" >&2
  exit 2
}

words=()
while (($#)); do
  case $1 in
    --help)
      sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    --dry_run) DRY_RUN=1 ;;
    --workers=*) WORKERS=${1#*=} ;;
    --workers)
      (($# > 1)) || refuse "--workers must have a value"
      WORKERS=$2
      shift
      ;;
    *) words+=("$1") ;;
  esac
  shift
done
[[ $WORKERS =~ ^[1-9][0-9]*$ ]] || refuse "--workers must be a number from 1, got '$WORKERS'"

python=${PYTHON:-$ROOT/.venv/bin/python}
command -v "$python" >/dev/null ||
  refuse "there is no $python; set it up with: make test-quick, or name one: PYTHON=..."
command=("$python" -m jigsaw_jax.main "${words[@]}" --cluster "local:$WORKERS")
if ((DRY_RUN)); then
  printf '%s\n' "${command[*]@Q}"
  exit 0
fi
# Configurations include others by paths from here.
cd "$ROOT"
exec "${command[@]}"
