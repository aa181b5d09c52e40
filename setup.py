"""Packaging of relu_nmt; tool settings: pyproject.toml, tested versions: constraints.txt."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "relu_nmt/__init__.py").read_text("utf-8"))[1]
COMMANDS = [
    "preprocess",
    "train",
    "generate",
    "interactive",
    "translate_document",
    "serve",
    "score",
    "analyze",
    "average",
    "shortlist",
    "convert",
    "import_fairseq",
    "import_marian",
    "sweep",
    "vision_train",
    "vision_evaluate",
    "vision_classify",
    "vision_probe",
]

NATIVE = "relu_nmt/engine/native"

setup(
    name="relu-nmt",
    version=VERSION,
    description="Translation of sentences and long documents with attention that is not softmax",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_packages(include=["relu_nmt", "relu_nmt.*"]),
    package_data={"relu_nmt": ["py.typed"], "": ["templates/*", "*.inc", "*.yaml", "*.json"]},
    # Without a compiler PyTorch computes what these kernels would.
    ext_modules=[
        Extension(
            "relu_nmt.engine.native.kernels",
            [f"{NATIVE}/kernels.cpp"],
            depends=[str(path) for path in Path(NATIVE).glob("*.inc")],
            extra_compile_args=["-O3", "-Wno-psabi"],
            optional=True,
        )
    ],
    install_requires=[
        "torch>=2.11",
        "numpy>=1.26",
        "sentencepiece>=0.2",
        "sacrebleu>=2.4",
        "sacremoses>=0.1.1",
        "subword-nmt>=0.3.8",
        "tensorboard>=2.16",
        "safetensors>=0.8",
        "tqdm>=4.66",
        "matplotlib>=3.8",
        "jinja2>=3.1",
        "ruamel.yaml>=0.18",
        "typing_extensions>=4.5",
    ],
    extras_require={
        "triton": ["triton>=3.6"],
        "vision": ["pillow>=10"],
        "parquet": ["pyarrow>=17"],
        "detection": ["pillow>=10", "pycocotools>=2.0.8"],
        "zstd": ["zstandard>=0.19"],
        "fuzz": ["atheris>=3"],
        "cluster": ["submitit>=1.5"],
        "serve": [
            "fastapi>=0.115",
            "uvicorn>=0.30",
            "prometheus-client>=0.20",
            "python-multipart>=0.0.20",
        ],
        "sentences": ["sentencex>=1.0"],
        "files": ["markdown-it-py>=3", "sentencex>=1.0"],
        "ctranslate2": ["ctranslate2>=4.5"],
        "onnx": ["onnxscript>=0.5", "onnxruntime>=1.22"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings-python>=2", "latex2mathml>=3.77"],
        # Triton's kernels are tested in its interpreter, which needs no GPU.
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "cloudpickle>=3",
            "ruff>=0.6",
            "mypy>=1.18",
            "pillow>=10",
            "pyarrow>=17",
            "pycocotools>=2.0.8",
            "pyyaml>=6",
            "zstandard>=0.19",
            "submitit>=1.5",
            "fastapi>=0.115",
            "uvicorn>=0.30",
            "prometheus-client>=0.20",
            "python-multipart>=0.0.20",
            "httpx>=0.27",
            "schemathesis>=4.1",
            "sentencex>=1.0",
            "markdown-it-py>=3",
            "libretranslatepy>=2.1",
            "ctranslate2>=4.5",
            "onnxscript>=0.5",
            "onnxruntime>=1.22",
            "triton>=3.6; sys_platform == 'linux'",
        ],
    },
    entry_points={
        "console_scripts": [
            f"relu-nmt-{command.replace('_', '-')} = relu_nmt.cli.{command}:main"
            for command in COMMANDS
        ]
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
