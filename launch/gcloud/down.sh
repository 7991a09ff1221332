#!/usr/bin/env bash
# End all slices of a job, and say what remains.
#
#   launch/gcloud/down.sh --project P --zone Z
#
# --project P, --zone Z   where
# --name NAME             of the job (default: run)
# --now                   don't let runs save, end and copy themselves first
# --looks N              how often to look whether all is gone (default: 60)
# --iap                   connect through IAP
# --dry_run               print each gcloud call, in order, and call none
#
# Only what bears the job's name and its label goes. Exit code 1: something remains.

# shellcheck source=launch/gcloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Looks at what is left of an asynchronous deletion; half an hour at 30 s.
LOOKS=60

delete_all() {
  local name
  for name in $(printf '%s\n' "${!STATE[@]}" | sort); do
    # A deletion is refused while a slice is being provisioned; the next look tries again.
    if [[ ${STATE[$name]} != DELETING ]]; then
      queued delete "$name" --force --quiet --async || say "$name can't be deleted yet"
    fi
  done
  for name in $(our_nodes); do
    if [[ -z ${STATE[$name]:-} && ${NODE_STATE[$name]} != DELETING ]]; then
      vm delete "$name" --quiet --async || say "$name can't be deleted yet"
    fi
  done
}

remaining() { { printf '%s\n' "${!STATE[@]}" && our_nodes; } | sed '/^$/d' | sort -u; }

main() {
  local look name left
  parse_options "now looks" "$@"
  check_count looks "${OPTION[looks]:-$LOOKS}"
  # Ended in the middle, it has not said that nothing is left.
  trap 'finish; warn_of_cost' EXIT
  patiently survey
  if ((DRY_RUN)); then
    note "supposing one learner and one sampler slice"
    STATE=([$HEAD]=ACTIVE [$PREFIX-sampler-0]=ACTIVE)
  fi
  patiently survey_nodes
  if [[ -z ${OPTION[now]:-} && ${STATE[$HEAD]:-} == ACTIVE ]]; then
    vm ssh "$HEAD" --worker=0 --command="bash host.sh stop" "${REACH[@]}" ||
      say "runs could not be stopped; what is in the bucket is their last copy"
  fi
  for ((look = 0; look < ${OPTION[looks]:-$LOOKS}; look++)); do
    if [[ -z $(remaining) ]]; then break; fi
    delete_all
    if ((DRY_RUN)); then
      note "again and again until nothing of ours is left:"
      STATE=()
    else
      sleep "$POLL_S"
    fi
    patiently survey
    patiently survey_nodes
  done
  for name in "${!NOT_OURS[@]}"; do
    say "$name has our name but not our label, and is left alone; if it is yours: $(quoted gcloud compute tpus queued-resources delete "$name" --force "${WHERE[@]}")"
  done
  trap finish EXIT
  if ((DRY_RUN)); then return; fi
  left=$(remaining)
  if [[ -n $left ]]; then
    say "STILL THERE, and costing money:"
    for name in $left; do say "  $name ${STATE[$name]:-${NODE_STATE[$name]:-}}"; done
    exit 1
  fi
  say "nothing of the job '${OPTION[name]}' is left in ${OPTION[zone]}; buckets stay, and cost what they hold"
}

main "$@"
