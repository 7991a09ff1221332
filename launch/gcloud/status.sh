#!/usr/bin/env bash
# Show what stands, since when, and what it has used.
#
#   launch/gcloud/status.sh --project P --zone Z
#
# --project P, --zone Z   where
# --name NAME             of the job (default: run)
# --run NAME              also say how this run is
# --iap                   connect through IAP
# --dry_run               print each gcloud call, in order, and call none

# shellcheck source=launch/gcloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

hours_since() {
  local seconds
  seconds=$(($(date -u +%s) - $(date -u -d "$1" +%s 2>/dev/null || date -u +%s)))
  printf '%d.%d' $((seconds / 3600)) $((seconds % 3600 / 360))
}

main() {
  parse_options "run" "$@"
  survey
  survey_nodes
  if ((!DRY_RUN)); then show; fi
  if [[ -n ${OPTION[run]:-} ]]; then
    call compute tpus tpu-vm ssh "$HEAD" --worker=0 --command="$(quoted bash host.sh state "${OPTION[run]}")" "${REACH[@]}" "${WHERE[@]}"
  fi
}

show() {
  local name
  local -a nodes
  mapfile -t nodes < <(our_nodes)
  if ((${#STATE[@]} + ${#nodes[@]} == 0)); then
    echo "nothing of the job '${OPTION[name]}' stands in ${OPTION[zone]}"
  fi
  for name in $(printf '%s\n' "${!STATE[@]}" | sort); do
    echo "$name  ${TYPE[$name]}  ${TIER[$name]}  ${STATE[$name]}  asked for at ${SINCE[$name]}"
  done
  for name in "${nodes[@]}"; do
    echo "$name  ${NODE_TYPE[$name]}  VM ${NODE_STATE[$name]}  costs since ${NODE_SINCE[$name]}, $(hours_since "${NODE_SINCE[$name]}") hours"
    if [[ -z ${STATE[$name]:-} ]]; then
      echo "$name  has no queued resource any more; down.sh ends it too"
    fi
  done
  for name in "${!NOT_OURS[@]}"; do echo "$name  has our name but not our label; left alone"; done
}

main "$@"
