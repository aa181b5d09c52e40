# make demo   learn to translate German help pages into English, in about ten minutes
# make test   set everything up, run the linter, the type checker and the tests
# make test-slow   run the tests that take long: whole pages of the guide, exports, trainings
# make docs   make a site of the documentation: build/site/index.html
# make fuzz   feed a million damaged files to everything that reads files (an hour or so)
# make clean  remove what the demo made;  make distclean  the virtual environment, too
#
# Settings, each as NAME=VALUE after the target:
#   PYTHON        Python 3.10 or newer to make the virtual environment with (python3)
#   VENV          folder of the virtual environment (.venv)
#   DEMO_MINUTES  minutes of training (see examples/demo/run.py); more minutes go on with what is there
#   DEMO_LANG     language to translate from (de); the LibreOffice help exists in 33
#   CORPUS        libreoffice, grammar (written by ourselves, needs no network), or auto
#   SRC, TGT      files of your own, one sentence a line, instead of a corpus
#   FUZZ_FLAGS    flags for the fuzzing (tests/fuzz/run.py), as --inputs 1000 or the name of a reader
#   TEST_FLAGS    flags for pytest (a process for each core, 4 at most); with --hypothesis-profile=thorough,
#                 properties are tested with 500 made examples instead of 50

PYTHON = python3
VENV = .venv
DEMO_MINUTES =
DEMO_LANG =
CORPUS =
SRC =
TGT =
TEST_FLAGS = -n auto --maxprocesses 4 --dist worksteal

INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt
DEMO_FLAGS = $(if $(DEMO_MINUTES),--minutes "$(DEMO_MINUTES)") $(if $(DEMO_LANG),--lang "$(DEMO_LANG)") \
	$(if $(CORPUS),--corpus "$(CORPUS)") $(if $(SRC),--src "$(SRC)") $(if $(TGT),--tgt "$(TGT)")

.PHONY: demo test test-slow docs fuzz clean distclean

demo: $(VENV)/.installed
	@$(VENV)/bin/python examples/demo/run.py $(DEMO_FLAGS)

test: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest $(TEST_FLAGS) -m "not slow"

test-slow: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest $(TEST_FLAGS) -m slow

docs: $(VENV)/.installed
	$(INSTALL) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet -f docs/site/mkdocs.yml
	@echo "the documentation is in build/site/index.html"

fuzz: $(VENV)/.installed-dev
	$(INSTALL) -e ".[dev,fuzz]"
	$(VENV)/bin/python -m tests.fuzz.run $(FUZZ_FLAGS)

clean:
	rm -rf demo-run build/site

distclean: clean
	rm -rf $(VENV)

# The stamps are written after success only: what was cut off is repeated. An environment that has
# pip is kept; one that was left half made is made again.
$(VENV)/.made:
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
			echo "Python 3.10 or newer is needed; add PYTHON=/path/to/python3 to the command"; exit 1; }; \
		echo "making the virtual environment $(VENV)"; \
		$(PYTHON) -m venv --clear $(VENV) || { \
			echo "$(PYTHON) cannot make virtual environments;" \
				"on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; }
	@touch $@

$(VENV)/.installed: $(VENV)/.made setup.py constraints.txt $(wildcard relu_nmt/engine/native/*.cpp relu_nmt/engine/native/*.inc)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e ".[dev]"
	@touch $@
