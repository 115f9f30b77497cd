#!/usr/bin/env bash
# Trains with an evaluation after each epoch, whose preprocessing is kept in a stage cache.
#
#   examples/run_evaluate_while_training.sh [DATASET_DIR [EVAL_DIR]]
#
# Without directories a few pictures are made up. RUN_EVAL=False trains without evaluation. STOP_SERVER=False leaves the
# server and its session for the next run, which finds everything prepared when it is given CACHE_SESSION_ID.
set -u

CURPATH=$(dirname "$0")
source "${CURPATH}/cache_util.sh"

RUN_EVAL=${RUN_EVAL:-True}
ARGUMENTS=()
if [ $# -ge 1 ]
then
  ARGUMENTS+=(--dataset_path "$1" --eval_dataset_path "${2:-$1}")
fi

if [ "x${RUN_EVAL}" == "xTrue" ]
then
  if [ -z "${CACHE_SESSION_ID:-}" ]
  then
    bootup_cache_server
    CACHE_SESSION_ID=$(generate_cache_session)
    echo "session ${CACHE_SESSION_ID}"
  fi
  ARGUMENTS+=(--run_eval True --enable_cache True --cache_session_id "${CACHE_SESSION_ID}")
fi

"${PYTHON:-python}" "${CURPATH}/evaluate_while_training.py" "${ARGUMENTS[@]}"
status=$?

if [ "x${RUN_EVAL}" == "xTrue" ] && [ "x${STOP_SERVER:-True}" == "xTrue" ]
then
  cache_admin --destroy_session "${CACHE_SESSION_ID}"
  cache_admin --stop
fi
exit ${status}
