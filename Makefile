# The few commands of daily work, from any folder (make -C). Everything runs under the Node that npm puts into
# node_modules, so the system's may be older. What is missing is installed first.

export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

# npm writes this file at the end of an install.
installed := node_modules/.package-lock.json

.DEFAULT_GOAL := help
.PHONY: help up demo test torture check format install

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name does; do \
		printf '  make %-9s %s\n' "$$name" "$$does"; done

up: $(installed) ## start the fleet on an embedded Postgres; Ctrl-C stops it
	@exec node cli/fleet.js up

demo: $(installed) ## a sale end to end in about a minute; fails when anything is not right
	@exec node cli/fleet.js demo

test: $(installed) ## every test, on real servers
	@npm test --silent

torture: $(installed) ## half a minute of faults over the whole fleet, twice; then all is counted
	@npm run torture --silent

check: $(installed) ## types, format, lint, layout
	@npm run check --silent
	@node --test test/tidy.test.ts

format: $(installed) ## format and mend what can be mended
	@npm run format --silent

install: $(installed) ## what package-lock.json lists, exactly

$(installed): package-lock.json package.json
	@command -v npm >/dev/null || { echo 'npm is missing: install Node 20 or later, which brings it' >&2; exit 1; }
	@echo 'installing the dependencies (npm ci)'
	@npm ci --loglevel=error --no-fund --no-audit
	@touch $@
