# shellcheck shell=bash
# What the gcloud scripts share; each sources this file first.
#
# Ours is what is named jigsaw-NAME-learner-N or jigsaw-NAME-sampler-N and labelled
# jigsaw_jax=NAME. Nothing else is ever changed. Every gcloud call goes through `call`
# or `ask`, which print it instead with --dry_run.
set -euo pipefail

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "bash must be 4.4 or newer, got $BASH_VERSION; on a Mac: brew install bash" >&2
  exit 2
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Seconds between two looks at the queue, and at a run.
POLL_S=${JIGSAW_POLL_S:-30}
# Requests for one slice that may fail before we give up.
FAILURES_MAX=3
FLAGS=" dry_run help follow internal_ips iap no_quota_check now then_down "

declare -A OPTION=([project]="" [zone]="" [name]="run")
declare -a GINS=() SETS=() WANTED=()
declare -A WANT_TYPE=() WANT_TIER=()
# Of our queued resources, by name; then of every TPU VM of the zone.
declare -A STATE=() TYPE=() TIER=() SINCE=() NOT_OURS=()
declare -A NODE_STATE=() NODE_TYPE=() NODE_SPOT=() NODE_LABEL=() NODE_SINCE=()
DRY_RUN=0
TMP=""
# In a dry run, what stands where a real one makes a file.
ARCHIVE=jigsaw_jax.tar.gz
TOKEN=auth_token

# Answers of `ask` go to a variable, so its printing needs the real standard output.
exec 3>&1

say() { echo "$*" >&2; }
note() { if ((DRY_RUN)); then echo "# $*" >&3; else say "$*"; fi; }
refuse() {
  say "$*"
  exit 2
}

# Words as one would type them into a shell.
quoted() {
  local word line=""
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@+-]+$ ]] || word=${word@Q}
    line+="${line:+ }$word"
  done
  echo "$line"
}

# Run gcloud for what it does.
call() {
  if ((DRY_RUN)); then
    quoted gcloud "$@" >&3
  else
    gcloud "$@"
  fi
}

# Run gcloud for its answer; the first argument stands for it in a dry run.
ask() {
  local -r answer=$1
  shift
  if ((DRY_RUN)); then
    quoted gcloud "$@" >&3
    echo "$answer"
  else
    gcloud "$@"
  fi
}

queued() { local -r verb=$1 && shift && call compute tpus queued-resources "$verb" "$@" "${WHERE[@]}"; }
vm() { local -r verb=$1 && shift && call compute tpus tpu-vm "$verb" "$@" "${WHERE[@]}"; }

# patiently WORD...: five tries. A VM that has just started refuses connections for a
# while, and a run lasts longer than the network does without a break.
patiently() {
  local try
  for try in 1 2 3 4 5; do
    if "$@"; then return 0; fi
    if ((try < 5)); then
      say "no answer yet, try $try of 5"
      sleep "$POLL_S"
    fi
  done
  return 1
}

# on SLICE WORKER WORD...: run words on hosts of a slice.
on() {
  local -r slice=$1 worker=$2
  shift 2
  patiently vm ssh "$slice" --worker="$worker" --command="$(quoted "$@")" "${REACH[@]}"
}

