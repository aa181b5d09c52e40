# The translation server: docs/guide/serving.md#in-a-container.
#
#   docker build -t relu-nmt .
#   docker run -p 8000:8000 -v ./model:/model:ro relu-nmt /model/checkpoint_best.safetensors
#
# For a GPU take an image with PyTorch for it, and run with --gpus all:
#
#   docker build -t relu-nmt --build-arg BASE=pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime \
#       --build-arg TORCH= .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# Options of pip for PyTorch. By default they name its builds without CUDA, a tenth of the size.
ARG TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
RUN apt-get update && apt-get install -y --no-install-recommends g++
RUN python -m venv --system-site-packages /opt/relu-nmt
ENV PATH=/opt/relu-nmt/bin:$PATH
RUN test -z "${TORCH}" || pip install --no-cache-dir ${TORCH}
WORKDIR /source
COPY setup.py pyproject.toml constraints.txt README.md LICENSE ./
COPY relu_nmt relu_nmt
# An image that brings PyTorch keeps it.
RUN grep -v "^torch==" constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir -c /tmp/constraints.txt ".[serve,files]"

FROM ${BASE}
RUN useradd --no-create-home relu-nmt
COPY --from=build /opt/relu-nmt /opt/relu-nmt
ENV PATH=/opt/relu-nmt/bin:$PATH MPLCONFIGDIR=/tmp
USER relu-nmt
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["relu-nmt-serve", "--host", "0.0.0.0", "--allowed-hosts", "localhost"]
CMD ["/model/checkpoint_best.safetensors"]
