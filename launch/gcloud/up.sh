#!/usr/bin/env bash
# Ask for TPU slices, install the package on their hosts and start Ray.
#
#   launch/gcloud/up.sh --project P --zone Z --sampler_type v5litepod-8 \
#     --learner_type v5litepod-8
#
# --project P, --zone Z       where
# --name NAME                 of the job (default: run); several can stand side by side
# --sampler_type T[,T...]     accelerator type of each sampler slice
# --samplers N                that list N times (default: 1)
# --learner_type T[,T...]     accelerator type of each learner slice
# --learners N                that list N times (default: 1)
# --tier TIER                 on_demand (default), spot or reserved, for all slices
# --sampler_tier, --learner_tier   for one role
# --runtime_version V         default: what the type needs
# --network N, --subnetwork S, --service_account A   passed on to gcloud
# --internal_ips              no public addresses; connects through IAP
# --iap                       connect through IAP
# --valid_until 6h            give up the request if it is not granted by then
# --wait_minutes N            stop waiting then, with exit code 3; requests stay
# --no_quota_check            where the Cloud Quotas API is not allowed
# --dry_run                   print each gcloud call, in order, and call none
#
# The same command again changes nothing that stands, and repairs what does not.

# shellcheck source=launch/gcloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The quota that meters a slice. Hosts with all chips of a v5e slice count as serving.
quota_id() {
  local -r type=$1 spot=$2
  local preemptible=""
  if [[ $spot == spot ]]; then preemptible=Preemptible; fi
  case $type in
    v4-*) echo "TPUV4s${preemptible}PodPerProjectPerZoneForTPUAPI" ;;
    v5p-*) echo "TPUV5P${preemptible}PerProjectPerZoneForTPUAPI" ;;
    v5litepod-[148]) echo "TPUV5s${preemptible}LitepodServingPerProjectPerZoneForTPUAPI" ;;
    v5litepod-*) echo "TPUV5s${preemptible}LitepodPerProjectPerZoneForTPUAPI" ;;
    v6e-*) echo "TPUV6E${preemptible}PerProjectPerZoneForTPUAPI" ;;
  esac
}

quota_limit() {
  local rows limit places
  rows=$(ask "" beta quotas info list --service=tpu.googleapis.com --project="${OPTION[project]}" --filter="quotaId=$1" --flatten="dimensionsInfos[]" --format="csv[no-heading](dimensionsInfos.details.value,dimensionsInfos.applicableLocations.list(separator=\" \"))") || return 1
  while IFS=, read -r limit places; do
    if [[ " ${places//[\";]/ } " == *" ${OPTION[zone]} "* ]]; then
      echo "$limit"
      return
    fi
  done <<<"$rows"
}

check_quota() {
  local -A need=() used=()
  local slice name id limit
  for slice in "${WANTED[@]}"; do
    if [[ -n ${NODE_STATE[$slice]:-} ]]; then continue; fi
    if [[ ${WANT_TIER[$slice]} == reserved ]]; then
      note "$slice counts against your reservation, which gcloud checks itself"
      continue
    fi
    id=$(quota_id "${WANT_TYPE[$slice]}" "${WANT_TIER[$slice]}")
    need[$id]=$((${need[$id]:-0} + ${WANT_TYPE[$slice]##*-}))
  done
  for name in "${!NODE_STATE[@]}"; do
    id=$(quota_id "${NODE_TYPE[$name]}" "$([[ ${NODE_SPOT[$name]} == True ]] && echo spot || true)")
    if [[ -n $id ]]; then used[$id]=$((${used[$id]:-0} + ${NODE_TYPE[$name]##*-})); fi
  done
  for id in $(printf '%s\n' "${!need[@]}" | sort); do
    limit=$(quota_limit "$id") ||
      refuse "the quota $id can't be read; allow it with: gcloud services enable cloudquotas.googleapis.com, or pass --no_quota_check"
    if ((DRY_RUN)); then continue; fi
    limit=${limit:-0}
    # -1 is no limit.
    if ((limit >= 0 && ${used[$id]:-0} + need[$id] > limit)); then
      refuse "quota $id in ${OPTION[zone]} must be at least $((${used[$id]:-0} + need[$id])) (${used[$id]:-0} in use and ${need[$id]} for this job), got $limit; ask for more at https://console.cloud.google.com/iam-admin/quotas, or take fewer slices, another zone or --tier"
    fi
  done
}

# A name that stands must stand for what is asked for.
check_standing() {
  local slice
  for slice in "${WANTED[@]}"; do
    if [[ -n ${NOT_OURS[$slice]:-} ]] ||
      [[ -n ${NODE_STATE[$slice]:-} && ${NODE_LABEL[$slice]} != "${OPTION[name]}" ]]; then
      refuse "$slice must be free or ours, got one without the label jigsaw_jax=${OPTION[name]}; take another --name"
    fi
    if [[ -n ${STATE[$slice]:-} && ${TYPE[$slice]:-} != "${WANT_TYPE[$slice]}" ]]; then
      refuse "$slice must be ${WANT_TYPE[$slice]}, got a standing ${TYPE[$slice]}; take another --name, or end it: launch/gcloud/down.sh $(options_again)"
    fi
    if [[ -n ${STATE[$slice]:-} && ${TIER[$slice]:-} != "${WANT_TIER[$slice]}" ]]; then
      refuse "$slice must be ${WANT_TIER[$slice]}, got a standing one that is ${TIER[$slice]}; take another --name, or end it: launch/gcloud/down.sh $(options_again)"
    fi
  done
  for slice in "${!STATE[@]}"; do
    if [[ -z ${WANT_TYPE[$slice]:-} ]]; then
      say "$slice (${STATE[$slice]}) stands beside what is asked for; down.sh ends it too"
    fi
  done
}

check_types_of_zone() {
  local type
  for type in $(printf '%s\n' "${WANT_TYPE[@]}" | sort -u); do
    ask "" compute tpus accelerator-types describe "$type" "${WHERE[@]}" --format="value(type)" >/dev/null ||
      refuse "${OPTION[zone]} must offer $type; where it is: gcloud compute tpus accelerator-types list --filter=type=$type --zone=-"
  done
}

main() {
  parse_options "sampler_type samplers learner_type learners tier sampler_tier learner_tier runtime_version network subnetwork service_account internal_ips valid_until wait_minutes no_quota_check" "$@"
  local -r tier=${OPTION[tier]:-on_demand}
  want learner "${OPTION[learner_type]:-}" "${OPTION[learners]:-1}" "${OPTION[learner_tier]:-$tier}"
  want sampler "${OPTION[sampler_type]:-}" "${OPTION[samplers]:-1}" "${OPTION[sampler_tier]:-$tier}"
  check_number wait_minutes "${OPTION[wait_minutes]:-0}"
  check_types_of_zone
  survey
  survey_nodes
  check_standing
  if [[ -z ${OPTION[no_quota_check]:-} ]]; then check_quota; fi
  local revision
  revision=$(busy_revision) || refuse "$HEAD must say whether a run is under way, got no answer"
  pack_source "${revision:-HEAD}"
  # From here on something may cost money, however this script ends.
  trap 'finish; warn_of_cost' EXIT
  repair || exit 1
  local code=0
  wait_active || code=$?
  if ((code)); then exit "$code"; fi
  bring_up "${WANTED[@]}"
  note "ready; train with: launch/gcloud/run.sh $(options_again) --gin configs/demo.gin"
}

main "$@"