# parse_options "NAME ..." ARGUMENT...: fill OPTION; NAME is what this script also takes.
parse_options() {
  local -r allowed=" project zone name dry_run iap help $1 "
  local key value
  shift
  while (($#)); do
    [[ $1 == --[a-z]* ]] || refuse "an option must begin with --, got $1; see --help"
    key=${1#--} value=""
    if [[ $key == *=* ]]; then
      value=${key#*=} key=${key%%=*}
      [[ $FLAGS != *" $key "* ]] || refuse "--$key must stand alone, got --$key=$value"
    elif [[ $FLAGS != *" $key "* ]]; then
      (($# > 1)) || refuse "--$key must have a value"
      shift
      value=$1
    fi
    [[ $allowed == *" $key "* ]] || refuse "$(basename "$0") has no option --$key; see --help"
    case $key in
      help) usage && exit 0 ;;
      dry_run) DRY_RUN=1 ;;
      gin) GINS+=("$value") ;;
      set) SETS+=("$value") ;;
      *) if [[ $FLAGS == *" $key "* ]]; then OPTION[$key]=1; else OPTION[$key]=$value; fi ;;
    esac
    shift
  done
  check_names
}

# The header of the script that runs is its help.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

check_names() {
  local key
  for key in project zone; do
    [[ ${OPTION[$key]} =~ ^[A-Za-z0-9][A-Za-z0-9:._-]*$ ]] ||
      refuse "--$key must be a $key of Google Cloud, got '${OPTION[$key]}'"
  done
  [[ ${OPTION[name]} =~ ^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$ ]] ||
    refuse "--name must be at most 32 of a-z, 0-9 and -, a letter first and no - last, got '${OPTION[name]}'"
  PREFIX=jigsaw-${OPTION[name]}
  HEAD=$PREFIX-learner-0
  WHERE=(--zone="${OPTION[zone]}" --project="${OPTION[project]}")
  # Nobody would see a question of a connection in the background.
  REACH=(--quiet)
  if [[ -n ${OPTION[iap]:-} || -n ${OPTION[internal_ips]:-} ]]; then
    REACH+=(--tunnel-through-iap)
  fi
  if ((!DRY_RUN)) && ! command -v gcloud >/dev/null; then
    refuse "gcloud must be installed (https://cloud.google.com/sdk/docs/install), got none on the PATH"
  fi
  TMP=$(mktemp -d)
  trap finish EXIT
  # Else a Ctrl-C that ends a gcloud would be taken for its failure, and be tried again.
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

declare -a JOBS=()

# However a script ends: what it has in the background ends, and its files go.
finish() {
  local job
  for job in "${JOBS[@]}"; do kill "$job" 2>/dev/null || true; done
  rm -rf "$TMP"
}

check_number() { [[ $2 =~ ^(0|[1-9][0-9]{0,5})$ ]] || refuse "--$1 must be a number, got '$2'"; }
check_count() { [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || refuse "--$1 must be from 1 to 999, got '$2'"; }

check_bucket() {
  [[ $1 =~ ^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*$ ]] ||
    refuse "--bucket must be the name of a bucket, or a folder of it, got '$1'"
}

is_ours() { [[ $1 =~ ^$PREFIX-(learner|sampler)-[0-9]+$ ]]; }
role_of() { [[ $1 == *-learner-* ]] && echo learner || echo sampler; }

# shellcheck disable=SC2034 # The scripts that source this file read them.
# Read the queue: STATE, TYPE, TIER and SINCE of ours. A dry run keeps what it supposes.
survey() {
  local rows name state type label tier since
  rows=$(ask "" compute tpus queued-resources list "${WHERE[@]}" --format="csv[no-heading](name.basename(),state.state,tpu.nodeSpec[0].node.acceleratorType,tpu.nodeSpec[0].node.labels.jigsaw_jax,tpu.nodeSpec[0].node.labels.jigsaw_jax_tier,createTime)") || return 1
  if ((DRY_RUN)); then return; fi
  STATE=() TYPE=() TIER=() SINCE=() NOT_OURS=()
  while IFS=, read -r name state type label tier since; do
    is_ours "$name" || continue
    if [[ $label != "${OPTION[name]}" ]]; then
      NOT_OURS[$name]=1
      continue
    fi
    STATE[$name]=$state TYPE[$name]=$type TIER[$name]=$tier SINCE[$name]=$since
  done <<<"$rows"
}

# shellcheck disable=SC2034
# Read the zone's TPU VMs, everyone's.
survey_nodes() {
  local rows name state type spot label since
  rows=$(ask "" compute tpus tpu-vm list "${WHERE[@]}" --format="csv[no-heading](name.basename(),state,acceleratorType,schedulingConfig.spot,labels.jigsaw_jax,createTime)") || return 1
  NODE_STATE=() NODE_TYPE=() NODE_SPOT=() NODE_LABEL=() NODE_SINCE=()
  while IFS=, read -r name state type spot label since; do
    [[ -n $name ]] || continue
    NODE_STATE[$name]=$state NODE_TYPE[$name]=$type NODE_SPOT[$name]=$spot
    NODE_LABEL[$name]=$label NODE_SINCE[$name]=$since
  done <<<"$rows"
}

# Our TPU VMs, those included whose queued resource is gone.
our_nodes() {
  local node
  for node in "${!NODE_STATE[@]}"; do
    if is_ours "$node" && [[ ${NODE_LABEL[$node]} == "${OPTION[name]}" ]]; then
      echo "$node"
    fi
  done | sort
}

runtime_version() {
  case $1 in
    v4-*) echo tpu-ubuntu2204-base ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
  esac
}

check_type() {
  if [[ $1 =~ ^v5e-([0-9]+)$ ]]; then
    refuse "--$2 must be written as gcloud does, got '$1'; take v5litepod-${BASH_REMATCH[1]}"
  fi
  [[ $1 =~ ^(v4|v5p|v5litepod|v6e)-[1-9][0-9]*$ ]] ||
    refuse "--$2 must be v4-N, v5p-N, v5litepod-N or v6e-N, got '$1'"
}

# want ROLE TYPES COUNT TIER: plan slices; TYPES has one for each slice, COUNT times.
want() {
  local -r role=$1 tier=$4
  local -a types
  local number=0 round type slice
  IFS=, read -r -a types <<<"$2"
  ((${#types[@]})) || refuse "--${role}_type must be given, for example v5litepod-8"
  check_count "${role}s" "$3"
  [[ $tier =~ ^(on_demand|spot|reserved)$ ]] ||
    refuse "--${role}_tier must be on_demand, spot or reserved, got '$tier'"
  for ((round = 0; round < $3; round++)); do
    for type in "${types[@]}"; do
      check_type "$type" "${role}_type"
      slice=$PREFIX-$role-$number
      WANTED+=("$slice")
      WANT_TYPE[$slice]=$type WANT_TIER[$slice]=$tier
      ((number += 1))
    done
  done
}

request() {
  local -r slice=$1
  local -a options=()
  case ${WANT_TIER[$slice]} in
    spot) options+=(--spot) ;;
    reserved) options+=(--reserved) ;;
  esac
  if [[ -n ${OPTION[internal_ips]:-} ]]; then options+=(--internal-ips); fi
  if [[ -n ${OPTION[network]:-} ]]; then options+=(--network="${OPTION[network]}"); fi
  if [[ -n ${OPTION[subnetwork]:-} ]]; then options+=(--subnetwork="${OPTION[subnetwork]}"); fi
  if [[ -n ${OPTION[service_account]:-} ]]; then
    options+=(--service-account="${OPTION[service_account]}")
  fi
  if [[ -n ${OPTION[valid_until]:-} ]]; then
    options+=(--valid-until-duration="${OPTION[valid_until]}")
  fi
  note "asking for $slice: ${WANT_TYPE[$slice]}, ${WANT_TIER[$slice]}"
  # The VM may write to buckets and logs, and nothing else of the project.
  queued create "$slice" --node-id="$slice" \
    --accelerator-type="${WANT_TYPE[$slice]}" \
    --runtime-version="${OPTION[runtime_version]:-$(runtime_version "${WANT_TYPE[$slice]}")}" \
    --labels="jigsaw_jax=${OPTION[name]},jigsaw_jax_tier=${WANT_TIER[$slice]}" \
    --scopes=https://www.googleapis.com/auth/devstorage.read_write,https://www.googleapis.com/auth/logging.write \
    "${options[@]}" || return 1
  if ((DRY_RUN)); then STATE[$slice]=ACTIVE; else STATE[$slice]=WAITING_FOR_RESOURCES; fi
}

# Give back what a preemption or a failure left, and ask anew.
request_again() {
  queued delete "$1" --force --quiet && request "$1"
}

declare -A FAILURES=()

# repair: ask for every wanted slice that is missing, preempted or failed. Sets REPAIRED.
# It returns 2 where asking again is of no use.
repair() {
  local slice
  REPAIRED=()
  for slice in "${WANTED[@]}"; do
    case ${STATE[$slice]:-} in
      "")
        request "$slice" || return 1
        REPAIRED+=("$slice")
        ;;
      SUSPENDED)
        say "$slice was preempted"
        request_again "$slice" || return 1
        REPAIRED+=("$slice")
        ;;
      ACTIVE) unset "FAILURES[$slice]" ;;
      FAILED)
        FAILURES[$slice]=$((${FAILURES[$slice]:-0} + 1))
        if [[ -n ${OPTION[valid_until]:-} ]]; then
          say "the request for $slice failed, or was not granted within --valid_until=${OPTION[valid_until]}, and is not made again; why: $(quoted gcloud compute tpus queued-resources describe "$slice" "${WHERE[@]}")"
          return 2
        fi
        if ((FAILURES[$slice] > FAILURES_MAX)); then
          say "$slice failed ${FAILURES[$slice]} times; why: $(quoted gcloud compute tpus queued-resources describe "$slice" "${WHERE[@]}")"
          return 2
        fi
        say "the request for $slice failed"
        request_again "$slice" || return 1
        REPAIRED+=("$slice")
        ;;
    esac
  done
}

