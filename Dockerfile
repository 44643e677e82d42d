# Images of the project. BASE: any Debian-like image with python3 (3.11 to 3.13) and its venv module.
ARG BASE=python:3.12-slim-bookworm

# What the init container copies into a job's pods: standard library only.
FROM ${BASE} AS runtime
COPY operator/torchtpu_operator/__init__.py /opt/torchtpu-operator/torchtpu_operator/
COPY operator/torchtpu_operator/contract /opt/torchtpu-operator/torchtpu_operator/contract
COPY operator/torchtpu_operator/tpu /opt/torchtpu-operator/torchtpu_operator/tpu
COPY operator/torchtpu_operator/runtime /opt/torchtpu-operator/torchtpu_operator/runtime
COPY operator/ttj.py /opt/torchtpu-operator/
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python
ENV PYTHONPATH=/opt/torchtpu-operator PYTHONDONTWRITEBYTECODE=1
USER 65532:65532

FROM ${BASE} AS job-cpu-packages
RUN apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev binutils
COPY requirements/job-cpu.txt tests/testbed/images/cuda_stand_ins.py /build/
RUN python3 -m venv /opt/job && \
    /opt/job/bin/pip install -q --no-cache-dir --no-deps --require-hashes -r /build/job-cpu.txt && \
    python3 /build/cuda_stand_ins.py /opt/job/lib/python3.*/site-packages && \
    rm -rf /opt/job/lib/python3.*/site-packages/pip*

# Runs jobs with `device: CPU`, for trials and tests: Ray, torch without CUDA, and what the examples use.
FROM ${BASE} AS runtime-cpu
RUN apt-get update -q && apt-get install -y -q --no-install-recommends wget procps libgomp1 && \
    rm -rf /var/lib/apt/lists/* && useradd --uid 1000 --create-home job
COPY --from=job-cpu-packages /opt/job /opt/job
ENV PATH=/opt/job/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 1000:1000
WORKDIR /home/job
