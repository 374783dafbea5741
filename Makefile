# make serve   a demo model behind an OpenAI-compatible server on 127.0.0.1:8000
# make test    lint, types, tests
# Each makes .venv first where it is missing or out of date; `make .venv` does just that.

DEMO  := build/demo
MODEL := $(DEMO)
PORT  := 8000
ARGS  :=
VENV  := .venv/bin

.DELETE_ON_ERROR:
.PHONY: .venv serve test lint format

.venv:
	@bash .ci/make_venv.sh

serve: .venv $(if $(filter $(DEMO),$(MODEL)),$(DEMO)/config.json)
	@$(VENV)/ttkern serve --model "$(MODEL)" --port $(PORT) $(ARGS)

$(DEMO)/config.json: ttkern/model/checkpoint.py | .venv
	@$(VENV)/python -m ttkern.model.checkpoint $(DEMO)

test: lint
	$(VENV)/python -m pytest -n auto --dist loadfile

lint: .venv
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy

format: .venv
	$(VENV)/ruff check --fix
	$(VENV)/ruff format