all_active() {
  local slice
  for slice in "$@"; do [[ ${STATE[$slice]:-} == ACTIVE ]] || return 1; done
}

# Wait until every wanted slice is ACTIVE; ask again for what is preempted meanwhile.
wait_active() {
  local -r deadline_s=$((SECONDS + 60 * ${OPTION[wait_minutes]:-100000}))
  note "again and again until all are ACTIVE:"
  while true; do
    patiently survey || return 1
    repair || return 1
    if all_active "${WANTED[@]}"; then return 0; fi
    if ((SECONDS >= deadline_s)); then
      say "not all slices were granted within --wait_minutes=${OPTION[wait_minutes]}"
      return 3
    fi
    sleep "$POLL_S"
  done
}

# in_parallel FUNCTION SLICE...: for each slice, at once; fails where one of them does.
in_parallel() {
  local -r function=$1
  local slice job failed=0
  shift
  JOBS=()
  for slice in "$@"; do
    if ((DRY_RUN)); then
      "$function" "$slice"
    else
      until_told "$function" "$slice" > >(sed "s/^/$slice: /" >&2) 2>&1 &
      JOBS+=($!)
    fi
  done
  for job in "${JOBS[@]}"; do wait "$job" || failed=1; done
  JOBS=()
  return "$failed"
}

