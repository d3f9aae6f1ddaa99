#!/usr/bin/env bash
# own_host.sh PROGRAM [ARGUMENT...]: a worker that NCCL takes for one on a host of
# its own. NCCL refuses two ranks of one host on one GPU.
export NCCL_HOSTID="gpu-check-$$"
exec "$@"
