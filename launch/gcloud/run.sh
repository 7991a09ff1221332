#!/usr/bin/env bash
# Train on slices that up.sh made, and keep the run alive until it ends.
#
#   launch/gcloud/run.sh --project P --zone Z --gin configs/demo.gin
#
# --project P, --zone Z   where
# --name NAME             of the job, as for up.sh (default: run)
# --gin FILE              below configs/; repeat it for more
# --set BINDING           as for jigsaw_jax.main; repeat it for more
# --run NAME              of the run's folder (default: the last gin file's name)
# --bucket B[/FOLDER]     copy the run there, and go on from there on a new host
# --sync_s N              seconds between copies (default: 60)
# --restarts N            times to start again a run that failed (default: 3), with as
#                         many anew once it has come further than ever
# --then_down             end all slices when the run has ended well
# --iap                   connect through IAP
# --dry_run               print each gcloud call, in order, and call none
#
# It watches: a slice that was preempted is asked for again and joins the run; when it
# was the head's, the run goes on from the bucket. Ctrl-C ends the watching, not the run;
# the same command takes it up again. Exit code: the run's.

# shellcheck source=launch/gcloud/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Looks at a run that goes on until its hosts are looked after.
CALM=20

check_run() {
  local file
  ((${#GINS[@]})) || refuse "--gin must name a file"
  for file in "${GINS[@]}"; do
    [[ $file == configs/* && $file != *..* && -f $ROOT/$file ]] ||
      refuse "--gin must be a file below configs/, written so, got '$file'"
  done
  RUN=${OPTION[run]:-$(basename "${GINS[-1]}" .gin)}
  [[ $RUN =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || refuse "--run must be letters, digits, ., _ and -, got '$RUN'"
  BUCKET=${OPTION[bucket]:-}
  BUCKET=${BUCKET#gs://}
  if [[ -n $BUCKET ]]; then check_bucket "$BUCKET"; fi
  check_count sync_s "${OPTION[sync_s]:-60}"
  check_number restarts "${OPTION[restarts]:-3}"
}

# What stands is what is wanted from now on.
adopt() {
  local slice
  survey
  if ((DRY_RUN)); then
    note "supposing one learner and one sampler slice, both ACTIVE"
    STATE=([$HEAD]=ACTIVE [$PREFIX-sampler-0]=ACTIVE)
  fi
  for slice in $(printf '%s\n' "${!STATE[@]}" | sort); do
    WANTED+=("$slice")
    WANT_TYPE[$slice]=${TYPE[$slice]:-} WANT_TIER[$slice]=${TIER[$slice]:-on_demand}
  done
  if [[ -z ${STATE[$HEAD]:-} || " ${WANTED[*]} " != *"-sampler-"* ]]; then
    refuse "the job '${OPTION[name]}' must have a learner and a sampler slice, got '${WANTED[*]}'; make them: launch/gcloud/up.sh $(options_again) --learner_type T --sampler_type T"
  fi
}

start_run() {
  local -a words=()
  local word
  for word in "${GINS[@]}"; do words+=(--gin "$word"); done
  for word in "${SETS[@]}"; do words+=(--set "$word"); done
  # A configuration may be tried without a commit.
  patiently vm scp --recurse "$ROOT/configs" "$HEAD:jigsaw_jax/" --worker=0 "${REACH[@]}" || return 1
  on "$HEAD" 0 bash host.sh start "$RUN" "${BUCKET:+gs://$BUCKET/$RUN}" "${OPTION[sync_s]:-60}" "${words[@]}"
}

# run_state ANSWER_OF_A_DRY_RUN
run_state() {
  ask "$1" compute tpus tpu-vm ssh "$HEAD" --worker=0 --command="$(quoted bash host.sh state "$RUN")" "${REACH[@]}" "${WHERE[@]}" || echo unreachable
}

# standing: what is ACTIVE, and not on its way back.
standing() {
  local slice
  for slice in "${WANTED[@]}"; do
    if [[ ${STATE[$slice]:-} == ACTIVE && -z ${LOST[$slice]:-} ]]; then echo "$slice"; fi
  done
}

# Updates that the run has made; 0 where it can't be asked.
run_progress() {
  local made
  made=$(ask 0 compute tpus tpu-vm ssh "$HEAD" --worker=0 --command="$(quoted bash host.sh progress "$RUN")" "${REACH[@]}" "${WHERE[@]}") || made=0
  if [[ $made =~ ^[0-9]+$ ]]; then echo "$made"; else echo 0; fi
}

# Start Ray wherever it has ended. The head's must be; one other that can't be reached
# holds up nobody.
look_after() {
  local -a others=()
  mapfile -t others < <(standing | grep -vx "$HEAD")
  bring_up "$HEAD" || return 1
  in_parallel bring_in "${others[@]}" || say "not every slice could be looked after; trying again later"
}

# shellcheck disable=SC2329 # in_parallel calls it.
bring_in() { install_on "$1" && join_ray "$1"; }

# Whatever was given back while we watched: install, join, and start anew if need be.
recover() {
  local slice
  local -a fresh=()
  for slice in "${!LOST[@]}"; do
    if [[ ${STATE[$slice]:-} == ACTIVE ]]; then fresh+=("$slice"); fi
  done
  if ((!${#fresh[@]})); then return; fi
  if [[ -n ${LOST[$HEAD]:-} ]]; then
    # Nobody knows the new head's address: all join again, as soon as all are there.
    all_active "${WANTED[@]}" || return 0
    bring_up "${WANTED[@]}" && start_run || return 1
    LOST=()
  elif [[ ${STATE[$HEAD]} == ACTIVE ]]; then
    bring_up "${fresh[@]}" || return 1
    for slice in "${fresh[@]}"; do unset "LOST[$slice]"; done
  fi
}

watch() {
  local state slice code made told=0 calm=0 best=0 restarts=${OPTION[restarts]:-3}
  declare -gA LOST=()
  note "again and again until the run has ended:"
  while true; do
    patiently survey || return 1
    code=0
    repair || code=$?
    for slice in "${REPAIRED[@]}"; do LOST[$slice]=1; done
    if ((code == 2)); then return 1; fi
    if ((code)); then say "a slice could not be asked for; trying again"; fi
    recover || say "a slice that came back did not join yet; trying again"
    if [[ -z ${LOST[$HEAD]:-} ]]; then
      state=$(run_state "ended 0")
      case $state in
        running)
          told=0
          if ((++calm % CALM == 0)); then
            made=$(run_progress)
            if ((made > best)); then best=$made restarts=${OPTION[restarts]:-3}; fi
            # A host may have rebooted, or Ray have ended there.
            look_after || say "the head could not be looked after; trying again later"
          fi
          ;;
        "ended 0") return 0 ;;
        "ended 130" | "ended 143")
          # Somebody has stopped it; or its host is being preempted, and is gone soon.
          if ((told)); then return 130; fi
          told=1
          ;;
        ended* | none)
          if ((restarts-- <= 0)) || [[ $state == "ended 2" ]]; then
            say "the run $state; its last lines: launch/gcloud/logs.sh $(options_again) --run $RUN"
            return 1
          fi
          calm=0
          say "the run $state; starting it again, $restarts more times at most"
          # It may have ended with Ray, or with its host.
          { look_after && start_run; } || say "it could not be started; trying again"
          ;;
      esac
    fi
    sleep "$POLL_S"
  done
}

main() {
  parse_options "gin set run bucket sync_s restarts then_down" "$@"
  check_run
  adopt
  if [[ -n $BUCKET ]]; then
    ask "" storage buckets describe "gs://${BUCKET%%/*}" --project="${OPTION[project]}" --format="value(name)" >/dev/null ||
      refuse "the bucket gs://${BUCKET%%/*} must exist; make it: $(quoted gcloud storage buckets create "gs://${BUCKET%%/*}" --project="${OPTION[project]}" --location="${OPTION[zone]%-*}")"
  else
    say "without --bucket a run does not outlive its head's host"
  fi
  trap 'finish; warn_of_cost' EXIT
  local revision
  revision=$(busy_revision) || refuse "$HEAD must say whether a run is under way, got no answer"
  pack_source "${revision:-HEAD}"
  if [[ -n $revision && $(run_state none) == running ]]; then
    say "$RUN runs already; watching it"
  else
    wait_active
    bring_up "${WANTED[@]}"
    start_run
  fi
  local watch_code=0
  watch || watch_code=$?
  if ((watch_code == 0)) && [[ -n ${OPTION[then_down]:-} ]]; then
    local -a words=(--project "${OPTION[project]}" --zone "${OPTION[zone]}" --name "${OPTION[name]}")
    if ((DRY_RUN)); then words+=(--dry_run); fi
    if [[ -n ${OPTION[iap]:-} ]]; then words+=(--iap); fi
    "$(dirname "${BASH_SOURCE[0]}")/down.sh" "${words[@]}"
    # Nothing stands any more.
    trap finish EXIT
  fi
  exit "$watch_code"
}

main "$@"