# What runs in the background doesn't hear a Ctrl-C unless it asks to.
until_told() {
  trap 'exit 130' INT TERM
  "$@"
}

# The revision that the head has while a run is under way there: all keep it until then.
busy_revision() {
  if [[ ${STATE[$HEAD]:-} != ACTIVE ]]; then return; fi
  patiently ask "" compute tpus tpu-vm ssh "$HEAD" --worker=0 --command="test ! -e host.sh || bash host.sh busy" "${REACH[@]}" "${WHERE[@]}"
}

# pack_source REVISION: what every host of a job installs, so that all run the same.
pack_source() {
  if ! REVISION=$(git -C "$ROOT" rev-parse --verify --quiet "$1^{commit}"); then
    ((DRY_RUN)) || refuse "the package must be a Git checkout that holds $1, got $ROOT"
    REVISION=$1
  fi
  note "git archive of $REVISION, which the hosts install"
  if ((DRY_RUN)); then return; fi
  if [[ -n $(git -C "$ROOT" status --porcelain -- . ':!configs') ]]; then
    say "what is not committed stays here, but for configs/; the hosts get $REVISION"
  fi
  ARCHIVE=$TMP/jigsaw_jax.tar.gz
  git -C "$ROOT" archive --format=tar.gz --output="$ARCHIVE" "$REVISION"
}

install_on() {
  patiently vm scp "$ARCHIVE" "$ROOT/launch/gcloud/host.sh" "$1:" --worker=all "${REACH[@]}" &&
    on "$1" all bash host.sh install "$REVISION"
}

join_ray() {
  patiently vm scp "$TOKEN" "$1:.ray/" --worker=all "${REACH[@]}" &&
    on "$1" all bash host.sh ray "$1" "$(role_of "$1")" "$HEAD_ADDRESS"
}

# The head's private address, and the token that every process of Ray must show.
find_head() {
  HEAD_ADDRESS=$(ask HEAD_ADDRESS compute tpus tpu-vm describe "$HEAD" "${WHERE[@]}" --format="value(networkEndpoints[0].ipAddress)") || return 1
  on "$HEAD" 0 bash host.sh token || return 1
  if ((!DRY_RUN)); then TOKEN=$TMP/auth_token; fi
  patiently vm scp "$HEAD:.ray/auth_token" "$TOKEN" --worker=0 "${REACH[@]}"
}

# bring_up SLICE...: install the package and start Ray, the head's slice first.
bring_up() {
  local slice
  local -a others=()
  in_parallel install_on "$@" || return 1
  find_head || return 1
  for slice in "$@"; do
    if [[ $slice != "$HEAD" ]]; then
      others+=("$slice")
    else
      join_ray "$slice" || return 1
    fi
  done
  in_parallel join_ray "${others[@]}"
}

options_again() {
  local words=(--project "${OPTION[project]}" --zone "${OPTION[zone]}")
  if [[ ${OPTION[name]} != run ]]; then words+=(--name "${OPTION[name]}"); fi
  quoted "${words[@]}"
}

warn_of_cost() {
  if ((DRY_RUN)); then return; fi
  say "slices cost money while they stand: launch/gcloud/status.sh $(options_again) shows them, launch/gcloud/down.sh $(options_again) ends them"
}
