# docker build -t idpgan .                                                                          for the CPU
# docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 -t idpgan-cuda .      for docker run --gpus all
# Not built where it was written: there was no Docker and no GPU. docs/reference/scale.md says how several GPUs share a run.
ARG BASE=python:3.11-slim
FROM ${BASE}

# PyTorch's wheels bring the CUDA libraries along; the machine gives the driver.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_NUM_THREADS=1

WORKDIR /opt/idpgan
COPY constraints.txt pyproject.toml README.md ./
COPY idpgan ./idpgan
# The versions of torch and torchvision are those of constraints.txt, from the index of their build; everything else from PyPI.
RUN grep -E "^(torch|torchvision)==" constraints.txt > torch.txt \
    && pip install --index-url "${TORCH_INDEX}" --extra-index-url https://pypi.org/simple -r torch.txt \
    && pip install -c constraints.txt . \
    && rm torch.txt

RUN useradd --create-home --uid 1000 curator
USER curator
WORKDIR /work
ENTRYPOINT ["python", "-m", "idpgan"]
CMD ["--help"]
