#!/bin/bash
# sbatch docs/reference/slurm.sh CONFIG RUN     trains CONFIG into RUN on all GPUs of the job, and goes on where a time limit stopped it.
#
# RUN must lie on a disk that all nodes see, and idpgan must be on the PATH of a job (PYTHON names another interpreter).
# Two minutes before the end SLURM sends SIGTERM: the run saves itself, and the job is queued again until it is finished.
# A run that ends by an error is not queued again; its line is in the job's output.
#SBATCH --job-name=idpgan
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=idpgan-%j.log
set -u
config=${1:?config file}
run=${2:?run folder}
python=${PYTHON:-python}

if [ -e "$run/release/privacy.json" ]; then
    echo "$run is finished."
    exit 0
fi
if [ -e "$run/config.toml" ]; then
    what=(--resume "$run")
else
    what=("$config" --out "$run")
fi

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
srun --kill-on-bad-exit=1 "$python" -m torch.distributed.run \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 20000))" \
    -m idpgan train "${what[@]}"
code=$?

if [ "$code" -ne 0 ] && tail -n 1 "$run/log.txt" 2>/dev/null | grep -q "^Stopped by SIG"; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
