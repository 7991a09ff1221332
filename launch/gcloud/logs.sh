#!/usr/bin/env bash
# Show the last lines that a run has printed.
#
#   launch/gcloud/logs.sh --project P --zone Z --run demo --follow
#
# --project P, --zone Z   where
# --name NAME             of the job (default: run)
# --run NAME              of the run's folder (default: the run that printed last)
# --lines N               (default: 100)
# --follow                go on as lines come
# --iap                   connect through IAP
# --dry_run               print each gcloud call, in order, and call none

# shellcheck source=launch/gcloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

main() {
  local -a words
  parse_options "run lines follow" "$@"
  check_count lines "${OPTION[lines]:-100}"
  words=(bash host.sh log "${OPTION[run]:-}" "${OPTION[lines]:-100}")
  if [[ -n ${OPTION[follow]:-} ]]; then words+=(follow); fi
  vm ssh "$HEAD" --worker=0 --command="$(quoted "${words[@]}")" "${REACH[@]}"
}

main "$@"
