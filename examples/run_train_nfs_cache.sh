#!/usr/bin/env bash
# Trains from a directory on network storage, whose files are kept in a stage cache.
#
#   examples/run_train_nfs_cache.sh [DATASET_DIR]
#
# Without a directory a few pictures are made up, and reading one waits 20 ms, as network storage would.
set -u

CURPATH=$(dirname "$0")
source "${CURPATH}/cache_util.sh"

bootup_cache_server
CACHE_SESSION_ID=$(generate_cache_session)

ARGUMENTS=(--enable_cache True --cache_session_id "${CACHE_SESSION_ID}")
if [ $# -ge 1 ]
then
  ARGUMENTS+=(--dataset_path "$1")
fi
"${PYTHON:-python}" "${CURPATH}/train_from_network_storage.py" "${ARGUMENTS[@]}"
status=$?

cache_admin --destroy_session "${CACHE_SESSION_ID}"
cache_admin --stop
exit ${status}
